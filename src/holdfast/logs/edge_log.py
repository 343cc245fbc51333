"""An output log: which segment an entry goes to, what stands where, what may go, what a crash has left (cec, appendix).

A log holds the elements of one edge that were put on disk, in segments of about 64 MB. It is appended to only. A write
that does not continue it begins a new segment: where positions were passed over, because nobody needed them on disk
any more; and where it goes back, because what came after was given up and is written again. Then the later segment
stands instead of what earlier ones have from its base on. Segments go when all that stands in them was acknowledged.

The index of a segment says where each entry is, by position and by event time. It is written after the sync of what it
names, and is not synced itself: so it may be short, and the rest of the log is then read again; but if it names what
the log does not hold, the log has lost what was safe (`survey`). A log without its index is whole.

Only the arithmetic is here. `runtime/disk/edge_logs.py` writes the bytes, `runtime/disk/log_reader.py` reads them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

import msgspec

from holdfast.logs.frames import FRAME_BYTES, LogEntry, Read, SegmentHead, decode_head, entry_at, marks_in
from holdfast.model.block import WATERMARK_MIN, Block
from holdfast.model.ids import Edge

#: A segment is appended to until it is so large: each one costs an open file.
SEGMENT_BYTES = 64 << 20
#: How much is looked through at once for what comes after a damaged entry.
_LOOK_BYTES = 256 << 10


class Segment:
    """One segment, as its writer knows it."""

    __slots__ = ("bytes", "count", "end", "ended", "head", "identity", "time")

    def __init__(self, head: SegmentHead, time: int) -> None:
        self.head = head
        self.identity = head.identity
        #: All of them are synced: its head, and what was appended.
        self.bytes = head.nbytes
        self.count = 0
        self.end = head.base
        self.time = time
        #: Nothing goes here any more: what a failed write has left could not be cut off.
        self.ended = False

    @staticmethod
    def held(head: SegmentHead, last: LogEntry) -> Segment:
        """One of an earlier life, up to its last whole entry. Nothing is appended to it any more."""
        segment = Segment(head, last.time)
        segment.synced([last])
        segment.count = last.number + 1
        segment.ended = True
        return segment

    def plan(self, sizes: Iterable[tuple[Block, int, int]]) -> list[LogEntry]:
        """Where blocks go, by the lengths of their meta and of their rows. One group: it is synced as a whole."""
        entries: list[LogEntry] = []
        offset, time = self.bytes, self.time
        for block, meta, rows in sizes:
            time = max(time, block.highest)
            number = self.count + len(entries)
            length = FRAME_BYTES + meta + rows
            entries.append(LogEntry(number, offset, length, meta, block.start, block.end, time, self.bytes))
            offset += length
        return entries

    def synced(self, entries: list[LogEntry]) -> None:
        """These were appended, and are on disk."""
        last = entries[-1]
        self.bytes, self.end, self.time = last.next_offset, last.end, last.time
        self.count += len(entries)


class EdgeLog:
    """The segments of one edge, oldest first."""

    __slots__ = ("edge", "number", "segments")

    def __init__(self, edge: Edge) -> None:
        self.edge = edge
        self.segments: list[Segment] = []
        self.number = 0

    @property
    def end(self) -> int:
        """The position at which it ends, or -1 if it is empty."""
        return self.segments[-1].end if self.segments else -1

    @property
    def bytes(self) -> int:
        return sum(segment.bytes for segment in self.segments)

    def go_on(self, segments: list[Segment]) -> None:
        """Go on from what an earlier life has left, oldest first."""
        for segment in segments:
            self.add(segment)
            self.number = segment.head.number

    def open(self, start: int) -> Segment | None:
        """The segment in which an entry that starts here goes on; None: a new one has to begin."""
        last = self.segments[-1] if self.segments else None
        is_open = last is not None and last.end == start and last.bytes < SEGMENT_BYTES and not last.ended
        return last if is_open else None

    def begin(self, start: int) -> Segment:
        """A new segment, which is not part of the log before `add`."""
        self.number += 1
        time = self.segments[-1].time if self.segments else WATERMARK_MIN
        return Segment(SegmentHead(self.edge, self.number, start, min(self.end, start)), time)

    def add(self, segment: Segment) -> list[Segment]:
        """It counts from now on. Which segments may go, since it stands instead of all that is in them."""
        gone = [s for s in self.segments if s.head.base >= segment.head.base]
        self.segments = [s for s in self.segments if s.head.base < segment.head.base]
        for earlier in self.segments:
            earlier.end = min(earlier.end, segment.head.base)
        self.segments.append(segment)
        return gone

    def drop(self, to: int) -> list[Segment]:
        """All before `to` was acknowledged: which segments may go."""
        gone = [s for s in self.segments if s.end <= to]
        self.segments = [s for s in self.segments if s.end > to]
        return gone


class SegmentSurvey(msgspec.Struct, frozen=True):
    """What is in the bytes of a segment."""

    head: SegmentHead | None
    entries: tuple[LogEntry, ...]
    #: Where the whole part ends, and how much lies behind it: the torn end of a write that nobody was told of.
    good: int
    torn: int
    #: How many entries the index did not know.
    unindexed: int = 0
    #: Why this is not what was written; empty: it is.
    damage: str = ""


def survey(read: Read, size: int, indexed: Iterable[LogEntry] = (), *, all_of_it: bool = False) -> SegmentSurvey:
    """What a segment of `size` bytes holds, by its index as far as that goes, and by reading what comes after.

    `all_of_it` reads every entry instead of believing the index.
    """
    known = _continuous(indexed)
    head = decode_head(read)
    if head is None:
        found = SegmentSurvey(None, (), 0, size)
        if known:
            return _damaged(found, "its beginning is damaged, and its index has entries")
        later = written_after(read, 0, size)
        return _damaged(found, f"its beginning is damaged, and it goes on at byte {later:,}") if later >= 0 else found
    if known and known[0].offset != head.nbytes:
        known = []  # of another segment
    held = [] if all_of_it else [entry for entry in known if entry.next_offset <= size]
    while held and entry_at(read, held[-1].offset, head.identity) != held[-1]:
        held.pop()
    entries, at, why = _walk(read, head, held)
    found = SegmentSurvey(head, tuple(entries), at, size - at, len(entries) - len(held))
    if not why and known and at < known[-1].next_offset:
        why = f"its index names {known[-1].next_offset:,} bytes, of which {at:,} are whole"
    if not why and at < size:
        later = written_after(read, at, size, head.identity)
        why = f"what is at byte {at:,} is damaged, and more was written at byte {later:,}" if later >= 0 else ""
    if not why and known and tuple(known) != found.entries[: len(known)]:
        why = "its index names other entries than it holds"
    return _damaged(found, why) if why else found


def _damaged(found: SegmentSurvey, why: str) -> SegmentSurvey:
    return msgspec.structs.replace(found, damage=why)


def _continuous(indexed: Iterable[LogEntry]) -> list[LogEntry]:
    """The records of an index up to the first that does not continue it."""
    known: list[LogEntry] = []
    for entry in indexed:
        if known and (entry.offset, entry.number) != (known[-1].next_offset, known[-1].number + 1):
            break
        known.append(entry)
    return known


def _walk(read: Read, head: SegmentHead, held: list[LogEntry]) -> tuple[list[LogEntry], int, str]:
    """All whole entries, where they end, and what is wrong with the next one if it is whole and does not fit."""
    entries = list(held)
    at = entries[-1].next_offset if entries else head.nbytes
    end, time = (entries[-1].end, entries[-1].time) if entries else (head.base, WATERMARK_MIN)
    while (entry := entry_at(read, at, head.identity)) is not None:
        if (entry.number, entry.start) != (len(entries), end) or entry.end <= entry.start or entry.time < time:
            return entries, at, f"at byte {at:,} there is entry {entry.number} in the place of entry {len(entries)}"
        entries.append(entry)
        at, end, time = entry.next_offset, entry.end, entry.time
    return entries, at, ""


def written_after(read: Read, bad: int, size: int, identity: int | None = None) -> int:
    """Where an entry begins that was written when the one at `bad` had been synced; -1: there is none."""
    for at in range(bad, size, _LOOK_BYTES):
        raw = read(at, min(_LOOK_BYTES + 3, size - at))  # a mark may lie across the border
        for mark in marks_in(raw):
            if mark >= _LOOK_BYTES or at + mark <= bad:
                continue
            if identity is None:
                return at + mark
            entry = entry_at(read, at + mark, identity)
            if entry is not None and entry.safe > bad:
                return at + mark
    return -1


class LogSurvey(msgspec.Struct, frozen=True):
    """What stands in a log: its entries in order of positions, each with the number of its segment."""

    entries: tuple[tuple[int, LogEntry], ...]
    segments: tuple[SegmentSurvey, ...]
    #: Positions [from, to) between two segments that were never written.
    passed_over: tuple[tuple[int, int], ...]
    damage: str = ""

    def at_position(self, position: int) -> int:
        """Which entry (by its place here) holds this position, or the first one behind it."""
        return bisect_right(self.entries, position, key=lambda one: one[1].end)

    def at_time(self, time: int) -> int:
        """Which entry is the first that may hold a row of this event time or later."""
        return bisect_left(self.entries, time, key=lambda one: one[1].time)


def put_together(surveys: Iterable[tuple[int, SegmentSurvey]]) -> LogSurvey:
    """The log that these segments (by number) are: a later one stands instead of what earlier ones have from its base
    on. Where something is damaged the log ends: what comes after it would leave a hole that nobody can see."""
    entries: list[tuple[int, LogEntry]] = []
    segments: list[SegmentSurvey] = []
    passed: list[tuple[int, int]] = []
    why = ""
    for number, found in sorted(surveys, key=lambda one: one[0]):
        segments.append(found)
        head = found.head
        if why:
            continue
        if head is not None:
            why = _misfit(number, head, entries[-1][1].end if entries else -1)
        if head is not None and not why:
            while entries and entries[-1][1].start >= head.base:
                entries.pop()
            end = entries[-1][1].end if entries else -1
            if 0 <= end < head.base:
                passed.append((end, head.base))
            why = f"segment {number}: it begins at {head.base}, inside an entry" if end > head.base else ""
        if head is not None and not why:
            entries += [(number, entry) for entry in found.entries]
        why = why or (f"segment {number}: {found.damage}" if found.damage else "")
    return LogSurvey(tuple(entries), tuple(segments), tuple(passed), why)


def _misfit(number: int, head: SegmentHead, end: int) -> str:
    """Why a segment does not follow a log that ends here (-1: there is none); empty: it does."""
    if head.number != number:
        return f"segment {number}: it is segment {head.number}"
    if 0 <= end < head.before:
        return f"segment {number}: the log ended at {head.before} before it, and what is there ends at {end}"
    return ""

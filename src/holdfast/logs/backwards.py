"""Walk back through an output log: from its last whole entry, in chunks, and only as far as somebody wants (cec §II.B).

An entry ends with its length, so the one before it is found without an index. Each is checked as it is met: its digest,
its number, and that it ends where the next one begins. Where a segment's whole part ends is known from the last record
of its index and what comes after that; how long the log is does not matter.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec

from holdfast.errors import DamagedLogError
from holdfast.logs.edge_log import survey, written_after
from holdfast.logs.frames import LogEntry, Read, SegmentHead, decode_head, entry_at, entry_of, parts_of

#: How much is read at once (cec §II: small reads would cost a seek each).
CHUNK_BYTES = 256 << 10
_LENGTH = struct.Struct("<Q")


class SegmentEnd(msgspec.Struct, frozen=True):
    """Where the whole part of a segment ends."""

    head: SegmentHead | None
    #: Its last whole entry; None: there is none.
    last: LogEntry | None
    good: int
    torn: int
    damage: str = ""


def end_of(read: Read, size: int, indexed: LogEntry | None) -> SegmentEnd:
    """Where a segment of `size` bytes ends, by the last record of its index and by reading what comes after it."""
    head = decode_head(read)
    if (
        head is None
        or indexed is None
        or indexed.next_offset > size
        or entry_at(read, indexed.offset, head.identity) != indexed
    ):
        found = survey(read, size, [indexed] if indexed is not None else [])
        damage = found.damage
        if not damage and indexed is not None and found.good < indexed.next_offset:
            damage = f"its index names {indexed.next_offset:,} bytes, of which {found.good:,} are whole"
        return SegmentEnd(found.head, found.entries[-1] if found.entries else None, found.good, found.torn, damage)
    last = indexed
    while (entry := entry_at(read, last.next_offset, head.identity)) is not None:
        if (entry.number, entry.start) != (last.number + 1, last.end) or entry.end <= entry.start:
            why = f"at byte {entry.offset:,} there is entry {entry.number} in the place of entry {last.number + 1}"
            return SegmentEnd(head, last, entry.offset, size - entry.offset, why)
        last = entry
    good = last.next_offset
    later = written_after(read, good, size, head.identity) if good < size else -1
    why = f"what is at byte {good:,} is damaged, and more was written at byte {later:,}" if later >= 0 else ""
    return SegmentEnd(head, last, good, size - good, why)


def entries_before(
    read: Read, head: SegmentHead, last: LogEntry | None, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[tuple[LogEntry, memoryview, memoryview]]:
    """The entries of a segment from its last one back to its first: each with its meta and its rows."""
    if last is None:
        return
    end, wanted = last.next_offset, last
    chunk, base = b"", end
    while end > head.nbytes:
        if end - _LENGTH.size < base:
            chunk, base = _more(read, chunk, base, end, _LENGTH.size, chunk_bytes)
        if len(chunk) < end - base:
            raise _damaged(head, f"it ends before byte {end:,}, which was there a moment ago")
        (length,) = _LENGTH.unpack_from(chunk, end - base - _LENGTH.size)
        offset = end - length
        if offset < head.nbytes or length > end:
            raise _damaged(head, f"the entry that ends at byte {end:,} says that it has {length:,} bytes")
        if offset < base:
            chunk, base = _more(read, chunk, base, end, length, chunk_bytes)
        raw = memoryview(chunk)[offset - base : end - base]
        entry = entry_of(raw, offset)
        parts = parts_of(raw, entry, head.identity) if entry is not None else None
        if entry is None or parts is None:
            raise _damaged(head, f"{length:,} bytes at {offset:,} were changed or cut")
        if (entry.number, entry.end) != (wanted.number, wanted.end):
            raise _damaged(head, f"at byte {offset:,} there is entry {entry.number} in the place of {wanted.number}")
        yield entry, *parts
        end = offset
        wanted = msgspec.structs.replace(entry, number=entry.number - 1, end=entry.start)
    if (wanted.number, wanted.end) != (-1, head.base):
        raise _damaged(head, f"its first entry is number {wanted.number + 1}, from position {wanted.end} on")


def _more(read: Read, chunk: bytes, base: int, end: int, need: int, chunk_bytes: int) -> tuple[bytes, int]:
    """The bytes before `end`, at least `need` of them, of which [base, end) are known already."""
    start = max(0, end - max(need, chunk_bytes))
    return bytes(read(start, base - start)) + bytes(chunk[: end - base]), start


def _damaged(head: SegmentHead, why: str) -> DamagedLogError:
    return DamagedLogError(
        "an output log does not hold what was written to it",
        detail=f"{head.edge}, segment {head.number}: {why}.",
        hint="The disk is failing, or somebody wrote to the file.",
    )

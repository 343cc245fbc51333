"""Walk back through the output log of an operator that left footprints, on real files (cec §II.B, §III).

It starts at the last whole entry, reads chunks of 256 KiB, and stops as soon as every window that was open then has
been found; what lies before that is not read, however long the log is. Nothing is changed. What a crash has torn off
is passed over; what was safe and is damaged ends the walk with an error, and so does a log that is not one operator's.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from holdfast.errors import DamagedLogError, InputError
from holdfast.logs.backwards import CHUNK_BYTES, SegmentEnd, end_of, entries_before
from holdfast.logs.control import control_in
from holdfast.logs.frames import INDEX_BYTES, LogEntry, unpack_index
from holdfast.model.footprint import Control
from holdfast.operators.gather import Gather, Gathered
from holdfast.operators.traced import TracedOperator
from holdfast.runtime.disk.edge_logs import INDEX, LOG
from holdfast.runtime.disk.log_reader import SegmentReader


class FootprintReader:
    """The controls of one log, newest first."""

    def __init__(self, directory: Path, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.directory = directory
        self._chunk_bytes = chunk_bytes
        #: What a walk has read so far, in bytes and entries; and where the log ends, by its first entry met.
        self.bytes = 0
        self.entries = 0
        self.end: LogEntry | None = None

    def gather(self, operator: TracedOperator) -> Gathered | None:
        """The newest footprint of every window that was open at the log's end; None: there is nothing in it."""
        walk = Gather(operator)
        try:
            for control, start in self.controls():
                if walk.take(control, start):
                    break
            return walk.end()
        except InputError as error:
            raise self._damaged(f"{error.detail}") from error

    def controls(self) -> Iterator[tuple[Control, int]]:
        """(control, where the results of its step begin), from the log's end back to its beginning."""
        for entry, meta, _ in self._entries():
            self.entries += 1
            self.end = self.end or entry
            try:
                control = control_in(meta)
            except (msgspec.MsgspecError, ValueError) as error:
                raise self._damaged(f"the entry at {entry.offset:,} cannot be understood: {error}") from None
            if control is None:
                raise self._damaged(f"the entry at {entry.offset:,} has no control tuples: it is of another log")
            yield control, entry.start

    def _entries(self) -> Iterator[tuple[LogEntry, memoryview, memoryview]]:
        """All that stands, newest first: a later segment stands instead of what earlier ones have from its base on."""
        numbers = sorted((int(p.stem) for p in self.directory.glob(f"*{LOG}") if p.stem.isdigit()), reverse=True)
        base, before = None, -1
        for number in numbers:
            with contextlib.closing(SegmentReader(self.directory / f"{number:08d}{LOG}")) as segment:
                end = segment_end(segment)
                why = end.damage or _misfit(number, end, before)
                if why:
                    raise self._damaged(f"segment {number}: {why}")
                if end.head is None:
                    continue  # a crash came before it held anything
                for entry, meta, rows in entries_before(self._counted(segment), end.head, end.last, self._chunk_bytes):
                    if base is None or entry.start < base:
                        yield entry, meta, rows
                base = end.head.base if base is None else min(base, end.head.base)
                before = end.head.before

    def _counted(self, segment: SegmentReader):
        def read(at: int, length: int) -> bytes:
            self.bytes += length
            return segment.read(at, length)

        return read

    def _damaged(self, why: str) -> DamagedLogError:
        return DamagedLogError(
            "an output log does not hold what was written to it",
            detail=f"{self.directory}: {why}.",
            hint="The disk is failing, or somebody wrote to the file. Start from a checkpoint, or from all input.",
        )


def segment_end(segment: SegmentReader) -> SegmentEnd:
    """Where the whole part of a segment ends, by the end of its index."""
    return end_of(segment.read, segment.size, _last_indexed(segment.path.with_suffix(INDEX)))


def _last_indexed(path: Path) -> LogEntry | None:
    """The last whole record of an index; None: there is none."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        at = os.fstat(handle).st_size // INDEX_BYTES * INDEX_BYTES
        while at > 0:
            at -= INDEX_BYTES
            found = list(unpack_index(os.pread(handle, INDEX_BYTES, at)))
            if found:
                return found[0]
        return None
    finally:
        os.close(handle)


def _misfit(number: int, end: SegmentEnd, before: int) -> str:
    """Why this is not what stood before the segment that was met last (`before`: where it says the log ended)."""
    if end.head is None:
        return ""
    if end.head.number != number:
        return f"it is segment {end.head.number}"
    ends = end.last.end if end.last is not None else end.head.base
    if 0 <= ends < before:
        return f"the log ended at {before} when the next one began, and it ends at {ends}"
    return ""

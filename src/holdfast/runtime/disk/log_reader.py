"""Read an output log from any position or event time, also while it grows, and say whether it is whole.

A reader is not its writer: it opens the files of a node that runs, has crashed, or is somewhere else, changes nothing,
and believes nothing that it has not checked. What a crash has torn off is left out. What was safe and is damaged ends
the reading with an error, after all that comes before it; a wrong row is never given.

A writer that runs deletes what was acknowledged. Then the reader goes on with the first segment that is left.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec

from holdfast.errors import ConfigError, DamagedLogError, InputError
from holdfast.logs.edge_log import LogSurvey, SegmentSurvey, put_together, survey
from holdfast.logs.frames import LogEntry, parts_of, unpack_index
from holdfast.model.block import Block
from holdfast.model.ids import Edge
from holdfast.runtime.disk.edge_logs import INDEX, LOG
from holdfast.runtime.net.rows import ArrowRows

_blocks = msgspec.msgpack.Decoder(Block)
#: How often a log is looked at again because its writer has deleted what was being read.
_TRIES = 20


class SegmentReader:
    """One segment, open for reading: what is deleted meanwhile can still be read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe must not be waited for
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _unreadable(path, error.strerror or str(error)) from None
        if not stat.S_ISREG(os.fstat(self._handle).st_mode):
            self.close()
            raise _unreadable(path, "It is not a file")

    def read(self, at: int, length: int) -> bytes:
        parts: list[bytes] = []
        length = min(length, self.size - at)  # a damaged length asks for anything
        try:
            while length > 0 and (came := os.pread(self._handle, length, at)):
                parts.append(came)
                at, length = at + len(came), length - len(came)
        except OSError as error:
            raise DamagedLogError(
                "an output log cannot be read",
                detail=f"{self.path}, at byte {at:,}: {error.strerror or error}.",
                hint="The disk is failing. Other nodes have the rows too.",
            ) from None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def is_replaced(self) -> bool:
        """Is another file under this name? A node that is started again begins with the first number."""
        try:
            return not os.path.samestat(os.stat(self.path), os.fstat(self._handle))
        except OSError:
            return False  # deleted: what is open can still be read

    @property
    def size(self) -> int:
        return os.fstat(self._handle).st_size

    def survey(self, *, all_of_it: bool) -> SegmentSurvey:
        """The index first: it never names what is not in the log yet. Without one all of the log is read."""
        try:
            index = self.path.with_suffix(INDEX).read_bytes()
        except OSError:
            index = b""
        return survey(self.read, self.size, unpack_index(index), all_of_it=all_of_it)

    def close(self) -> None:
        os.close(self._handle)


class LogReader:
    """The log of one edge in a directory."""

    def __init__(self, directory: Path, *, all_of_it: bool = False) -> None:
        self.directory = directory
        self.edge = Edge(directory.name)
        self._segments: dict[int, SegmentReader] = {}
        self.log: LogSurvey = LogSurvey((), (), ())
        self.look(all_of_it=all_of_it)

    def look(self, *, all_of_it: bool = False) -> None:
        """See what is there now."""
        for _ in range(_TRIES):
            try:
                self._look(all_of_it)
                return
            except FileNotFoundError:
                continue  # a segment was deleted, or replaced, between the list of files and a look at it
        raise DamagedLogError(
            "an output log cannot be read",
            detail=f"{self.directory}: its files vanish while they are looked at.",
            hint="Is somebody deleting them? Try again.",
        )

    def _look(self, all_of_it: bool) -> None:
        paths = {int(path.stem): path for path in self.directory.glob(f"*{LOG}") if path.stem.isdigit()}
        for number in [n for n, segment in self._segments.items() if n not in paths or segment.is_replaced()]:
            self._segments.pop(number).close()
        for number, path in sorted(paths.items()):
            if number not in self._segments:
                self._segments[number] = SegmentReader(path)
        surveys = [(number, one.survey(all_of_it=all_of_it)) for number, one in sorted(self._segments.items())]
        if any(segment.is_replaced() for segment in self._segments.values()):
            raise FileNotFoundError  # an index was not that of its segment
        self.log = put_together(surveys)

    @property
    def bytes(self) -> int:
        return sum(found.good + found.torn for found in self.log.segments)

    def entries(self, position: int | None = None, time: int | None = None) -> list[tuple[int, LogEntry]]:
        """All entries that are there, or those from a position or an event time on."""
        log = self.log
        first = 0 if position is None else log.at_position(position)
        return list(log.entries[max(first, 0 if time is None else log.at_time(time)) :])

    def blocks(self, position: int | None = None, time: int | None = None) -> Iterator[Block]:
        """Blocks from a position or an event time on; damage is raised behind what comes before it."""
        for number, entry in self.entries(position, time):
            yield self.block(number, entry)
        if self.log.damage:
            raise self.damaged(self.log.damage)

    def block(self, number: int, entry: LogEntry) -> Block:
        segment = self._segments[number]
        head = next(found.head for found in self.log.segments if found.head and found.head.number == number)
        found = parts_of(segment.read(entry.offset, entry.length), entry, head.identity)
        if found is None:
            raise self.damaged(f"segment {number}: {entry.length:,} bytes at {entry.offset:,} were changed or cut")
        meta, raw = found
        try:
            block = _blocks.decode(meta)
            return msgspec.structs.replace(block, rows=ArrowRows.from_ipc(raw) if len(raw) else ())
        except (msgspec.MsgspecError, InputError) as error:
            raise self.damaged(
                f"segment {number}: the entry at {entry.offset:,} cannot be understood: {error}"
            ) from None

    def damaged(self, why: str) -> DamagedLogError:
        return DamagedLogError(
            "an output log does not hold what was written to it",
            detail=f"{self.directory}: {why}.",
            hint="The disk is failing, or somebody wrote to the file. The rows before it are whole.",
        )

    def close(self) -> None:
        for segment in self._segments.values():
            segment.close()
        self._segments.clear()


def _unreadable(path: Path, why: str) -> ConfigError:
    return ConfigError("an output log cannot be read", detail=f"{path}: {why}.", hint="Is it yours to read?")


def logs_in(directory: Path) -> list[Path]:
    """The directories of all logs of a node."""
    try:
        return sorted(path for path in directory.iterdir() if path.is_dir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigError(f"{directory} cannot be read", detail=str(error), hint="Is it yours to read?") from None

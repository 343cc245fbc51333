"""Output that nobody has fetched yet goes to disk: the logs behind the core's effects `Spill` and `DropSpill`.

Every edge has an output log of its own (`logs/edge_log.py`), which grows only while a consumer is away or slow (cec,
appendix): blocks are appended as a group, synced once, and named in the index; then `Done` says so, with rows that come
back from there when somebody looks at them, and the core lets go of those in memory. Once the consumers have caught up,
nothing more is written. What cannot be written is refused, with the reason, and the log is as it was; whether and when
it is tried again is the core's business. A segment is deleted when everything in it was acknowledged. It is kept open
until nobody reads from it any more, so rows come back also if somebody else deletes the file. What was changed or cut
under our hands is found by its digest: such rows go nowhere, and the node ends (`on_damage`), since other nodes have
them too; so it does if the disk does not give them back.

Several threads work here, so that several writes are under way at once (the appendix's window of outstanding I/O), but
never two of one edge: those are done in the order in which the core asked. What waits is bounded: one write of each
edge. A second one takes the place of the first, which the core has given up.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from holdfast.core.ready import Done, DropSpill, Spill
from holdfast.errors import DamagedLogError
from holdfast.logs.edge_log import EdgeLog, Segment
from holdfast.logs.frames import LogEntry, encode_entry, parts_of
from holdfast.model.block import Block, Rows
from holdfast.model.ids import Edge
from holdfast.runtime.net.rows import ArrowRows

#: How many logs are written to at once.
WRITES_MAX = 4
#: How often a thread that writes looks whether the node has ended.
WAIT_S = 2.0
#: Names of a segment's files: its number, and what is in it.
LOG, INDEX = ".log", ".index"

_meta = msgspec.msgpack.Encoder()


def segment_path(directory: Path, edge: Edge, number: int) -> Path:
    return directory / edge / f"{number:08d}{LOG}"


class SegmentFile:
    """The bytes of one segment. It goes away with its last reader."""

    def __init__(self, path: Path, segment: Segment) -> None:
        self.path = path
        self.segment = segment
        if segment.ended:  # of an earlier life: read only, and cut at its last whole entry
            self._handle = os.open(path, os.O_RDWR)
            os.ftruncate(self._handle, segment.bytes)
            os.fdatasync(self._handle)  # its last entries were found whole, but nobody may have waited for the disk
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            self._write([segment.head.encode()], 0)
            os.fdatasync(self._handle)
        except BaseException:
            self.delete()
            raise

    def append(self, blocks: list[tuple[Block, bytes, memoryview]]) -> list[LogEntry]:
        """One group: all of it is there and synced, or the file is as it was. The index follows."""
        segment = self.segment
        entries = segment.plan((block, len(meta), len(rows)) for block, meta, rows in blocks)
        try:
            for entry, (_, meta, rows) in zip(entries, blocks, strict=True):
                self._write(list(encode_entry(segment.identity, entry, meta, rows)), entry.offset)
            os.fdatasync(self._handle)  # the core has to hear of a full disk now
        except BaseException:
            self._cut()
            raise
        segment.synced(entries)
        self._index(entries)
        return entries

    def _write(self, parts: list[bytes | memoryview], at: int) -> None:
        views = [memoryview(part) for part in parts if len(part)]
        while views:
            done = os.pwritev(self._handle, views, at)
            at += done
            while views and done >= len(views[0]):
                done -= len(views.pop(0))
            if done:
                views[0] = views[0][done:]

    def _cut(self) -> None:
        """Forget what was appended to the end."""
        self.segment.ended = True
        with contextlib.suppress(OSError):  # then what is left there is followed by a segment that says where it ended
            os.ftruncate(self._handle, self.segment.bytes)
            self.segment.ended = False

    def _index(self, entries: list[LogEntry]) -> None:
        """A reader that finds less in the index than in the log reads the rest: it may be torn, or missing."""
        with contextlib.suppress(OSError), open(self.path.with_suffix(INDEX), "ab") as file:
            file.write(b"".join(entry.pack() for entry in entries))

    def read(self, at: int, length: int) -> bytearray:
        """In as many pieces as the kernel wants: it gives less than 2 GiB at once. Fewer bytes: there are no more."""
        raw = bytearray(length)
        view, done = memoryview(raw), 0
        while done < length and (came := os.preadv(self._handle, [view[done:]], at + done)):
            done += came
        return raw[:done]

    def delete(self) -> None:
        """What the disk does not let go of stays until the next life: it is read no more."""
        for path in (self.path, self.path.with_suffix(INDEX)):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            os.close(self._handle)


class EdgeLogs:
    """The output logs of one node. `answer` takes the end of every write, and must not wait."""

    def __init__(
        self,
        directory: Path,
        answer: Callable[[Done], None],
        on_damage: Callable[[DamagedLogError], None],
        held: dict[Edge, list[Segment]] | None = None,
    ) -> None:
        """`held`: segments of an earlier life that still count, oldest first. Without it, whatever is here goes."""
        self.directory = directory
        self._answer = answer
        self._on_damage = on_damage
        self._logs: dict[Edge, EdgeLog] = {}
        self._files: dict[tuple[Edge, int], SegmentFile] = {}
        #: What the core wants of each edge, in its order; and the edges that a thread is at.
        self._wanted: dict[Edge, list[Spill | DropSpill]] = {}
        self._busy: set[Edge] = set()
        self._news = threading.Condition()
        if held is None:
            shutil.rmtree(directory, ignore_errors=True)  # of an earlier life: its queues are gone
        directory.mkdir(parents=True, exist_ok=True)
        for edge, segments in (held or {}).items():
            self._logs[edge] = log = EdgeLog(edge)
            log.go_on(segments)
            for segment in segments:
                path = segment_path(directory, edge, segment.head.number)
                self._files[edge, segment.head.number] = SegmentFile(path, segment)

    @property
    def bytes(self) -> int:
        return sum(log.bytes for log in list(self._logs.values()))

    def want(self, effect: Spill | DropSpill) -> None:
        """What the core says; whoever calls `work` does it. Never waits for the disk."""
        with self._news:
            waiting = self._wanted.setdefault(effect.edge, [])
            if isinstance(effect, Spill):
                waiting = [e for e in waiting if isinstance(e, DropSpill)]
            elif waiting and isinstance(last := waiting[-1], DropSpill):
                waiting.pop()  # nothing was to be written between them
                effect = DropSpill(edge=effect.edge, to=max(last.to, effect.to))
            self._wanted[effect.edge] = [*waiting, effect]
            self._news.notify()

    def start(self, done: threading.Event) -> None:
        """Work on threads of their own until the node has ended."""
        for number in range(WRITES_MAX):
            threading.Thread(target=self._serve, args=(done,), name=f"log {number}", daemon=True).start()

    def _serve(self, done: threading.Event) -> None:
        while not done.is_set():
            with self._news:
                self._news.wait_for(lambda: self._free() is not None, WAIT_S)
            self.work()

    def work(self) -> None:
        """Do what is wanted, in the order of each edge."""
        while (effect := self._next()) is not None:
            try:
                if isinstance(effect, DropSpill):
                    self._drop(effect.edge, effect.to)
                else:
                    self._answer(self._spill(effect))
            finally:
                with self._news:
                    self._busy.discard(effect.edge)
                    self._news.notify()

    def _free(self) -> Edge | None:
        return next((edge for edge in self._wanted if edge not in self._busy), None)

    def _next(self) -> Spill | DropSpill | None:
        with self._news:
            edge = self._free()
            if edge is None:
                return None
            effect, *left = self._wanted.pop(edge)
            if left:
                self._wanted[edge] = left  # behind the others: no edge waits for all that another one has
            self._busy.add(edge)
            return effect

    def _spill(self, effect: Spill) -> Done:
        """Whatever goes wrong is an answer: the core waits for one."""
        try:
            return Done(ticket=effect.ticket, ok=True, kept=self._write(effect))
        except OSError as error:
            why = f"{self.directory}: {error.strerror or error}."
        except Exception as error:
            why = f"{self.directory}: {error!r}."
        return Done(ticket=effect.ticket, ok=False, why=why)

    def _write(self, effect: Spill) -> tuple[Rows, ...]:
        log = self._logs.setdefault(effect.edge, EdgeLog(effect.edge))
        blocks = [(block, _meta.encode(without_rows(block)), _raw(block.rows)) for block in effect.blocks]
        segment = log.open(effect.blocks[0].start)
        if segment is not None:
            file = self._files[effect.edge, segment.head.number]
            entries = file.append(blocks)
        else:
            file, entries = self._begin(log, blocks)
        return tuple(self._kept(file, entry, block.rows) for entry, (block, _, _) in zip(entries, blocks, strict=True))

    def _begin(self, log: EdgeLog, blocks: list[tuple[Block, bytes, memoryview]]) -> tuple[SegmentFile, list[LogEntry]]:
        segment = log.begin(blocks[0][0].start)
        file = SegmentFile(segment_path(self.directory, log.edge, segment.head.number), segment)
        try:
            entries = file.append(blocks)
        except BaseException:
            file.delete()
            raise
        for gone in log.add(segment):
            self._files.pop((log.edge, gone.head.number)).delete()
        self._files[log.edge, segment.head.number] = file
        return file, entries

    def _kept(self, file: SegmentFile, entry: LogEntry, rows: Rows) -> Rows:
        """What stands for rows from now on. An empty tuple stands for itself."""
        return rows.on_disk(lambda: self._read(file, entry)) if isinstance(rows, ArrowRows) else rows

    def _read(self, file: SegmentFile, entry: LogEntry) -> memoryview:
        """On whichever thread somebody looks at them."""
        why = "were changed or cut"
        try:
            found = parts_of(file.read(entry.offset, entry.length), entry, file.segment.identity)
            if found is not None:
                return found[1]
        except OSError as error:
            why = f"cannot be read: {error.strerror or error}"
        error = DamagedLogError(
            "an output log does not hold what was written to it",
            detail=f"{file.path}: {entry.length:,} bytes at {entry.offset:,} {why}.",
            hint="The disk is failing, or somebody wrote to the file. Other nodes have the rows too.",
        )
        self._on_damage(error)
        raise error

    def _drop(self, edge: Edge, to: int) -> None:
        for gone in self._logs[edge].drop(to) if edge in self._logs else ():
            self._files.pop((edge, gone.head.number)).delete()


def without_rows(block: Block) -> Block:
    """What an entry says of its block beside the rows."""
    return msgspec.structs.replace(block, rows=None)


def _raw(rows: Rows) -> memoryview:
    return memoryview(rows.to_ipc()) if isinstance(rows, ArrowRows) else memoryview(b"")

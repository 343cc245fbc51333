"""Output that nobody has fetched yet goes to disk: the files behind the core's effects `Spill` and `DropSpill`.

A thread of its own writes the rows of some blocks into a segment file, syncs, and says so (`Done`), with rows that come
back from there when somebody looks at them; the core then lets go of those in memory. What cannot be written is
refused, with the reason, and the file is as it was; whether and when it is tried again is the core's business. A
segment is deleted when everything in it was trimmed. It is kept open until nobody reads from it any more, so rows come
back also if somebody else deletes the file. What was changed or cut under our hands is found by its digest: such rows
go nowhere, and the node ends (`on_damage`), since other nodes have them too.

What waits to be written is bounded: one write of each edge. A second one takes the place of the first, which the core
has given up.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import xxhash

from holdfast.core.ready import Done, DropSpill, Spill
from holdfast.errors import DamagedSpillError
from holdfast.model.block import Rows
from holdfast.model.ids import Edge
from holdfast.runtime.net.rows import ArrowRows

#: A segment is appended to until it is so large: each one costs an open file.
SEGMENT_BYTES = 64 << 20


class Segment:
    """One file with the rows of some blocks. It goes away with its last reader."""

    def __init__(self, path: Path) -> None:
        self.path = path
        #: Position of the edge at which it ends.
        self.end = 0
        self.bytes = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)

    def append(self, raw: pa.Buffer) -> tuple[int, int]:
        at, view = self.bytes, memoryview(raw)
        done = 0
        while done < len(view):
            done += os.pwrite(self._handle, view[done:], at + done)
        self.bytes += done
        return at, done

    def cut(self, at: int) -> None:
        """Forget what was appended since."""
        self.bytes = at
        os.ftruncate(self._handle, at)

    def sync(self) -> None:
        """Not for safety (the rows are on other nodes too) but to hear of a full disk now."""
        os.fdatasync(self._handle)

    def read(self, at: int, length: int) -> bytearray:
        """In as many pieces as the kernel wants: it gives less than 2 GiB at once. Fewer bytes: there are no more."""
        raw = bytearray(length)
        view, done = memoryview(raw), 0
        while done < length and (came := os.preadv(self._handle, [view[done:]], at + done)):
            done += came
        return raw[:done]

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            os.close(self._handle)


class SpillStore:
    """The spill files of one node. `answer` takes the end of every write, and must not wait."""

    def __init__(
        self, directory: Path, answer: Callable[[Done], None], on_damage: Callable[[DamagedSpillError], None]
    ) -> None:
        self.directory = directory
        self._answer = answer
        self._on_damage = on_damage
        self._segments: dict[Edge, list[Segment]] = {}
        #: What the core wants, in its order.
        self._wanted: list[Spill | DropSpill] = []
        self._news = threading.Condition()
        self._number = 0
        shutil.rmtree(directory, ignore_errors=True)  # of an earlier life: its queues are gone
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def bytes(self) -> int:
        return sum(s.bytes for segments in list(self._segments.values()) for s in segments)

    def want(self, effect: Spill | DropSpill) -> None:
        """What the core says; whoever calls `work` does it. Never waits for the disk."""
        with self._news:
            if isinstance(effect, Spill):
                self._wanted = [e for e in self._wanted if e.edge != effect.edge or isinstance(e, DropSpill)]
            elif self._wanted and isinstance(last := self._wanted[-1], DropSpill) and last.edge == effect.edge:
                del self._wanted[-1]  # nothing was to be written between them
                effect = DropSpill(edge=effect.edge, to=max(last.to, effect.to))
            self._wanted.append(effect)
            self._news.notify()

    def wait(self, timeout_s: float) -> None:
        """Until there is something to do."""
        with self._news:
            self._news.wait_for(lambda: self._wanted, timeout_s)

    def work(self) -> None:
        """Do what is wanted, in order."""
        while (effect := self._next()) is not None:
            if isinstance(effect, DropSpill):
                self._drop(effect.edge, effect.to)
            else:
                self._answer(self._spill(effect))

    def _next(self) -> Spill | DropSpill | None:
        with self._news:
            return self._wanted.pop(0) if self._wanted else None

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
        segments = self._segments.setdefault(effect.edge, [])
        segment = segments[-1] if segments and segments[-1].bytes < SEGMENT_BYTES else None
        fresh = segment is None
        if segment is None:
            self._number += 1
            segment = Segment(self.directory / f"{self._number:08d}.arrows")
        before = segment.bytes
        try:
            kept = tuple(self._append(segment, block.rows) for block in effect.blocks)
            segment.sync()
        except BaseException:
            segment.cut(before)
            if fresh:
                segment.path.unlink(missing_ok=True)
            raise
        segment.end = max(segment.end, effect.blocks[-1].end)
        if fresh:
            segments.append(segment)
        return kept

    def _append(self, segment: Segment, rows: Rows) -> Rows:
        """Put rows into a segment; what stands for them then. An empty tuple needs no place."""
        if not isinstance(rows, ArrowRows):
            return rows
        raw = rows.to_ipc()
        at, length = segment.append(raw)
        digest = xxhash.xxh3_64_intdigest(raw)
        return rows.on_disk(lambda: self._read(segment, at, length, digest))

    def _read(self, segment: Segment, at: int, length: int, digest: int) -> bytearray:
        """On whichever thread somebody looks at them."""
        raw = segment.read(at, length)
        if len(raw) == length and xxhash.xxh3_64_intdigest(raw) == digest:
            return raw
        error = DamagedSpillError(
            "a spill file does not hold what was written to it",
            detail=f"{segment.path}: {length:,} bytes at {at:,} were changed or cut.",
            hint="The disk is failing, or somebody wrote to the file. Other nodes have the rows too.",
        )
        self._on_damage(error)
        raise error

    def _drop(self, edge: Edge, to: int) -> None:
        kept = []
        for segment in self._segments.get(edge, ()):
            if segment.end <= to:
                segment.path.unlink(missing_ok=True)
            else:
                kept.append(segment)
        self._segments[edge] = kept

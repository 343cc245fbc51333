"""Output that nobody has fetched yet goes to disk: the bytes behind the core's arithmetic of queues.

The core says how far an edge counts as spilled; this writes the rows of those blocks into a segment file and lets go
of the memory. A segment is deleted when everything in it was trimmed; whoever still reads from it keeps it open.
A full disk is reported to the core, which then makes shards wait before memory runs out, and tried again until it
takes the rows.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from holdfast.core.ready import Spill
from holdfast.errors import check
from holdfast.model.block import Block
from holdfast.model.ids import Edge
from holdfast.runtime.net.rows import ArrowRows

#: A segment is appended to until it is so large: each one costs an open file.
SEGMENT_BYTES = 64 << 20

#: Blocks of an edge that count as spilled and whose rows are in memory.
Find = Callable[[Edge, int], list[Block]]


class Segment:
    """One file with the rows of some blocks. It goes away with its last reader."""

    def __init__(self, path: Path, end: int) -> None:
        self.path = path
        self.end = end
        self.bytes = 0
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
        """In as many pieces as the kernel wants: it gives less than 2 GiB at once."""
        raw = bytearray(length)
        view, done = memoryview(raw), 0
        while done < length:
            came = os.preadv(self._handle, [view[done:]], at + done)
            check(came > 0, "a spill file is shorter than what was written to it", f"{self.path}: {at + done}")
            done += came
        return raw

    def __del__(self) -> None:
        os.close(self._handle)


class SpillStore:
    """The spill files of one node."""

    def __init__(self, directory: Path, find: Find, on_full: Callable[[bool, str], None]) -> None:
        self.directory = directory
        self._find = find
        self._on_full = on_full
        self._segments: dict[Edge, list[Segment]] = {}
        self.full = False
        #: The latest that the core said of each edge: on a slow disk many a step must not mean as many writes.
        self._wanted: dict[Edge, Spill] = {}
        self._news = threading.Condition()
        #: What could not be written yet.
        self._open: dict[Edge, Spill] = {}
        self._number = 0
        shutil.rmtree(directory, ignore_errors=True)  # of an earlier life: its queues are gone
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def bytes(self) -> int:
        return sum(s.bytes for segments in list(self._segments.values()) for s in segments)

    def want(self, effect: Spill) -> None:
        """What the core says; whoever calls `write` does it. Never waits for the disk."""
        with self._news:
            before = self._wanted.get(effect.edge)
            if before is not None:  # a copy that goes is trimmed to its end, and the next one may begin before that
                effect = Spill(edge=effect.edge, trimmed=max(before.trimmed, effect.trimmed), to=effect.to)
            self._wanted[effect.edge] = effect
            self._news.notify()

    def wait(self, timeout_s: float) -> None:
        """Until there is something new to write."""
        with self._news:
            self._news.wait_for(lambda: self._wanted, timeout_s)

    def write(self) -> None:
        """Write what is wanted and what was not taken before. Tells when the disk is full, and when no longer."""
        with self._news:
            wanted, self._wanted = self._wanted, {}
        self._open.update(wanted)  # all of them before anything can fail
        for edge, effect in wanted.items():
            self._trim(edge, effect.trimmed)
        try:
            for edge, effect in list(self._open.items()):
                self._write(edge, effect.to)
                del self._open[edge]
        except OSError as error:
            self._say(True, f"Output cannot be spilled to {self.directory}: {error.strerror}.")
            return
        self._say(False, f"Output can be spilled to {self.directory} again.")

    def _say(self, full: bool, text: str) -> None:
        if full != self.full:
            self.full = full
            self._on_full(full, text)

    def _write(self, edge: Edge, to: int) -> None:
        blocks = [b for b in self._find(edge, to) if isinstance(b.rows, ArrowRows) and not b.rows.spilled]
        if not blocks:
            return
        segments = self._segments.setdefault(edge, [])
        segment = segments[-1] if segments and segments[-1].bytes < SEGMENT_BYTES else None
        fresh = segment is None
        if segment is None:
            self._number += 1
            segment = Segment(self.directory / f"{self._number:08d}.arrows", 0)
        before = segment.bytes
        try:
            places = [segment.append(block.rows.to_ipc()) for block in blocks]
            segment.sync()
        except OSError:
            segment.cut(before)
            if fresh:
                segment.path.unlink(missing_ok=True)
            raise
        segment.end = max(segment.end, blocks[-1].end)
        for block, (at, length) in zip(blocks, places, strict=True):
            block.rows.spill(lambda at=at, length=length: segment.read(at, length))
        if fresh:
            segments.append(segment)

    def _trim(self, edge: Edge, trimmed: int) -> None:
        kept = []
        for segment in self._segments.get(edge, ()):
            if segment.end <= trimmed:
                segment.path.unlink(missing_ok=True)
            else:
                kept.append(segment)
        self._segments[edge] = kept

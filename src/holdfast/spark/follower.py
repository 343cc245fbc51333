"""Where a stream stands, for a driver of Spark that reads it: positions without rows, from the core's `Reader`."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from holdfast.core.reader import Piece, Reader, rows_of
from holdfast.errors import HoldfastError
from holdfast.model.block import WATERMARK_MIN
from holdfast.model.ids import Consumer, Edge
from holdfast.model.plan import Plan
from holdfast.model.reasons import BarReason
from holdfast.model.record import Record
from holdfast.model.topology import ReaderSpec
from holdfast.runtime.net.transport import Peer
from holdfast.runtime.node.loop import MachineLoop
from holdfast.spark.checkpoint import last_planned
from holdfast.spark.connect import Run
from holdfast.spark.fetch import RowsGone
from holdfast.spark.hand_over import Stopped, ask_config, ask_record

#: `latestOffset` waits this long for something new: Spark would only ask again.
POLL_S = 0.1


#: A fail-over is waited out; a reader that has heard nothing for this time says so.
HOLD_S_MAX = 60.0


Offset = dict[Edge, list[int]]


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader is told; plain data, since it is pickled to wherever Spark wants it."""

    run: Run
    directory: str
    stream: str
    #: Empty: each reader gives itself a name, since one DataFrame may be read by several queries.
    consumer: Consumer
    #: 0: not the pipeline's own.
    epoch: int
    parallelism: int
    max_rows: int
    watermarks: bool
    #: A standby's reader waits there for its epoch (`latch.py`).
    latch: str = ""
    #: Its plans must be in the pipeline's store before anything is written.
    keeps: bool = False


class GapFiles:
    """Keeps the gaps that a sink has come past. Its first word on one stays: a later life has committed more."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def write(self, items: list[tuple[str, object]]) -> None:
        for key, gap in items:
            path = self.directory / key
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                continue
            part = path.with_suffix(f".{time.time_ns()}")
            with part.open("wb") as file:
                file.write(msgspec.json.encode(gap))
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)


class Follower:
    """Follows edges without their rows: the core's Reader, on a loop of its own."""

    def __init__(self, settings: ReadOptions, plan: Plan, start: Offset) -> None:
        run = settings.run
        self.consumer = settings.consumer
        # a guest has no epoch: of two with one name the one that began later goes on
        begun = settings.epoch or time.time_ns()
        spec = ReaderSpec(id=settings.consumer, edges=tuple(start), leased=not settings.epoch)
        self._changed = threading.Event()
        self._loop: MachineLoop | None = None
        address = f"{settings.consumer}.{settings.stream}@{begun}"
        self.peer = Peer(address, run.endpoints, run.security(), self._hear)
        record = ask_record(self.peer, _silent)
        positions = {edge: position for edge, (position, _) in start.items()}
        marks = {edge: mark for edge, (_, mark) in start.items()}
        machine = Reader(
            spec,
            begun,
            plan.topology,
            ask_config(self.peer),
            record,
            positions,
            time.monotonic_ns(),
            marks,
            _planned(settings, spec.edges),
        )
        disk = GapFiles(Path(settings.directory)) if settings.epoch and settings.directory else None
        self._loop = MachineLoop(machine, self.peer.send, disk=disk, on_step=self._stepped, name=self.peer.address)
        self._seen: dict[Edge, int] = {}
        self._loop.start()

    def _hear(self, source: str, message: Any) -> None:
        if self._loop is not None:
            self._loop.received(source, message)

    def _stepped(self, now_ns: int) -> None:
        assert self._loop is not None
        latest = self._loop.machine.latest()  # pyright: ignore[reportAttributeAccessIssue]
        if latest != self._seen:
            self._seen = latest
            self._changed.set()

    def _ask(self, question: Any) -> Any:
        assert self._loop is not None
        if self._loop.failure is not None:
            raise self._loop.failure
        return self._loop.ask(question)

    def acknowledge(self, offset: Offset) -> None:
        positions = {edge: position for edge, (position, _) in offset.items()}
        self._ask(lambda reader, now_ns: reader.commit(positions, now_ns))

    def wait(self, limit_s: float) -> None:
        self._changed.wait(limit_s)
        self._changed.clear()

    def reach(self, start: Offset, end: Offset, until: float, stopping: threading.Event | None = None) -> None:
        """Wait until everything before `end` is known: its shard may have to make it again. It may never come to
        somebody who was replaced meanwhile, and is told to stop."""
        while any(self.latest(start, 1 << 62)[0][edge][0] < position for edge, (position, _) in end.items()):
            if time.monotonic() > until:
                behind = {e: at for e, (at, _) in self.latest(start, 1 << 62)[0].items() if at < end[e][0]}
                raise HoldfastError(
                    'format("holdfast"): the stream has not reached the position it had before',
                    detail=f"{json.dumps(behind)} of {json.dumps({e: end[e][0] for e in behind})}.",
                    hint="`holdfast status` says which nodes are up.",
                )
            if stopping is not None and stopping.is_set():
                raise Stopped(f"{self.consumer} was told to stop while it waited for its position")
            self.wait(POLL_S)

    def latest(self, start: Offset, rows_max: int, ends: dict[Edge, int] | None = None) -> tuple[Offset, int]:
        """As far as the edges have come since `start` (and no further than `ends`), and the rows in between."""

        def look(reader: Reader, now_ns: int) -> tuple[Offset, int, dict[Edge, int], dict[Edge, BarReason]]:
            found: Offset = {}
            rows = 0
            each_max = max(1, rows_max // max(1, len(reader.buffers)))
            for edge, blocks in reader.buffers.items():
                at, mark = start.get(edge, [0, WATERMARK_MIN])
                taken = 0
                for block in blocks:
                    if block.start < at:
                        continue  # before `start`: not acknowledged yet
                    if (block.start > at and not block.jumps) or (taken and taken + rows_of(block) > each_max):
                        break
                    if ends is not None and block.end > ends[edge]:
                        break
                    at, mark = block.end, block.watermark
                    taken += rows_of(block)
                rows += taken
                found[edge] = [at, mark]
            return found, rows, dict(reader.lost), dict(reader.barred)

        found, rows, lost, barred = self._ask(look)
        if BarReason.FENCED in barred.values():
            raise HoldfastError(
                f"another program reads as consumer {self.consumer!r}",
                detail="It began later, and goes on; this one ends.",
                hint='Give each its own name: .option("consumer", ...), or none.',
            )
        if barred:
            raise of_another_run(f"{json.dumps({e: start[e][0] for e in barred})} are not positions of this one.")
        if lost:
            raise RowsGone(
                "rows of this stream were given up before they were read",
                detail=f"{json.dumps(lost)}: the edges start there now. The reader's lease had lapsed.",
                hint="Start with a new checkpoint to go on from what is retained; read more often, or raise `lease`.",
            )
        return found, rows

    def pieces(self, start: Offset, end: Offset) -> list[Piece]:
        """What tasks must fetch."""
        first, last = ({edge: position for edge, (position, _) in offset.items()} for offset in (start, end))
        return self._ask(lambda reader, now_ns: reader.pieces(first, last))

    def record(self) -> Record:
        return self._ask(lambda reader, now_ns: reader.record)

    def close(self) -> None:
        if self._loop is not None:
            self._loop.stop()
        self.peer.close()


def _planned(settings: ReadOptions, edges: tuple[Edge, ...]) -> dict[Edge, int]:
    """How far earlier lives of this stage had planned, by Spark's own log; nobody knows how much of it they wrote."""
    if not (settings.epoch and settings.directory):
        return {}
    found = last_planned(Path(settings.directory) / "checkpoints" / settings.consumer)
    return {edge: int(found[edge][0]) for edge in edges if edge in found}


def of_another_run(detail: str) -> HoldfastError:
    return HoldfastError(
        'format("holdfast"): these offsets are of another run of the pipeline',
        detail=detail,
        hint="Positions start at 0 in every run. Remove the query's checkpoint (checkpointLocation), or use a new "
        "one, to read this run from what is retained.",
    )


def _silent(event: str, **fields: Any) -> None:
    """The driver's Python process has nobody to tell."""

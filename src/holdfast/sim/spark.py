"""Spark as the core sees it: micro-batches, a write-ahead log, re-runs of what was not committed, crashes in between.

The durable part of a query (its checkpoint directory and what its sink holds) outlives every process; the running
part can die between any two steps, because each step is an event of its own. A re-run takes the planned offsets
again, and its rows come in another order.
Queries that read edges are in sink.py.
"""

from __future__ import annotations

from random import Random

from holdfast.core.ready import (
    BatchDone,
    ChildDied,
    Effect,
    Opened,
    StageFailed,
    StandbyReady,
    StartStage,
    StopStage,
    WarmStage,
)
from holdfast.core.stage import Phase, RunBatch, StageDriver
from holdfast.model.block import WATERMARK_MIN, Row
from holdfast.model.config import MS
from holdfast.model.ids import Address, Asset, Edge, driver_of, stage_edge
from holdfast.model.topology import StageSpec
from holdfast.sim.process import Process
from holdfast.sim.world import World

#: So long a driver warms up before it says that it is ready to take over.
WARM_NS = 800 * MS


class RowSource:
    """A replayable source: row i appears at its time and can be read again at any time."""

    def __init__(self, rows: list[tuple[int, Row]]) -> None:
        self.rows = rows
        self.closed = False

    def available(self, now_ns: int, seen: int) -> int:
        while seen < len(self.rows) and self.rows[seen][0] <= now_ns:
            seen += 1
        return seen


class DriverLife:
    """What one life of a driver has in memory: another may have gone on behind its back."""

    __slots__ = ("committed", "offsets", "start")

    def __init__(self, committed: int, start: int) -> None:
        self.committed = committed
        self.start = start
        self.offsets: tuple[int, int, bool] = (start, start, False)


class SourceQuery:
    """One stage on Spark: durable checkpoint, and the driver that runs now (if any)."""

    def __init__(self, world: World, spec: StageSpec, source: RowSource, *, trigger_ns: int, start_ns: int, seed: int):
        self.world = world
        self.spec = spec
        self.source = source
        self.trigger_ns = trigger_ns
        self.start_ns = start_ns
        self.rng = Random(f"query {spec.id} {seed}")
        #: The checkpoint directory: planned offsets per batch, and the last committed batch.
        self.planned: dict[int, tuple[int, int, bool]] = {}
        self.committed = -1
        self.start_offset = 0
        self.finished = False
        self.process: Process | None = None
        self.running: dict[Address, DriverLife] = {}

    def on_effect(self, process: Process, effect: Effect) -> None:
        if isinstance(effect, StartStage):
            self.world.call(self.start_ns, lambda: self._boot(process, effect.epoch))
        elif isinstance(effect, WarmStage):
            warm_up(self.world, process, effect)
        elif isinstance(effect, StopStage):
            child = self.world.processes.get(driver_of(self.spec.id, effect.epoch))
            if child is not None and child.stalled_ns <= self.world.now_ns:
                self.world.crash(child.address)  # one that is frozen cannot be killed: it may wake up later
        elif isinstance(effect, Opened):
            self._on_opened(process, effect)
        elif isinstance(effect, BatchDone):
            self.world.later(process, 10 * MS, lambda: self._commit(process, effect.batch))
        elif isinstance(effect, StageFailed):
            self.world.crash(process.address)

    def _boot(self, node: Process, epoch: int) -> None:
        """The child process is up: if its node still lives and still wants it."""
        machine = self.world.node(node.host)
        if machine is None or machine is not node.machine or machine.stages.get(self.spec.id) != epoch:
            return
        address = driver_of(self.spec.id, epoch)
        clock_ns = node.clock(self.world.now_ns)
        driver = StageDriver(self.spec, epoch, self.world.config, machine.record, clock_ns)
        process = Process(address, node.host, driver, None)
        process.offset_ns, process.drift_ppm = node.offset_ns, node.drift_ppm
        self.process = process
        self.world.add(process)

    def _on_opened(self, process: Process, effect: Opened) -> None:
        """Make the checkpoint agree with the ledger: the ledger is the truth."""
        commit = effect.commit
        if commit is not None and commit.batch >= self.committed:
            self.committed = commit.batch
            self.start_offset = commit.offsets[1]
            self.planned = {b: p for b, p in self.planned.items() if b > commit.batch}
        run = DriverLife(commit.batch, commit.offsets[1]) if commit is not None else DriverLife(-1, 0)
        self.world.later(process, 0, lambda: self._plan(process, run))

    def _plan(self, process: Process, run: DriverLife) -> None:
        """Write the offsets of the next batch ahead, or find them written. An overtaken driver plans its own."""
        if self.finished:
            return
        batch = run.committed + 1
        offsets = self.planned.get(batch)
        if offsets is None:
            end = self.source.available(self.world.now_ns, run.start)
            offsets = (run.start, end, self.source.closed and end == len(self.source.rows))
            if batch > self.committed:
                self.planned[batch] = offsets
        run.offsets = offsets
        self.world.later(process, 10 * MS, lambda: self._run(process, run))

    def _run(self, process: Process, run: DriverLife) -> None:
        driver = process.machine
        if not isinstance(driver, StageDriver) or driver.phase is not Phase.READY:
            return
        self.running[process.address] = run
        start, end, final = run.offsets
        rows = [row for _, row in self.source.rows[start:end]]
        on_time = [row for row in rows if row[1] >= driver.watermark]
        self.rng.shuffle(on_time)  # the order within a batch is nobody's promise
        event = RunBatch(
            batch=run.committed + 1,
            parts=self._parts(on_time, self.spec.shards),
            offsets=(start, end),
            event_time_max=max((row[1] for row in rows), default=WATERMARK_MIN),
            late=len(rows) - len(on_time),
            final=final,
        )
        self.world.later(process, 20 * MS, lambda: self._feed(process, event))

    def _feed(self, process: Process, event: RunBatch) -> None:
        driver = process.machine
        if isinstance(driver, StageDriver) and driver.phase is Phase.READY:
            self.world.feed(process, event)

    def _parts(self, rows: list[Row], shards: tuple[Asset, ...]) -> dict[Edge, tuple[Row, ...]]:
        parts: dict[Edge, list[Row]] = {}
        for row in rows:
            parts.setdefault(stage_edge(self.spec.id, shards[row[0] % len(shards)]), []).append(row)
        return {edge: tuple(found) for edge, found in sorted(parts.items())}

    def _commit(self, process: Process, batch: int) -> None:
        """Spark's own commit log; an overtaken driver finds that it was overtaken."""
        run = self.running[process.address]
        run.committed, run.start = batch, run.offsets[1]
        if self.planned.pop(batch, None) is not None:
            self.committed, self.start_offset = batch, run.start
            self.finished = self.finished or run.offsets[2]
        self.world.later(process, self.trigger_ns, lambda: self._plan(process, run))

    def lose_driver(self, node_notices_after_ns: int) -> None:
        """The driver is dead or deaf: its node notices, and reports it."""
        process = self.process
        if process is not None and isinstance(process.machine, StageDriver):
            report_dead(self.world, process, ChildDied(self.spec.id, process.machine.epoch), node_notices_after_ns)


def warm_up(world: World, node: Process, effect: WarmStage) -> None:
    """A driver that stands by says when it is warm. In the virtual world it does nothing else."""
    world.call(WARM_NS, lambda: world.feed_if_awake(node, StandbyReady(effect.stage)))


def report_dead(world: World, child: Process, event: ChildDied, after_ns: int) -> None:
    """The node that runs a child finds it dead or silent."""
    node = world.processes.get(child.host)
    if node is not None:
        world.call(after_ns, lambda: world.feed_if_awake(node, event))


def address_of(query: SourceQuery) -> Address | None:
    return query.process.address if query.process is not None and query.process.alive else None

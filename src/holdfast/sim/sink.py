"""Queries that read edges, as Spark runs them: positions from the core's `Reader`, rows by tasks with an `Errand` each.

A sink's durable part (planned offsets, commit log, what it wrote) outlives every process. Each life of its driver has a
view of its own, since another may have gone on behind its back. A sink is idempotent by batch id. The source's `commit`
comes when the *next* batch is planned, as in Spark.

A sink that is a stage too is placed: nodes start it, at the epoch of the record, and a driver that was only frozen
wakes up beside its successor. Others (guests, and sinks of small tests) run on hosts of their own.

A look is what `spark.read` does: hold what is there by a lease, stop following, and fetch piece after piece.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from holdfast.core.errand import Errand, Limits
from holdfast.core.reader import Piece, Reader
from holdfast.core.ready import ChildDied, Effect, Left, Ready, StartStage, StopStage, WarmStage
from holdfast.model.block import Block, Row
from holdfast.model.config import MS, SECOND
from holdfast.model.ids import Address, Consumer, Edge, Name, asset_id, driver_of, name_of
from holdfast.model.messages import Fetch
from holdfast.model.record import Record
from holdfast.model.topology import ReaderSpec
from holdfast.sim.process import Process
from holdfast.sim.spark import report_dead, warm_up
from holdfast.sim.world import World

#: As on real nodes, in the proportions of the simulator's other times.
LIMITS = Limits(wait_ns=150 * MS, patience_ns=250 * MS, pause_ns=20 * MS, limit_ns=20 * SECOND)


class SparkTask:
    """The process of a task: an errand, and who wants to know when it is over."""

    def __init__(self, world: World, errand: Errand, on_over: Callable[[Errand], None]) -> None:
        self.world = world
        self.errand = errand
        self.on_over = on_over
        self.process: Process | None = None

    def step(self, event, now_ns: int) -> Ready:
        ready = self.errand.step(event, now_ns)
        if self.errand.over and self.process is not None:
            process, self.process = self.process, None
            self.world.call(0, lambda: self._end(process))
        return ready

    def _end(self, process: Process) -> None:
        if process.alive:
            self.world.end(process)
            self.on_over(self.errand)


def send_task(
    world: World,
    host: Name,
    piece: Piece,
    record: Record,
    consumer: tuple[Consumer, int],
    number: int,
    on_over: Callable[[Errand], None],
) -> Process:
    """Start a task that fetches one piece for a consumer at an epoch."""
    place = record.places[piece.shard]
    asked = Fetch(
        ticket=0,
        edge=piece.edge,
        start=piece.start,
        end=piece.end,
        consumer=consumer[0],
        epoch=consumer[1],
        producer_epoch=place.epoch,
        query=world.topology.query,
    )
    home = name_of(place.primary) if place.primary else Name("")
    standby = name_of(place.beside) if place.beside else Name("")
    errand = Errand(asked, piece.shard, home, record.version, world.names, LIMITS, world.now_ns, standby)
    task = SparkTask(world, errand, on_over)
    task.process = process = Process(f"{driver_of(asset_id(consumer[0]), consumer[1])}/{number}", host, task, None)
    world.add(process)
    return process


class SinkLife:
    """What one life of a sink's driver has in memory."""

    __slots__ = ("committed", "end", "epoch", "found", "missing", "process", "start", "tasks")

    def __init__(self, process: Process, epoch: int, committed: int, start: dict[Edge, int]) -> None:
        self.process = process
        self.epoch = epoch
        self.committed = committed
        self.start = start
        self.end = start
        self.found: dict[Edge, list[Block]] = {}
        self.missing = 0
        self.tasks = 0


class SinkQuery:
    """A Spark query that reads edges into a sink, from its checkpoint."""

    def __init__(self, world: World, spec: ReaderSpec, *, trigger_ns: int, restart_ns: int) -> None:
        self.world = world
        self.spec = spec
        self.trigger_ns = trigger_ns
        self.restart_ns = restart_ns
        #: Nodes start it.
        self.placed = spec.id in world.topology.stage
        self.planned: dict[int, dict[Edge, int]] = {}
        self.committed = -1
        self.start: dict[Edge, int] = dict.fromkeys(spec.edges, 0)
        #: What the sink holds: batch id -> blocks per edge. Writing a batch twice replaces it.
        self.held: dict[int, dict[Edge, list[Block]]] = {}
        #: Gaps that it has come past, by edge and position: (start, to). Written before anybody hears that it knows.
        self.gaps: dict[tuple[Edge, int], tuple[int, int]] = {}
        #: The watermark at what is committed.
        self.marks: dict[Edge, int] = {}
        self.lives = 0
        self.life: SinkLife | None = None
        self.failed = ""

    def is_missing(self, edge: Edge, row: Row) -> bool:
        """May this row be missing, by the gaps that this sink has come past?"""
        return any(start <= row[1] < to for (where, _), (start, to) in self.gaps.items() if where == edge)

    # --- lives

    def on_effect(self, node: Process, effect: Effect) -> None:
        """Of a placed sink: its node starts or stops it."""
        if isinstance(effect, StartStage):
            self.world.call(self.restart_ns, lambda: self._boot_placed(node, effect.epoch))
        elif isinstance(effect, WarmStage):
            warm_up(self.world, node, effect)
        elif isinstance(effect, StopStage):
            child = self.world.processes.get(driver_of(asset_id(self.spec.id), effect.epoch))
            if child is not None and child.stalled_ns <= self.world.now_ns:
                self.world.crash(child.address)  # one that is frozen cannot be killed: it may wake up later

    def _boot_placed(self, node: Process, epoch: int) -> None:
        machine = self.world.node(node.host)
        if machine is not None and machine is node.machine and machine.stages.get(asset_id(self.spec.id)) == epoch:
            self._begin(driver_of(asset_id(self.spec.id), epoch), node.host, epoch, machine.record)

    def boot(self, record_from: Name) -> None:
        """Of one that no node starts."""
        node = self.world.node(record_from)
        record = node.record if node is not None and node.record.version else self.world.first
        self._begin(self.spec.id, Name(self.spec.id), self.lives + 1, record)  # on a machine of its own

    def _begin(self, address: Address, host: Name, epoch: int, record: Record) -> None:
        self.lives += 1
        world = self.world
        planned = self.planned.get(self.committed + 1)
        reader = Reader(
            self.spec, epoch, world.topology, world.config, record, self.start, world.now_ns, self.marks, planned
        )
        process = Process(address, host, reader, None)
        self.life = life = SinkLife(process, epoch, self.committed, self.start)
        world.add(process)
        world.later(process, self.trigger_ns, lambda: self._plan(life, reader))

    def crash(self) -> None:
        if self.life is not None:
            self._end(self.life)

    def stall(self, for_ns: int) -> None:
        """It freezes; its node, if one started it, takes it for dead."""
        life = self.life
        if life is None:
            return
        self.world.stall(life.process.address, for_ns, clock_stops=True)
        if self.placed:
            self._lost(life, 300 * MS)

    def _end(self, life: SinkLife) -> None:
        """A driver ends, whatever the reason. Its node reports it; that means nothing once another took its place."""
        if life.process.alive:
            self.world.crash(life.process.address)
            self._lost(life, 20 * MS)

    def _lost(self, life: SinkLife, after_ns: int) -> None:
        if self.placed:
            report_dead(self.world, life.process, ChildDied(asset_id(self.spec.id), life.epoch), after_ns)
        else:
            name = self.world.names[self.lives % len(self.world.names)]
            self.world.call(self.restart_ns, lambda: self.boot(name))

    # --- batches

    def _plan(self, life: SinkLife, reader: Reader) -> None:
        """`latestOffset`: plan the next batch, or find it planned."""
        if reader.lost or reader.barred:
            self.failed = f"rows are gone: {reader.lost}" if reader.lost else f"turned away: {reader.barred}"
            return
        batch = life.committed + 1
        if batch <= self.committed:
            self._end(life)  # Spark finds that another driver of the query has gone on
            return
        again = lambda: self._plan(life, reader)  # noqa: E731
        if batch not in self.planned:
            # A batch that was found planned may have gone further than this reader has heard: never back from there.
            latest = {edge: max(heard, life.start[edge]) for edge, heard in reader.latest().items()}
            self.world.do(life.process, reader.commit(life.start, life.process.clock(self.world.now_ns)))
            if latest == life.start:
                # Spark calls `commit` with the next batch only; the stage's process reads the commit log instead.
                self.world.later(life.process, self.trigger_ns, again)
                return
            self.planned[batch] = latest
        life.end = self.planned[batch]
        self.world.later(life.process, 5 * MS, lambda: self._read(life, reader, batch))

    def _read(self, life: SinkLife, reader: Reader, batch: int) -> None:
        """`partitions`, and a task for each."""
        pieces = reader.pieces(life.start, life.end)
        life.found, life.missing = {}, len(pieces)
        if not pieces:
            self._write(life, reader, batch)
        epoch = 0 if self.spec.leased else life.epoch
        for piece in pieces:
            self._send(life, reader, batch, piece, epoch)

    def _send(self, life: SinkLife, reader: Reader, batch: int, piece: Piece, epoch: int) -> None:
        def over(errand: Errand) -> None:
            self.world.later(life.process, 0, lambda: self._on_task(life, reader, batch, piece, errand))

        life.tasks += 1
        who = (self.spec.id, epoch)
        send_task(self.world, life.process.host, piece, reader.record, who, life.tasks, over)

    def _on_task(self, life: SinkLife, reader: Reader, batch: int, piece: Piece, errand: Errand) -> None:
        if errand.answer is None:
            self._on_failed_task(life, errand)
            return
        life.found[piece.edge] = list(errand.answer.blocks)
        life.missing -= 1
        if not life.missing:
            self.world.later(life.process, 5 * MS, lambda: self._write(life, reader, batch))

    def _on_failed_task(self, life: SinkLife, errand: Errand) -> None:
        """The query ends with it. A guest says why; a sink is started again."""
        if self.spec.leased:
            self.failed = f"rows are gone: {errand.gone}"
            self.world.crash(life.process.address)
        else:
            self._end(life)

    def _write(self, life: SinkLife, reader: Reader, batch: int) -> None:
        self.held[batch] = life.found
        self.world.later(life.process, 5 * MS, lambda: self._commit(life, reader, batch))

    def _commit(self, life: SinkLife, reader: Reader, batch: int) -> None:
        life.committed, life.start = batch, life.end
        if self.planned.pop(batch, None) is not None:
            self.committed, self.start = batch, life.end
            self.marks = reader.marks_at(life.end)
        self.world.later(life.process, self.trigger_ns, lambda: self._plan(life, reader))

    def blocks(self, edge: Edge) -> list[Block]:
        return [block for batch in sorted(self.held) for block in self.held[batch].get(edge, ())]


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """A `spark.read` of these edges: when, and how long between two tasks. Every piece is fetched twice, as if each
    task had failed at its end."""

    id: Consumer
    edges: tuple[Edge, ...]
    at_ms: int
    pause_ms: int = 150


class LookQuery:
    """What a look has come to: what it holds, by edge, or that it failed."""

    def __init__(self, world: World, look: Look) -> None:
        self.world = world
        self.look = look
        self.spec = ReaderSpec(id=look.id, edges=look.edges, leased=True)
        self.end: dict[Edge, int] = {}
        self.waiting: list[Piece] = []
        self.tasks = 0
        self.done = False
        self.failed = ""

    def plan(self) -> None:
        self.world.call(self.look.at_ms * MS, self.hold)

    def hold(self) -> None:
        """Where do the edges begin and end now? Then follow them, which takes the lease."""
        nodes = [node for node in map(self.world.node, self.world.names) if node is not None]
        bounds = {edge: state for node in nodes for edge, state in node.host.edges().items()}
        if any(edge not in bounds for edge in self.spec.edges):
            self.world.call(100 * MS, self.hold)  # a fail-over is under way
            return
        record = max((node.record for node in nodes), key=lambda found: found.version)
        start = {edge: bounds[edge].trimmed for edge in self.spec.edges}
        self.end = {edge: bounds[edge].next for edge in self.spec.edges}
        world, address = self.world, self.spec.id
        reader = Reader(self.spec, 1, world.topology, world.config, record, start, world.now_ns)
        process = Process(address, Name(address), reader, None)
        world.add(process)
        world.later(process, 5 * MS, lambda: self._follow(process, reader, start))

    def _follow(self, process: Process, reader: Reader, start: dict[Edge, int]) -> None:
        if reader.lost or reader.barred:
            self.world.end(process)  # else it would ask on, and hold what is left
            self._over(f"gone before it was held: {reader.lost} {reader.barred}")
        elif any(reader.latest()[edge] < end for edge, end in self.end.items()):
            self.world.later(process, 20 * MS, lambda: self._follow(process, reader, start))
        else:
            self.waiting = 2 * reader.pieces(start, self.end)
            self.world.end(process)
            self._next(reader.record)

    def _next(self, record: Record) -> None:
        if not self.waiting:
            self._over("")
            return
        piece = self.waiting.pop(0)
        self.tasks += 1

        def over(errand: Errand) -> None:
            if errand.answer is None:
                self._over(f"no rows: {errand.gone}")
            else:
                self.world.call(self.look.pause_ms * MS, lambda: self._next(record))

        send_task(self.world, Name(self.spec.id), piece, record, (self.spec.id, 0), self.tasks, over)

    def _over(self, failed: str) -> None:
        self.done, self.failed = True, failed
        left = Left(self.spec.id, self.spec.edges)
        for name in self.world.names:
            node = self.world.processes.get(name)
            if node is not None:
                self.world.call(MS, lambda node=node: self.world.feed_if_awake(node, left))

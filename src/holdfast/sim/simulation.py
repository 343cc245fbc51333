"""One run: a world, modelled Spark, a schedule of faults and the checkers; a safety phase, then a liveness phase.

In the safety phase faults happen, and nothing may go wrong. Then everything is healed, crashed nodes come back, the
sources end, and in bounded time everything must recover: every sink holds every row of every window, every shard has a
backup again. A schedule that left the mode's promise (a false alarm and a crash hit both copies of a shard) is checked
for safety only, and counted.
"""

from __future__ import annotations

import traceback
from random import Random

import msgspec
from msgspec.structs import replace

from holdfast.core.ready import Effect
from holdfast.errors import InvariantError
from holdfast.model.block import WATERMARK_MAX, Row, Rows
from holdfast.model.config import MS, SECOND, Config
from holdfast.model.ids import Edge, Name
from holdfast.model.notes import Missing, Note, StableAgain
from holdfast.model.protection import MODES, OnFailure, Protection
from holdfast.model.topology import StageSpec, Topology
from holdfast.sim.checker import Checker, Violation
from holdfast.sim.costs import Costs
from holdfast.sim.faults import Fault, Injector
from holdfast.sim.links import PauseRule
from holdfast.sim.members import reaches
from holdfast.sim.operators import SUM_MAX
from holdfast.sim.process import Process
from holdfast.sim.realtime import PartitionedSource, RealTimeQuery, rows_of_batches
from holdfast.sim.reference import recompute
from holdfast.sim.sink import Look, LookQuery, SinkQuery
from holdfast.sim.spark import RowSource, SourceQuery
from holdfast.sim.story import Trace
from holdfast.sim.world import World


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a run is a function of."""

    seed: int
    nodes: int
    topology: Topology
    spares: int = 0
    #: Nodes that no other node's file names: they come when a fault says so.
    late: int = 0
    faults: tuple[Fault, ...] = ()
    #: What `spark.read` of a guest looks at, and when.
    looks: tuple[Look, ...] = ()
    config: Config = Config()
    #: Modes of operators, where they are not the one in `config`.
    modes: dict[str, str] = {}
    #: Nodes ask Peace before they write a checkpoint.
    peaceful: bool = False
    #: Operators of which nothing is kept in the store, where there is one.
    unstored: tuple[str, ...] = ()
    costs: Costs = Costs()
    #: Length of the safety phase, and how long recovery may take after it.
    safety_ms: int = 2_000
    liveness_ms: int = 12_000
    rows_per_second: int = 300
    keys: int = 8
    window_ms: int = 200
    disorder_ms: int = 60
    trigger_ms: int = 150
    reader_trigger_ms: int = 120
    spark_start_ms: int = 150
    #: A sum that is larger does not fit, and is set aside.
    sum_max: int = SUM_MAX
    #: From the first row that a sink has got, no sink may wait longer for the next one, whatever happens; 0: it may.
    pause_max_ms: int = 0
    #: Peers of a crashed node find their connections refused.
    resets: bool = False
    #: Stages are real-time: their sources have so many partitions at first. 0: they run micro-batches.
    partitions: int = 0
    #: Restart crashed nodes before the liveness phase.
    revive: bool = True
    #: False: stop after the safety phase (scenarios that break the promise on purpose).
    must_recover: bool = True

    @property
    def own(self) -> dict[str, Protection]:
        """How operators are protected that have settings of their own."""
        found = {name: replace(self.config.protection, mode=mode) for name, mode in self.modes.items()}
        for name in self.unstored:
            found[name] = replace(found.get(name, self.config.protection), checkpoint="none")
        return found


class Outcome(msgspec.Struct, kw_only=True):
    """What a run came to."""

    seed: int
    violation: str = ""
    rule: str = ""
    #: The schedule left the promise of the mode: safety was checked, recovery was not demanded.
    excused: bool = False
    events: int = 0
    checks: int = 0
    faults: int = 0
    skipped: int = 0
    rows: int = 0
    late: int = 0
    results: int = 0
    messages: int = 0
    bytes: int = 0
    virtual_ms: int = 0
    records: int = 0
    promotions: int = 0
    instability_ms: list[float] = []


def source_rows(setup: Setup, stage: str) -> list[tuple[int, Row]]:
    """Rows of one source: event times a little out of order; what is too old will be late."""
    rng = Random(f"rows {stage} {setup.seed}")
    step_ns = SECOND // setup.rows_per_second
    rows = []
    for i in range(setup.safety_ms * setup.rows_per_second // 1_000):
        at_ns = i * step_ns
        event_ns = max(0, at_ns - rng.randrange(setup.disorder_ms * MS + 1))
        rows.append((at_ns, (rng.randrange(setup.keys), event_ns, rng.randrange(1, 5))))
    return rows


class Simulation:
    def __init__(self, setup: Setup, trace: Trace | None = None) -> None:
        self.setup = setup
        names = tuple(Name(f"n{i}") for i in range(setup.nodes))
        known = setup.nodes + setup.spares
        spares = tuple(Name(f"n{i}") for i in range(setup.nodes, known))
        late = tuple(Name(f"n{i}") for i in range(known, known + setup.late))
        self.world = World(
            topology=setup.topology,
            names=names,
            spares=spares,
            late=late,
            config=setup.config,
            costs=setup.costs,
            seed=setup.seed,
            window_ns=setup.window_ms * MS,
            own=setup.own,
            peaceful=setup.peaceful,
            resets=setup.resets,
            sum_max=setup.sum_max,
        )
        self.world.reaches = lambda source, target: reaches(late, source, target)
        self.trace = trace
        if trace is not None:
            self.world.notices.append(trace.on_notes)
            if trace.messages:
                self.world.wiretap = trace.on_message
        self.checker = Checker(self.world)
        self.instability_ms: list[float] = []
        self.world.notices.append(self._watch)
        self.sources = {stage.id: self._source(stage) for stage in setup.topology.stages if stage.shards}
        self.sinks = {
            reader.id: SinkQuery(
                self.world, reader, trigger_ns=setup.reader_trigger_ms * MS, restart_ns=setup.spark_start_ms * MS
            )
            for reader in setup.topology.readers
        }
        self.looks = [LookQuery(self.world, look) for look in setup.looks]
        self.injector = Injector(self.world, self.sources, self.sinks, self._log_fault)
        self.world.on_effect = self._on_effect

    def _source(self, stage: StageSpec) -> SourceQuery:
        setup, rows = self.setup, source_rows(self.setup, stage.id)
        trigger_ns, start_ns = setup.trigger_ms * MS, setup.spark_start_ms * MS
        named = {"trigger_ns": trigger_ns, "start_ns": start_ns, "seed": setup.seed}
        if not setup.partitions:
            return SourceQuery(self.world, stage, RowSource(rows), **named)
        source = PartitionedSource(rows, setup.partitions, f"{stage.id} {setup.seed}")
        return RealTimeQuery(self.world, stage, source, **named)

    def _on_effect(self, process: Process, effect: Effect) -> None:
        stage = effect.stage  # type: ignore[union-attr]
        query = self.sources.get(stage) or self.sinks[stage]
        query.on_effect(process, effect)

    def _log_fault(self, at_ns: int, fault: Fault) -> None:
        if self.trace is not None:
            self.trace.on_fault(at_ns, fault)

    def _watch(self, at_ns: int, source: str, notes: list[Note]) -> None:
        for note in notes:
            if isinstance(note, StableAgain):
                self.instability_ms.append(note.after_ns / MS)
            elif isinstance(note, Missing) and note.consumer in self.sinks:  # as it is on disk before it is said
                self.sinks[note.consumer].gaps.setdefault((note.edge, note.position), (note.start, note.to))

    # --- phases

    def run(self) -> Outcome:
        """The whole run. A violation is part of the outcome, never an exception."""
        outcome = Outcome(seed=self.setup.seed)
        try:
            self.run_safety()
            if self.setup.must_recover:
                outcome.excused = not self.run_liveness()
        except Violation as violation:
            outcome.rule, outcome.violation = violation.rule, str(violation)
        except (InvariantError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            outcome.rule = "a machine refused to go on"
            outcome.violation = f"{type(error).__name__}: {error} ({where.name} at {self.world.now_ns / 1e6:.3f} ms)"
        return self._filled(outcome)

    def _filled(self, outcome: Outcome) -> Outcome:
        world = self.world
        outcome.events = world.events
        outcome.checks = self.checker.count
        outcome.faults = self.injector.done
        outcome.skipped = self.injector.skipped
        outcome.rows = sum(len(query.source.rows) for query in self.sources.values())
        outcome.late = sum(c.late for found in self.checker.commits.values() for c in found.values())
        outcome.results = sum(len(b.rows) for s in self.sinks.values() for e in s.spec.edges for b in s.blocks(e))
        outcome.messages = world.network.messages
        outcome.bytes = world.network.bytes
        outcome.virtual_ms = world.now_ns // MS
        outcome.records = self.checker.record.version
        outcome.promotions = sum(1 for _, epoch in self.checker.primaries if epoch > 1)
        outcome.instability_ms = self.instability_ms
        return outcome

    def run_safety(self) -> None:
        world = self.world
        for name in world.names[: self.setup.nodes]:
            world.start_node(name)
        self.boot_sinks()
        for look in self.looks:
            look.plan()
        self.injector.plan(self.setup.faults)
        if self.setup.pause_max_ms:
            for sink in self.sinks.values():
                rule = PauseRule(world, sink, self.setup.pause_max_ms * MS, self.checker.fail)
                rule.watch(self.setup.safety_ms * MS)
        world.run(self.setup.safety_ms * MS)

    def boot_sinks(self) -> None:
        """Start those that no node starts."""
        for i, sink in enumerate(self.sinks.values()):
            if not sink.placed:
                sink.boot(self.world.names[i % self.setup.nodes])

    def run_liveness(self) -> bool:
        """Heal everything; then all must come right. False if the promise was left."""
        world = self.world
        self.injector.waiting.clear()
        world.network.heal()
        world.heal_disks()
        for name in world.names:
            process = world.processes.get(name)
            if process is None:
                continue
            world.wake(process, world.now_ns + 50 * MS)
            process.slow = 1
            if not process.alive and self.setup.revive and not self.checker.record.has_left(name):
                world.start_node(name)
        for query in self.sources.values():
            query.source.closed = True
            query.source.rows = [(min(at, world.now_ns), row) for at, row in query.source.rows]
        deadline_ns = world.now_ns + self.setup.liveness_ms * MS
        while not self._is_done():
            if world.now_ns >= deadline_ns:
                if self._is_lost():
                    return False
                self.checker.fail("not recovered", self._what_is_missing())
            world.run(world.now_ns + 50 * MS)
        self._check_end()
        return True

    def _is_lost(self) -> bool:
        """Both copies of a shard are gone, and so many faults hit nodes that this is more than the mode promises."""
        places = self.checker.record.places
        if any(self.checker.skips.is_stuck(shard, places[shard]) for shard in self.setup.topology.shard):
            return True
        if self.injector.disturbances < 2:
            return False
        for shard in self.setup.topology.shard:
            place = self.checker.record.places[shard]
            goes_on = (
                MODES[place.mode].on_failure is OnFailure.EMPTY or self.checker.record.protection_of(shard).is_stored
            )
            if not goes_on and (place.primary is None or self.world.route(place.primary) is None):
                return True
        return False

    def _is_done(self) -> bool:
        if any(not query.finished for query in self.sources.values()):
            return False
        if not self._is_protected() or self.checker.beside.still_stands() or self.checker.twins.idle():
            return False
        if any(not look.done for look in self.looks) or self.checker.letters.unwritten():
            return False
        return all(not self._missing(sink, edge) for sink in self.sinks.values() for edge in sink.spec.edges)

    def _is_protected(self) -> bool:
        """Everything is protected as its mode says, and every mode that is wanted is in force."""
        record = self.checker.record
        if len(record.members) < 2:
            return True
        shards = self.setup.topology.shard
        in_force = all(record.places[shard].mode == record.protection_of(shard).mode for shard in shards)
        return in_force and not record.unprotected() and not any(p.joining for p in record.places.values())

    def _missing(self, sink: SinkQuery, edge: Edge) -> bool:
        if sink.spec.leased:
            return False
        known = self.checker.last_of(edge)
        return known is None or known.watermark < WATERMARK_MAX or sink.start[edge] < known.end

    def _what_is_missing(self) -> str:
        open_stages = [name for name, query in self.sources.items() if not query.finished]
        open_edges = [f"{s.spec.id}:{e}" for s in self.sinks.values() for e in s.spec.edges if self._missing(s, e)]
        open_looks = [look.look.id for look in self.looks if not look.done]
        letters = self.checker.letters.unwritten()
        return (
            f"stages {open_stages}, edges {open_edges}, looks {open_looks}, dead letters {letters}, "
            f"protected {self._is_protected()}, twins that do not keep up {self.checker.twins.idle()}"
        )

    def _check_end(self) -> None:
        """Sinks equal the reference; the reference equals one batch computation over the sources' rows."""
        commits = {stage: [c for _, c in sorted(found.items())] for stage, found in self.checker.commits.items()}
        rows = {stage: rows_of_batches(self.sources[stage].source, found) for stage, found in commits.items() if found}
        window_ns, skipped = self.setup.window_ms * MS, self.checker.skips.rows()
        right, late = recompute(self.setup.topology, window_ns, commits, rows, self.setup.sum_max, skipped)
        recorded = sum(commit.late for found in commits.values() for commit in found)
        if late != recorded:
            self.checker.fail("late rows are miscounted", f"{recorded} recorded, {late} found")
        for sink in self.sinks.values():
            for edge in sink.spec.edges:
                held = [row for block in sink.blocks(edge) for row in block.rows]
                if sink.spec.leased:
                    continue
                if edge in self.checker.left_at:
                    self._check_gaps(sink, edge, held, right[edge])
                elif held != self.checker.reference.rows(edge):
                    self.checker.fail("the sink is not the reference", f"{sink.spec.id} {edge}")
        self.checker.spills.check_end()
        self.checker.letters.check_end(right)
        for edge, expected in right.items():
            whole = edge in self.setup.topology.producer and edge not in self.checker.left_at
            if whole and sorted(self.checker.reference.rows(edge)) != sorted(expected):
                self.checker.fail("the result is not the batch result", edge)

    def _check_gaps(self, sink: SinkQuery, edge: Edge, held: list[Row], expected: Rows) -> None:
        """Exact or absent: everything is right and there once, and what is not there lies in a gap."""
        who = f"{sink.spec.id} {edge}"
        wrong = [row for row in held if row not in expected]
        if wrong or len(set(held)) != len(held):
            self.checker.fail("a sink behind a gap has wrong rows", f"{who}: {wrong[:3] or 'some twice'}")
        lost = [row for row in expected if row not in held and not sink.is_missing(edge, row)]
        if lost:
            self.checker.fail("rows are missing outside of every gap", f"{who}: {lost[:3]}, gaps {sink.gaps}")

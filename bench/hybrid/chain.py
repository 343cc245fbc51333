"""A chain of operators in the simulator, as in hybrid-ha §V-A, and what is counted of it.

Each element leads to one element further down (windows so short and keys so many that nothing is summed up), so what
differs between two runs is how the chain is protected. Every operator is a shard of its own, on a node of its own,
which also has the second copy of the one before. The last of four or more is hurt, so that no stage and no ledger is
on the node that freezes. The core is the product's; operators, network and disks are modelled (docs/core/simulator.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from holdfast.model import messages as m
from holdfast.model import notes
from holdfast.model.config import MS, Config
from holdfast.model.ids import Address, Name, asset_id, name_of, shard_edge, stage_edge
from holdfast.model.message import Message
from holdfast.model.note import Note
from holdfast.model.protection import Protection
from holdfast.model.topology import ReaderSpec, ShardSpec, StageSpec, Topology
from holdfast.sim.costs import Costs
from holdfast.sim.faults import Fault
from holdfast.sim.simulation import Setup, Simulation

MODES = ("none", "passive", "hybrid", "active")
STAGE = asset_id("s0")
#: Nothing is counted before: images are brought up, the sink starts.
WARM_MS = 1_000
#: A copy that is late for less than this is not replaced, but in mode passive, which knows no other way.
PATIENT, MISSES = 200, 3
#: CPU of the modelled operator for an element: a chain of eight at 1,000 a second leaves most of each node idle.
ROW_NS = 50_000


def topology(length: int) -> Topology:
    names = [asset_id(f"c{i}") for i in range(length)]
    before = [stage_edge(STAGE, names[0]), *map(shard_edge, names)]
    shards = tuple(
        ShardSpec(id=name, inputs=(edge,), outputs=(shard_edge(name),))
        for name, edge in zip(names, before, strict=False)
    )
    stage = StageSpec(id=STAGE, shards=(names[0],), query="query-0", delay_ns=0, idle_ns=1 << 60)
    reader = ReaderSpec(id=asset_id("r0"), edges=(shard_edge(names[-1]),))
    return Topology(shards=shards, stages=(stage,), readers=(reader,))


def setup(
    mode: str, *, length: int, nodes: int, rate: int, for_ms: int, heartbeat_ms: int = 100, period_ms: int = 500,
    seed: int = 1, faults: tuple[Fault, ...] = (),
) -> Setup:  # fmt: skip
    config = Config(
        heartbeat_ns=heartbeat_ms * MS,
        misses_max=MISSES if mode == "passive" else PATIENT,
        protection=Protection(mode=mode, period_ns=period_ms * MS),
        replay_ns=0,  # captures as often as they are asked for
    )
    return Setup(
        seed=seed,
        nodes=nodes,
        topology=topology(length),
        config=config,
        costs=Costs(row_ns=ROW_NS),
        faults=faults,
        safety_ms=WARM_MS + for_ms,
        rows_per_second=rate,
        keys=1 << 20,
        window_ms=5,
        disorder_ms=5,
        trigger_ms=20,
        reader_trigger_ms=20,
        must_recover=False,
    )


class Taps:
    """What is counted of one run."""

    def __init__(self, run: Simulation) -> None:
        self.run = run
        #: Elements between copies of shards: rows, and captures.
        self.rows: Counter[tuple[Address, Address]] = Counter()
        self.captured = 0
        #: What captures would have carried that also have input queues, and the whole state (the paper's baselines).
        self.baseline = 0
        #: (when, delay, elements) of what the sink's reader has got; (when, name) of notes that are looked for.
        self.delays: list[tuple[int, int, int]] = []
        self.seen: list[tuple[int, Note]] = []
        self.since_ns = WARM_MS * MS
        run.world.wiretap = self._on_message
        run.world.notices.append(self._on_notes)

    # --- while it runs

    def _on_message(self, at_ns: int, source: Address, target: Address, message: Message) -> None:
        if at_ns < self.since_ns:
            return
        if isinstance(message, m.Data) and "#" in source and "#" in target:
            self.rows[source, target] += sum(len(block.rows) for block in message.blocks)
        elif isinstance(message, m.Capture | m.CapturePiece):
            state = 0 if message.state is None else len(message.state)  # type: ignore[arg-type]
            self.captured += state + sum(map(len, message.cargo))

    def _on_notes(self, at_ns: int, source: Address, noted: list[Note]) -> None:
        for note in noted:
            if isinstance(note, notes.Accepted) and note.consumer == "r0":
                block = note.block
                self.delays.append((at_ns, at_ns - block.watermark, block.end - block.start - 1))
            elif isinstance(note, notes.StandsIn | notes.StandsDown | notes.Suspects | notes.Promoted):
                self.seen.append((at_ns, note))

    def sample_baselines(self, period_ms: int, until_ms: int) -> None:
        """Every period: what individual and synchronous captures would carry at this moment. Both have input queues;
        the second stops all operators of a node first, which changes when, not what."""

        def look() -> None:
            for name in self.run.world.names:
                node = self.run.world.node(name)
                for runner in node.host.runners.values() if node is not None else ():
                    copy = runner.copy
                    made = sum(queue.next - queue.trimmed for queue in copy.outputs)
                    self.baseline += len(copy.op.windows) + made + copy.retained()  # type: ignore[attr-defined]
            if self.run.world.now_ns < until_ms * MS:
                self.run.world.call(period_ms * MS, look)

        self.run.world.call(WARM_MS * MS, look)

    # --- afterwards

    def delay_ms(self) -> float:
        """The mean over all elements that came after the beginning."""
        counted = [(delay, count) for at, delay, count in self.delays if at >= self.since_ns and count > 0]
        return sum(delay * count for delay, count in counted) / sum(count for _, count in counted) / MS

    def output_after_ns(self, since_ns: int) -> int:
        """When the sink's reader got the next block."""
        return next(at for at, _, _ in self.delays if at > since_ns)

    def seen_ns(self, kinds: tuple[type, ...], since_ns: int) -> int:
        """When one of these was noted for the first time since then."""
        return next(at for at, note in self.seen if isinstance(note, kinds) and at >= since_ns)

    def elements(self) -> int:
        return sum(self.rows.values())


def homes(run: Simulation) -> list[Name]:
    """Where the last operator of the chain is: its primary, and its second copy if it has one."""
    place = run.checker.record.places[run.setup.topology.shards[-1].id]
    return [name_of(seat) for seat in (place.primary, place.backup) if seat]


def freezes(node: Name, spells: Iterable[tuple[int, int]]) -> tuple[Fault, ...]:
    """(when, for how long), both in ms."""
    return tuple(
        Fault(kind="stall", node=node, at_ms=WARM_MS + at_ms, for_ms=for_ms, value=1.0) for at_ms, for_ms in spells
    )

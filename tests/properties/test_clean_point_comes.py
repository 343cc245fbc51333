"""Sources that pause, and go on only as far as `needed` says, come to a point at which nothing waits: real copies, any
shape, any batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.behind import WaitingInput, WaitingShard, needed
from holdfast.core.copy import Copy
from holdfast.model.block import WATERMARK_MIN, batch_block
from holdfast.model.config import Config
from holdfast.model.ids import Asset, Edge, asset_id, shard_edge, stage_edge
from holdfast.model.plan import Plan, StagePlan
from holdfast.model.topology import ShardSpec, StageSpec, Topology
from holdfast.runtime.node.status import _input
from holdfast.sim.costs import Costs
from holdfast.sim.operators import Meter, WindowSum

CONFIG = Config(queue_memory_max=1 << 30)
ROUNDS_MAX = 60


class Lagging(WindowSum):
    __slots__ = ("lag",)


@dataclass
class RandomSource:
    """Watermarks of its batches: what each adds, again and again, and some add nothing."""

    adds: list[int]
    watermark: int = WATERMARK_MIN
    before: int = WATERMARK_MIN
    batches: int = 0
    ends: dict[Edge, int] = field(default_factory=dict)


class RandomRun:
    def __init__(self, reads: list[list[str]], sources: dict[str, RandomSource], lags: list[int], rows: Random) -> None:
        self.rows = rows
        self.sources = sources
        names = [asset_id(f"u{i}") for i in range(len(reads))]
        specs = [
            ShardSpec(
                id=name,
                inputs=tuple(
                    sorted(stage_edge(asset_id(r), name) if r in sources else shard_edge(asset_id(r)) for r in each)
                ),
                outputs=(shard_edge(name),),
            )
            for name, each in zip(names, reads, strict=True)
        ]
        feeds = {s: tuple(u.id for u in specs if stage_edge(asset_id(s), u.id) in u.inputs) for s in sources}
        topology = Topology(
            shards=tuple(specs),
            stages=tuple(StageSpec(id=asset_id(s), shards=into, query="q") for s, into in feeds.items()),
            readers=(),
        )
        stages = tuple(StagePlan(id=asset_id(s), kind="source") for s in sources)
        self.plan = Plan(pipeline="p", query="q", topology=topology, operators=(), stages=stages)
        self.copies: dict[Asset, Copy] = {}
        for spec, lag in zip(specs, lags, strict=True):
            made = Lagging(spec, 10, Costs(), Meter())
            made.lag = lag
            self.copies[spec.id] = Copy(spec, topology, made, CONFIG, based=True)
            self.copies[spec.id].promote(0)

    def hand_over(self, name: str) -> None:
        source = self.sources[name]
        mark = max(source.watermark, 0) + source.adds[source.batches % len(source.adds)]
        for shard in self.plan.topology.stage[asset_id(name)].shards:
            edge = stage_edge(asset_id(name), shard)
            times = [mark + self.rows.randrange(1, 30) for _ in range(self.rows.randrange(3))]
            block = batch_block(source.ends.get(edge, 0), tuple((1, t, 1) for t in times), mark, source.batches)
            self.copies[shard].inboxes[edge].sealed.append(block)
            source.ends[edge] = block.end
        source.before, source.watermark, source.batches = source.watermark, mark, source.batches + 1

    def consume(self) -> None:
        went = True
        while went:
            went = False
            for copy in self.copies.values():
                while (made := copy.step()) is not None:
                    went = True
                    for queue, block in made:
                        for reader in self.plan.topology.readers_of(queue.edge):
                            self.copies[reader].input(queue.edge).queue.append(block)

    def waiting(self) -> dict[Asset, WaitingShard]:
        found = {}
        for shard, copy in self.copies.items():
            told = {i.edge: _input(i) for i in copy.inputs}
            inputs = {e: WaitingInput(t["watermark"], t["before_last"], t["waiting"]) for e, t in told.items()}
            found[shard] = WaitingShard(copy.op.lag, inputs)
        return found

    def come_to_the_end(self) -> int:
        """Until nothing waits; how many batches that took."""
        count = 0
        for _ in range(ROUNDS_MAX):
            self.consume()
            waits = self.waiting()
            if not any(one.waiting for shard in waits.values() for one in shard.inputs.values()):
                return count
            found = needed(self.plan, waits)
            behind = {s: one for s, one in found.items() if self.sources[s].watermark < one.mark}
            assert behind, "something waits, and nobody is needed"
            for name, one in behind.items():
                while self.sources[name].watermark < one.mark:
                    self.hand_over(name)
                    count += 1
        raise AssertionError(f"it does not end: {waits}")


ADDS = st.lists(st.integers(0, 12), min_size=1, max_size=5).filter(any)


@st.composite
def sources(draw: st.DrawFn, count: int) -> dict[str, RandomSource]:
    return {f"s{i}": RandomSource(draw(ADDS)) for i in range(count)}


def begin(run: RandomRun, draw: st.DataObject) -> None:
    """Each source is somewhere, and some have begun with nothing yet."""
    for name in run.sources:
        for _ in range(draw.draw(st.integers(0, 12), label=f"batches of {name}")):
            run.hand_over(name)


@given(st.data())
def test_sources_come_to_a_clean_point_and_none_goes_further_than_another_was(data: st.DataObject):
    """Sources feed any operators, and operators others, without lags."""
    count = data.draw(st.integers(1, 4))
    below = [f"s{i}" for i in range(count)]
    reads = []
    for number in range(data.draw(st.integers(1, 4))):
        reads.append(data.draw(st.lists(st.sampled_from(below), min_size=1, max_size=4, unique=True)))
        below.append(f"u{number}")
    used = data.draw(sources(count))
    used = {name: source for name, source in used.items() if any(name in each for each in reads)}
    run = RandomRun(reads, used, [0] * len(reads), Random(data.draw(st.integers(0, 99))))
    begin(run, data)
    before = {name: (source.batches, source.before) for name, source in used.items()}
    furthest = max(at for _, at in before.values())
    run.come_to_the_end()
    for name, source in used.items():
        if source.batches > before[name][0]:
            assert source.before <= furthest, "a batch that nobody needed"


@given(st.data())
def test_lags_of_operators_put_the_clean_point_off_but_it_comes(data: st.DataObject):
    """Every source feeds one operator, and every operator at most one: no two ways from one to another."""
    count = data.draw(st.integers(1, 5))
    free, reads = [f"s{i}" for i in range(count)], []
    for number in range(data.draw(st.integers(1, 3))):
        taken = data.draw(st.lists(st.sampled_from(free), min_size=1, max_size=4, unique=True))
        free = [name for name in free if name not in taken] + [f"u{number}"]
        reads.append(taken)
    used = data.draw(sources(count))
    used = {name: source for name, source in used.items() if any(name in each for each in reads)}
    lags = data.draw(st.lists(st.integers(0, 50), min_size=len(reads), max_size=len(reads)))
    run = RandomRun(reads, used, lags, Random(data.draw(st.integers(0, 99))))
    begin(run, data)
    run.come_to_the_end()

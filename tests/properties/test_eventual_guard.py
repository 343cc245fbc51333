"""The guard `eventual`, the production entries and the production restore: whatever is written, refused, lost or
acknowledged, and wherever it is killed, a shard goes on as one that was never killed."""

from __future__ import annotations

import functools
import queue
from typing import Any, NamedTuple

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.plans import aggregate_plan, layered_plan
from support.source import rows

from holdfast.core.copy import Copy
from holdfast.core.protect import Eventual
from holdfast.core.ready import Done, LoadCheckpoint, LogBatch, PutFootprints, Ready
from holdfast.core.roles import Change
from holdfast.core.tickets import Tickets
from holdfast.model.block import WATERMARK_MAX, Block, batch_block, digest_of
from holdfast.model.config import Config
from holdfast.model.ids import Edge, asset_id
from holdfast.model.parts import CommitRecord
from holdfast.model.plan import Plan, to_core
from holdfast.model.protection import Protection
from holdfast.model.record import Place
from holdfast.operators import StateConfig
from holdfast.operators.build import build
from holdfast.runtime.net.rows import ArrowRows, batches_of
from holdfast.runtime.node.operators import Factory
from holdfast.runtime.stable import batches
from holdfast.runtime.stable.checkpoints import CheckpointStore
from holdfast.runtime.stable.door import StoreDoor
from holdfast.store.memory import MemoryStore

CONFIG = Config()
EVENTUAL = Protection(checkpoint="eventual", checkpoint_ns=10_000_000)
#: Rows a second of the source; a batch has so many rows, so windows are open over several of them.
RATE, BATCH = 100, 7
AGGS = {"n": ["count", None, False], "total": ["sum", "value", False], "first": ["first", "value", False]}


def counting_plan() -> Plan:
    """Windows of five rows, two of them open at once, whose results depend on the order of rows."""
    plan = layered_plan(shards=1)
    settings_ = {"size": 5, "step": 3, "by": ["key"], "aggs": AGGS, "overflow": "error"}
    made = replace(plan.operators[0], kind="count_window", settings=settings_)
    made = replace(made, output=build(made, StateConfig()).output_schema.serialize().to_pybytes())
    return replace(plan, operators=(made, *plan.operators[1:]))


def window_plan() -> Plan:
    plan = layered_plan(shards=1)
    (given_,) = plan.operators[0].inputs
    schema = pa.ipc.read_schema(pa.py_buffer(given_.schema))
    made = aggregate_plan("u0", [("s0", schema, "ts")], 400_000, AGGS)
    return replace(plan, operators=(made, *plan.operators[1:]))


#: (plan, the shard): over a stage by time and by count, and over other shards.
SHAPES = {"time": (window_plan(), "u0"), "count": (counting_plan(), "u0"), "shards": (layered_plan(shards=2), "v0")}


def stage_blocks() -> list[Block]:
    made, start = [], 0
    for batch in range(40):
        found = ArrowRows([rows(batch * BATCH, (batch + 1) * BATCH, RATE, keys=4)])
        time = (batch + 1) * BATCH * 1_000_000 // RATE - 20_000
        watermark = WATERMARK_MAX if batch == 39 else to_core(time)
        made.append(batch_block(start, found, watermark, batch))
        start = made[-1].end
    return made


def made_by(plan: Plan, shard: str) -> list[Block]:
    """What a shard makes of the source."""
    one = LoggedLife(plan, shard, MemoryStore(), 1)
    one.copy.change(Change.RUNS)
    for block in stage_blocks():
        one.feed({one.copy.inputs[0].edge: [block]})
    return [block for _, block in sorted(one.made.items())]


class LoggedLife:
    """One life of a shard's primary, with its store."""

    def __init__(self, plan: Plan, shard: str, store: MemoryStore, epoch: int) -> None:
        spec = plan.topology.shard[asset_id(shard)]
        factory = Factory(plan, 4096, 1 << 24)
        self.plan, self.epoch = plan, epoch
        self.copy = Copy(spec, plan.topology, factory(spec), CONFIG, based=epoch == 1)
        self.ends: queue.SimpleQueue[Done] = queue.SimpleQueue()
        self.store = CheckpointStore(
            StoreDoor(lambda: store, again_s=0.1), plan, f"n0#{epoch}", factory, self.ends.put, self, 3
        )
        self.tickets = Tickets(1)
        self.guard = Eventual(self.copy, Place(primary="n0#1", epoch=epoch), self.tickets, 0)
        self.guard.protection = EVENTUAL
        self.made: dict[int, Block] = {}

    def write(self, event: str, text: str, **fields: Any) -> None:
        pass

    def begin(self) -> None:
        if self.epoch == 1:
            self.copy.change(Change.RUNS)
            return
        self.copy.change(Change.ASKS_THE_STORE)
        self.store.want(LoadCheckpoint(ticket=0, shard=self.copy.id, epoch=self.epoch))
        done = self.ends.get(timeout=60)
        assert done.ok, done.why
        self.copy.load(done.head, done.image)
        self.copy.promote(0)

    def feed(self, given_: dict[Edge, list[Block]]) -> None:
        for edge, some in given_.items():
            self.copy.input(edge).queue.extend(some)
        while (found := self.copy.step()) is not None:
            self.made.update({block.start: block for q, block in found if q is self.copy.outputs[0]})

    def entry(self, fate: str) -> None:
        """One is written; or the store refuses it; or has it, and nobody hears so."""
        if not self.guard.due(1 << 40, frozen=False):
            return
        ready = Ready()
        self.guard.take(0, ready)
        (effect,) = ready.apply
        assert isinstance(effect, PutFootprints)
        if fate == "refused":
            self.tickets.on_done(Done(ticket=effect.ticket, ok=False, why="full"), 0, ready)
            return
        self.store.want(effect)
        done = self.ends.get(timeout=60)
        assert done.ok, done.why
        if fate == "silent":
            self.tickets.on_tick(0, ready)
            self.tickets.on_tick(2, ready)
        self.tickets.on_done(done, 0, ready)

    def close(self) -> None:
        self.store.close()


def log(plan: Plan, store: MemoryStore, edge: Edge, blocks: list[Block]) -> None:
    """As a driver logs each try before it counts; of one batch there is an earlier try with other rows."""
    service = StoreDoor(lambda: store, again_s=0.1).service()
    for block in blocks:
        for attempt, found in ((1, ArrowRows([rows(0, BATCH + 1, RATE)])), (2, block.rows)):
            commit = CommitRecord(
                query=plan.query, batch=block.batch, epoch=1, attempt=attempt, watermark=0, offsets=(0, 1),
                digests={edge: digest_of(found)},
            )  # fmt: skip
            effect = LogBatch(
                ticket=0, stage=asset_id("s0"), batch=block.batch, epoch=1, attempt=attempt, parts={edge: found},
                commit=commit, last=None,
            )  # fmt: skip
            service.run(batches.write(plan.query, effect))


def inputs_of(plan: Plan, shard: str) -> dict[Edge, list[Block]]:
    edges = [i.edge for i in LoggedLife(plan, shard, MemoryStore(), 1).copy.inputs]
    if shard == "u0":
        return {edges[0]: stage_blocks()}
    return {edge: made_by(plan, edge.rpartition(".")[0]) for edge in edges}


def same(one: Block, other: Block) -> bool:
    tables = [pa.Table.from_batches(batches_of(b.rows)) if len(b.rows) else None for b in (one, other)]
    return (one.start, one.end, one.watermark) == (other.start, other.end, other.watermark) and tables[0] == tables[1]


class OneShard(NamedTuple):
    plan: Plan
    shard: str
    given: dict[Edge, list[Block]]
    expected: dict[int, Block]


@functools.cache
def world(name: str) -> OneShard:
    plan, shard = SHAPES[name]
    given_ = inputs_of(plan, shard)
    oracle = LoggedLife(plan, shard, MemoryStore(), 1)
    oracle.begin()
    oracle.feed(given_)
    oracle.close()
    return OneShard(plan, shard, given_, oracle.made)


STEP = st.one_of(
    st.integers(1, 6),
    st.sampled_from(("written", "written", "written", "refused", "silent", "acknowledged", "killed")),
)


@settings(max_examples=25)
@given(name=st.sampled_from(sorted(SHAPES)), steps=st.lists(STEP, min_size=5, max_size=40))
def test_a_shard_that_is_killed_anywhere_goes_on_as_one_that_was_not(name: str, steps: list):
    plan, shard, given_, expected = world(name)
    store, epoch = MemoryStore(), 1
    if shard == "u0":
        log(plan, store, *next(iter(given_.items())))
    life = LoggedLife(plan, shard, store, epoch)
    life.begin()
    seen: dict[int, Block] = {}

    def go_on(count: int) -> None:
        """Some more blocks of every input, from where the copy and its queue stand."""
        more = {}
        for i in life.copy.inputs:
            to = i.queue[-1].end if i.queue else i.position
            more[i.edge] = [block for block in given_[i.edge] if block.start >= to][:count]
        life.feed(more)
        seen.update({start: block for start, block in life.made.items() if start not in seen})
        assert all(same(block, seen[start]) for start, block in life.made.items())

    for step in [*steps, "killed", 40]:
        if isinstance(step, int):
            go_on(step)
        elif step == "acknowledged":
            out = life.copy.outputs[0]
            for consumer in list(out.acks):
                out.ack(consumer, out.next)
        elif step == "killed":
            safe = life.guard.safe() or {}
            life.close()
            epoch += 1
            life = LoggedLife(plan, shard, store, epoch)
            life.begin()
            assert all(life.copy.positions()[edge] >= at for edge, at in safe.items())
            out = life.copy.outputs[0]
            assert all(same(block, expected[block.start]) for block in out.blocks)
            assert sum(block.end - block.start for block in out.blocks) == out.next - out.trimmed
        else:
            life.entry(step)
    life.close()
    assert {start: same(block, expected[start]) for start, block in seen.items()} == dict.fromkeys(expected, True)

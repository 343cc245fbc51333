"""The first checkpoints of a run that starts from a savepoint: the same state, in as many shards as are wanted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.stored_states import CONFIG, SHARDS, StoredRun, rows

from holdfast.checkpoint.look import look_at
from holdfast.checkpoint.savepoint import Savepoint
from holdfast.errors import StateError
from holdfast.model.ids import asset_id, shard_edge, shard_id, stage_edge
from holdfast.model.ledger_messages import commit_objection
from holdfast.model.parts import CommitRecord
from holdfast.model.plan import Plan, StagePlan
from holdfast.model.topology import ShardSpec, StageSpec, Topology
from holdfast.operators.build import build
from holdfast.operators.contents import contents
from holdfast.runtime.stable import batches
from holdfast.runtime.stable.seed import Origin, Seeding, moved_plan
from holdfast.store import LocalStore
from holdfast.store.service import IoService

NAMES = ("every", "alone", "counted", "pairs")
STAGE = asset_id("feeder")
MEMORY = (CONFIG.page_bytes, CONFIG.limit_bytes)


def with_shards(plan: Plan, shards: int) -> Plan:
    """The same pipeline as another run, in another number of shards."""
    operators = tuple(msgspec.structs.replace(one, shards=shards) for one in plan.operators)
    names = [shard_id(one.name, i) for one in operators for i in range(shards)]
    specs = tuple(ShardSpec(id=name, inputs=(), outputs=(shard_edge(name),)) for name in names)
    topology = Topology(shards=specs, stages=plan.topology.stages, readers=())
    return msgspec.structs.replace(plan, query="states-2", operators=operators, topology=topology)


def held(ops: list[Any]) -> list[str]:
    return sorted(repr(row) for op in ops for batch in contents(op) for row in batch.to_pylist())


class Moved:
    def __init__(self, directory: Path) -> None:
        self.old = StoredRun(directory / "old")
        for name in NAMES:
            self.old.feed(name, rows(300))
            self.old.checkpoint_all(name)
        shards = {shard: 1 for name in NAMES for shard in self.old.shards(name)}
        self.point = Savepoint(
            name="one", made_ms=1, deployment=self.old.deployment, pipeline="states", directory="", plan=b"",
            shards=shards, commits={}, reads={}, written={},
        )  # fmt: skip
        self.services = [IoService(self.old.store), IoService(LocalStore(directory / "new"))]

    def seed(self, plan: Plan, memory: tuple[int, int] = MEMORY) -> None:
        origin = Origin(self.services[0], self.point, self.old.plan)
        Seeding(origin, self.services[1], plan, memory, {}).run(lambda line: None)

    def found(self, plan: Plan, name: str) -> list[Any]:
        operator = plan.operator(name)
        return [
            self.services[1].run(look_at(shard_id(name, i), None, lambda c: build(operator, c), plan.query)).op
            for i in range(operator.shards)
        ]


@pytest.fixture
def moved(tmp_path: Path):
    made = Moved(tmp_path)
    yield made
    for service in made.services:
        service.close()


@pytest.mark.parametrize("shards", [SHARDS, 1, 5])
def test_every_key_is_in_the_new_shards_with_all_that_it_had(moved: Moved, shards: int):
    plan = with_shards(moved.old.plan, shards)
    moved.seed(plan)
    for name in NAMES:
        before = [moved.old.ops[shard] for shard in moved.old.shards(name)]
        assert held(moved.found(plan, name)) == held(before)
    assert held(moved.found(plan, "sliding")) == []  # it had consumed nothing: it begins with nothing


def test_pages_of_another_size_are_no_hindrance(moved: Moved):
    plan = with_shards(moved.old.plan, SHARDS)
    moved.seed(plan, (8192, 1 << 24))
    before = [moved.old.ops[shard] for shard in moved.old.shards("every")]
    assert held(moved.found(plan, "every")) == held(before)


def test_a_savepoint_without_one_of_its_shards_is_refused(moved: Moved):
    del moved.point.shards[shard_id("every", 0)]
    with pytest.raises(StateError, match="has no checkpoint of every-0"):
        moved.seed(with_shards(moved.old.plan, 3))


def fed(plan: Plan, shards: int) -> Plan:
    """The same with a stage that feeds one of the operators."""
    plan = with_shards(plan, shards)
    into = tuple(shard_id("every", i) for i in range(shards))
    specs = tuple(
        msgspec.structs.replace(one, inputs=(stage_edge(STAGE, one.id),) if one.id in into else ())
        for one in plan.topology.shards
    )
    stages = (*plan.topology.stages, StageSpec(id=STAGE, shards=into, query=plan.query))
    plans = (*plan.stages, StagePlan(id=STAGE, kind="source"))
    topology = Topology(shards=specs, stages=stages, readers=())
    return msgspec.structs.replace(plan, topology=topology, stages=plans)


def test_a_stage_goes_on_behind_its_last_batch_on_edges_that_are_new(moved: Moved):
    last = CommitRecord(query="states-1", batch=7, epoch=3, attempt=1, watermark=9, offsets=(5, 6), plan="v1")
    moved.point.commits[STAGE] = last
    plan = fed(moved.old.plan, 3)
    old = msgspec.structs.replace(moved.old.plan, stages=plan.stages)
    origin = Origin(moved.services[0], moved.point, old)
    seeding = Seeding(origin, moved.services[1], plan, MEMORY, {})
    seeding.run(lambda line: None)
    commit = seeding.commits[STAGE]
    edges = {stage_edge(STAGE, shard_id("every", i)) for i in range(3)}
    assert (commit.batch, commit.query, commit.plan) == (7, "states-2", "v1")
    assert commit_objection(commit, 3, edges) == ""  # nodes would take it
    for i in range(3):
        shard = shard_id("every", i)
        stand = moved.services[1].run(look_at(shard, None, lambda c: build(plan.operator("every"), c), plan.query))
        edge = stage_edge(STAGE, shard)
        assert stand.manifest.stand.batches == {edge: 7}
        assert stand.manifest.stand.positions == {edge: commit.ends[edge]}
    assert moved.services[1].run(batches.last_commit(plan.query, STAGE)) == commit


def test_what_a_sink_has_read_is_said_with_the_edges_of_the_new_run():
    from support.stored_states import plan

    new = with_shards(plan(), 3)
    every = '{"every-0.0":[40,7],"every-1.0":[41,6]}'
    text = f'v1\n{{"batchWatermarkMs":0}}\n{every}\n-\n{{"alone-0.0":[3,9]}}\n{every}'
    found = moved_plan(text, new).splitlines()
    assert found[:2] == ["v1", '{"batchWatermarkMs":0}']
    assert found[2] == found[5] == '{"every-0.0": [0, 6], "every-1.0": [0, 6], "every-2.0": [0, 6]}'
    assert found[3] == "-"
    assert found[4] == '{"alone-0.0": [0, 9], "alone-1.0": [0, 9], "alone-2.0": [0, 9]}'

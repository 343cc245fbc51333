"""A pipeline with an operator of every kind, its shards with rows in them, and their checkpoints in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from holdfast.checkpoint import Stand, Tenure, claim, collect, fit_of, publish, take
from holdfast.checkpoint.head import HeadEntry
from holdfast.model.ids import Asset, shard_edge, shard_id
from holdfast.model.plan import InputPlan, OperatorPlan, Plan, StagePlan
from holdfast.model.topology import ShardSpec, StageSpec, Topology
from holdfast.operators import LEFT, RIGHT, Join, StateConfig
from holdfast.operators.build import build
from holdfast.runtime.shards import cut
from holdfast.store import LocalStore, run_alone
from support import oracle
from support.batches import SECOND
from support.mixed import mixed_rows
from support.small_checkpoints import now_ms

DEPLOYMENT = "states-1"
CONFIG = StateConfig(page_bytes=4096, limit_bytes=1 << 26)
SHARDS = 2
LEFT_COLUMNS = ("ts", "seq", "short", "i32", "v_long", "v_money")
#: Every aggregate, over types of every shape that a state has: name -> [function, column, ignore nulls].
EVERY: dict[str, list[Any]] = {"n": ["count", None, False]}
EVERY |= {
    f"{function}_{column}": [function, f"v_{column}", False]
    for column in ("i64", "f64", "long", "money", "when")
    for function in ("count", "min", "max", "first", "last")
}
EVERY |= {
    f"{function}_{column}": [function, f"v_{column}", False]
    for column in ("i64", "f64", "money")
    for function in ("sum", "avg", "stddev", "stddev_pop")
}
SOME: dict[str, list[Any]] = {
    "n": ["count", None, False], "total": ["sum", "v_i64", False], "most": ["max", "v_long", False],
    "mean": ["avg", "v_i32", False], "newest": ["last", "v_short", True],
}  # fmt: skip


def rows(count: int = 600, seed: int = 11) -> pa.Table:
    """Of every type, with nulls, in one minute, in the order of `seq`."""
    return mixed_rows(count, seed)


def side(table: pa.Table, which: int) -> pa.Table:
    """The rows that a join gets: the left side is the first half. The names of the right one are others."""
    half = len(table) // 2
    found = oracle.with_time(table).select(list(LEFT_COLUMNS)).slice(which * half, half)
    return found.rename_columns([f"r_{name}" for name in LEFT_COLUMNS]) if which == RIGHT else found


def _input(schema: pa.Schema, by: tuple[str, ...], time: str, which: int = LEFT) -> InputPlan:
    return InputPlan(
        source=f"in_{which}", schema=schema.serialize().to_pybytes(), by=by, event_time=time, side=which
    )  # fmt: skip


def operators() -> tuple[OperatorPlan, ...]:
    schema = oracle.with_time(rows(0)).schema

    def planned(name: str, kind: str, by: tuple[str, ...], **settings: Any) -> OperatorPlan:
        settings = {"by": list(by), "aggs": SOME, "overflow": "error", **settings}
        return OperatorPlan(
            name=name, kind=kind, shards=SHARDS, mode="passive", inputs=(_input(schema, by, "ts"),), settings=settings,
            output=b"",
        )  # fmt: skip

    sides = (
        _input(side(rows(0), LEFT).schema, ("short",), "ts"),
        _input(side(rows(0), RIGHT).schema, ("r_short",), "r_ts", RIGHT),
    )
    settings = {"on": [["short", "r_short"]], "how": "left_outer", "within": [0, 2 * SECOND]}
    tumbling = {"size_us": 10 * SECOND, "step_us": 10 * SECOND}
    return (
        planned("every", "aggregate", ("long", "flag"), aggs=EVERY, **tumbling),
        planned("sliding", "aggregate", ("short", "money"), size_us=9 * SECOND, step_us=6 * SECOND),
        planned("alone", "aggregate", (), **tumbling),
        planned("counted", "count_window", ("long",), size=6, step=4),
        planned("blocks", "count_window", ("long",), size=5, step=5),
        OperatorPlan(
            name="pairs", kind="join", shards=SHARDS, mode="passive", inputs=sides, settings=settings, output=b""
        ),
    )


def plan() -> Plan:
    found = operators()
    names = [shard_id(o.name, i) for o in found for i in range(o.shards)]
    shards = tuple(ShardSpec(id=name, inputs=(), outputs=(shard_edge(name),)) for name in names)
    stages = (StageSpec(id="sink", shards=(), query=DEPLOYMENT),)
    return Plan(
        pipeline="states", query=DEPLOYMENT, topology=Topology(shards=shards, stages=stages, readers=()),
        operators=found, stages=(StagePlan(id="sink", kind="sink", reads=tuple(o.name for o in found)),),
    )  # fmt: skip


class StoredRun:
    """The directory of a run (`plan.json`, `run.json`) and a store, with what its shards hold now."""

    def __init__(self, directory: Path, *, deployment: str = DEPLOYMENT) -> None:
        self.directory = directory
        self.deployment = deployment
        self.store = LocalStore(directory / "store")
        self.plan = msgspec.structs.replace(plan(), query=deployment)
        directory.mkdir(exist_ok=True)
        (directory / "plan.json").write_bytes(msgspec.json.encode(self.plan))
        (directory / "run.json").write_bytes(msgspec.json.encode({"settings": {"store": self.store.url}}))
        self.ops: dict[Asset, Any] = {}
        self.tenures: dict[Asset, Tenure] = {}

    def feed(self, name: str, table: pa.Table) -> None:
        """All shards of an operator get their rows, in order."""
        operator = self.plan.operator(name)
        for which, given in enumerate(operator.inputs):
            found = side(table, which) if operator.kind == "join" else oracle.with_time(table)
            (batch,) = found.combine_chunks().to_batches()
            for i, part in enumerate(cut(batch, given.by, SHARDS)):
                op = self.op(shard_id(name, i), operator)
                _ = op.process(which, part) if isinstance(op, Join) else op.process(part)

    def op(self, shard: Asset, operator: OperatorPlan) -> Any:
        return self.ops.setdefault(shard, build(operator, CONFIG))

    def checkpoint(self, shard: Asset) -> HeadEntry:
        if shard not in self.tenures:
            holder = f"n0#1.{shard}"
            self.tenures[shard] = run_alone(self.store, claim(shard, self.deployment, epoch=1, holder=holder))
        op = self.ops[shard]
        job = take(op, shard, Stand(epoch=1), fit_of(op, self.deployment), now_ms=now_ms)
        return run_alone(self.store, publish(self.tenures[shard], job))

    def checkpoint_all(self, name: str) -> None:
        for shard in self.shards(name):
            self.checkpoint(shard)

    def collect(self, shard: Asset, keep: int) -> None:
        run_alone(self.store, collect(self.tenures[shard], keep))

    def shards(self, name: str) -> list[Asset]:
        return [shard_id(name, i) for i in range(SHARDS)]

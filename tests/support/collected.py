"""Rows, a stage that collects them and the operator that they are for."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from holdfast.model.plan import InputPlan, OperatorPlan, Plan, StagePlan
from holdfast.model.topology import Topology
from holdfast.operators import FOREVER, build
from holdfast.spark.collect import Collector

TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [("ts", TIME), ("src", pa.string()), ("b", pa.int64()), ("i", pa.int32()), ("f", pa.float64()), ("d", pa.date32())]
)
AGGS = {
    "n": ["count", None, False], "nb": ["count", "b", False], "sb": ["sum", "b", False], "si": ["sum", "i", False],
    "sf": ["sum", "f", False], "ab": ["avg", "b", False], "af": ["avg", "f", False], "mi": ["min", "i", False],
    "md": ["max", "d", False], "mt": ["max", "ts", False],
}  # fmt: skip


def operator(name: str = "w", aggs: dict | None = None, **more) -> OperatorPlan:
    given = InputPlan(
        source="s", schema=SCHEMA.serialize().to_pybytes(), by=("src",), event_time="ts", partial=True, **more
    )
    settings = {
        "size_us": 10_000_000, "step_us": 1_000_000, "by": ["src"], "aggs": aggs or AGGS, "overflow": "wrap"
    }  # fmt: skip
    return OperatorPlan(
        name=name, kind="aggregate", shards=3, mode="passive", inputs=(given,), settings=settings, output=b""
    )


def rows(n: int = 5_000, keys: int = 50, seed: int = 1) -> pa.Table:
    rng = np.random.default_rng(seed)

    def nulls(values, type_):
        return pa.array(values, type_, mask=rng.random(n) < 0.05)

    columns = {
        "ts": nulls(rng.integers(-(10**8), 10**8, n), pa.int64()).cast(TIME),
        "src": nulls([f"k{x}" for x in rng.integers(0, keys, n)], pa.string()),
        "b": nulls(rng.integers(-(2**62), 2**62, n), pa.int64()),
        "i": nulls(rng.integers(-(2**31), 2**31 - 1, n), pa.int32()),
        "f": nulls(rng.normal(size=n), pa.float64()),
        "d": nulls(rng.integers(0, 20_000, n), pa.int32()).cast(pa.date32()),
    }
    return pa.table(columns, schema=SCHEMA)


def with_times(*micros: int, n: int = 300) -> pa.Table:
    """Good rows, and some at these times."""
    odd = rows(len(micros), seed=2)
    odd = odd.set_column(0, SCHEMA.field("ts"), pa.array(micros, pa.int64()).view(TIME))
    return pa.concat_tables([rows(n).filter(rows(n)["ts"].is_valid()), odd])


def with_key(value: str) -> pa.Table:
    """A few good rows, the first one with this key."""
    table = rows(10).filter(rows(10)["ts"].is_valid())
    keys = [value, *table["src"].to_pylist()[1:]]
    return table.set_column(1, SCHEMA.field("src"), pa.array(keys, pa.string()))


def collector(*operators: OperatorPlan, spark_rows_min: int = 1 << 60, **settings) -> Collector:
    stage = StagePlan(id="s", kind="source", feeds=tuple((o.name, 0) for o in operators), **settings)
    topology = Topology(shards=(), stages=(), readers=())
    plan = Plan(pipeline="p", query="q", topology=topology, operators=operators, stages=(stage,))
    return Collector(plan, stage, spark_rows_min)


def results(plan: OperatorPlan, batches: list[pa.RecordBatch]) -> pa.Table:
    op = build(plan)
    for batch in batches:
        if "pane_start" in batch.schema.names:
            op.process_partial(batch)
        else:
            op.process(batch)
    return op.on_watermark(FOREVER)


def assert_alike(one: pa.Table, other: pa.Table) -> None:
    assert one.num_rows == other.num_rows
    for name in one.column_names:
        a, b = one[name], other[name]
        if pa.types.is_floating(a.type):
            assert np.allclose(a.to_numpy(), b.to_numpy(), rtol=1e-9, equal_nan=True), name
        else:
            assert a.equals(b), name

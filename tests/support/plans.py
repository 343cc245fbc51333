"""Plans for real nodes without a pipeline's file: the shape of `layered`, with real operators."""

from __future__ import annotations

import pyarrow as pa
from msgspec.structs import replace

from holdfast.model.ids import Edge
from holdfast.model.plan import InputPlan, OperatorPlan, Plan, StagePlan
from holdfast.model.topology import StageSpec, Topology, layered
from holdfast.operators import StateConfig
from holdfast.operators.build import build

TIME = pa.timestamp("us", tz="UTC")
ROWS = pa.schema([pa.field("ts", TIME), pa.field("key", pa.int64()), pa.field("value", pa.int64())])
WINDOW_US = 100_000
TOP_WINDOW_US = 400_000


def _ipc(schema: pa.Schema) -> bytes:
    return schema.serialize().to_pybytes()


def aggregate_plan(
    name: str, sources: list[tuple[str, pa.Schema, str]], size_us: int, aggs: dict, shards: int = 1
) -> OperatorPlan:
    inputs = tuple(
        InputPlan(source=source, schema=_ipc(schema), by=("key",), event_time=event_time)
        for source, schema, event_time in sources
    )
    settings = {"size_us": size_us, "step_us": size_us, "by": ["key"], "aggs": aggs, "overflow": "error"}
    plan = OperatorPlan(
        name=name, kind="aggregate", shards=shards, mode="passive", inputs=inputs, settings=settings, output=b""
    )
    return replace(plan, output=_ipc(build(plan, StateConfig()).output_schema))


def layered_plan(
    shards: int = 4, tops: int = 1, stages: int = 1, delay_us: int = 20_000, window_us: int = WINDOW_US
) -> Plan:
    """Each shard counts and sums by key in short windows; each top shard does so over the results of two of them."""
    shape = layered(stages=stages, shards=shards, tops=tops)
    sources = [f"s{s}" for s in range(stages)]
    operators: list[OperatorPlan] = []
    first = {"n": ["count", None, False], "total": ["sum", "value", False]}
    for shard in range(shards):
        operators.append(aggregate_plan(f"u{shard}", [(s, ROWS, "ts") for s in sources], window_us, first))
    out = pa.ipc.read_schema(pa.py_buffer(operators[0].output))
    second = {"n": ["sum", "n", False], "total": ["sum", "total", False]}
    for top in range(tops):
        spec = shape.shard[f"v{top}"]
        below = [(edge.rpartition(".")[0], out, "window_time") for edge in spec.inputs]
        operators.append(aggregate_plan(spec.id, below, TOP_WINDOW_US, second))
    feeds = tuple(
        StageSpec(id=s.id, shards=s.shards, query=s.query, delay_ns=delay_us, tick_ns=1_000) for s in shape.stages
    )
    topology = Topology(
        shards=shape.shards, stages=(*feeds, StageSpec(id="r0", shards=(), query="query-r0")), readers=shape.readers
    )
    plans = [StagePlan(id=s, kind="source", feeds=tuple((f"u{u}", 0) for u in range(shards))) for s in sources]
    sink = StagePlan(id="r0", kind="sink", reads=tuple(o.name for o in operators))
    return Plan(
        pipeline="layered", query="layered-1", topology=topology, operators=tuple(operators), stages=(*plans, sink)
    )


def shard_of_edge(edge: Edge) -> str:
    return edge.rpartition(".")[0]

"""What of an old pipeline goes on in a new one, and what is refused: one row of a table each."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from holdfast.errors import ConfigError
from holdfast.model.ids import asset_id
from holdfast.model.plan import InputPlan, OperatorPlan, Plan, StagePlan
from holdfast.model.topology import Topology
from holdfast.pipeline.upgrades import match

TIME = pa.timestamp("us", tz="UTC")
ROWS = pa.schema([("ts", TIME), ("src", pa.string()), ("bytes", pa.int64())])
COUNT, SUM, MAX = ["count", None, False], ["sum", "bytes", False], ["max", "bytes", False]
SECOND = 1_000_000


def given(source: str = "talkers_in", schema: pa.Schema = ROWS, by: tuple[str, ...] = ("src",), side: int = 0):
    names = {f.name: f"r_{f.name}" for f in schema} if side else {}
    return InputPlan(
        source=source, schema=schema.serialize().to_pybytes(), by=by, event_time="ts", side=side, rename=names
    )  # fmt: skip


def windows(name: str = "talkers", shards: int = 4, *, source: InputPlan | None = None, **settings: Any):
    whole = {
        "size_us": 10 * SECOND, "step_us": SECOND, "by": ["src"], "aggs": {"n": COUNT, "total": SUM},
        "overflow": "error", **settings,
    }  # fmt: skip
    return OperatorPlan(
        name=name, kind="aggregate", shards=shards, mode="passive", inputs=(source or given(),), settings=whole,
        output=b"",
    )  # fmt: skip


def counted(name: str = "talkers", **settings: Any) -> OperatorPlan:
    whole = {"size": 6, "step": 3, "by": ["src"], "aggs": {"n": COUNT}, "overflow": "error", **settings}
    return OperatorPlan(
        name=name, kind="count_window", shards=2, mode="passive", inputs=(given(),), settings=whole, output=b""
    )


def join(left: pa.Schema = ROWS, **settings: Any) -> OperatorPlan:
    whole = {"on": [["src", "r_src"]], "how": "inner", "within": [0, SECOND], **settings}
    inputs = (given("a", left), given("b", side=1))
    return OperatorPlan(name="pairs", kind="join", shards=2, mode="passive", inputs=inputs, settings=whole, output=b"")


def source(id: str = "talkers_in", **more: Any) -> StagePlan:
    return StagePlan(id=asset_id(id), kind="source", **more)


def sink(id: str = "out_0", reads: tuple[str, ...] = ("talkers",)) -> StagePlan:
    return StagePlan(id=asset_id(id), kind="sink", reads=reads)


def plan(*operators: OperatorPlan, stages: tuple[StagePlan, ...] = (source(), sink())) -> Plan:
    topology = Topology(shards=(), stages=(), readers=())
    return Plan(pipeline="netmon", query="q", topology=topology, operators=operators, stages=stages)


OLD = plan(windows())
OTHER_TYPES = pa.schema([("ts", TIME), ("src", pa.int64()), ("bytes", pa.int64())])
SUM_OF_DOUBLES = pa.schema([("ts", TIME), ("src", pa.string()), ("bytes", pa.float64())])
MORE_COLUMNS = ROWS.append(pa.field("port", pa.int32()))


@pytest.mark.parametrize(
    "new",
    [
        pytest.param(OLD, id="nothing was changed"),
        pytest.param(plan(windows(shards=16)), id="more shards"),
        pytest.param(plan(windows(shards=1)), id="fewer shards"),
        pytest.param(plan(windows(overflow="wrap")), id="what does not fit wraps around"),
        pytest.param(plan(replace(windows(), mode="none")), id="another mode"),
        pytest.param(plan(windows(source=given(schema=MORE_COLUMNS))), id="a column more that no aggregate uses"),
        pytest.param(plan(windows(), stages=(source(delay_us=5), sink())), id="another watermark"),
        pytest.param(plan(windows(), stages=(source(), sink(), sink("more"))), id="a sink more"),
    ],
)
def test_goes_on_without_a_flag(new: Plan):
    found = match(OLD, new)
    assert (found.goes_on, found.widened, found.new, found.dropped) == ({"talkers": 4}, {}, (), ())


REFUSED: list[tuple[str, Plan, Plan, str]] = [
    ("another window", OLD, plan(windows(size_us=20 * SECOND)), "talkers.*length of its windows.*10000000.*20000000"),
    ("another step", OLD, plan(windows(step_us=2 * SECOND)), "talkers.*step of its windows"),
    ("another key", OLD, plan(windows(by=["src", "bytes"])), "talkers.*its key was"),
    ("another type of the key", OLD, plan(windows(source=given(schema=OTHER_TYPES))), "column src was string.*int64"),
    ("another type of a sum", OLD, plan(windows(source=given(schema=SUM_OF_DOUBLES))), "aggregate total was of type"),
    ("another aggregate", OLD, plan(windows(aggs={"n": COUNT, "total": MAX})), r"total was sum\(bytes\).*max\(bytes\)"),
    ("an aggregate more", OLD, plan(windows(aggs={"n": COUNT, "total": SUM, "m": MAX})), "talkers: aggregate m is new"),
    ("an aggregate fewer", OLD, plan(windows(aggs={"n": COUNT})), "talkers: aggregate total of the savepoint"),
    ("another kind", OLD, plan(counted()), "talkers.*of kind aggregate.*count_window"),
    (
        "another source",
        OLD,
        plan(windows(source=given("b")), stages=(source("b"), sink())),
        "fed by talkers_in, now by b",
    ),
    ("a new operator", OLD, plan(windows(), windows("more")), "operator more is not in the savepoint"),
    ("a dropped operator", plan(windows(), windows("more")), OLD, "operator more of the savepoint"),
    ("a renamed operator", OLD, plan(windows("speakers")), "no operator in common"),
    ("a new source", OLD, plan(windows(), stages=(source(), source("b"), sink())), "source b is not in the savepoint"),
    ("a dropped sink", OLD, plan(windows(), stages=(source(),)), "sink out_0 of the savepoint"),
    ("a sink of others", OLD, plan(windows(), stages=(source(), sink(reads=("x",)))), "out_0 reads other operators"),
    ("count: another length", plan(counted()), plan(counted(size=9)), "length of its windows"),
    ("join: another interval", plan(join()), plan(join(within=[0, 2 * SECOND])), "pairs.*interval"),
    ("join: another kind", plan(join()), plan(join(how="left_outer")), "pairs.*kind of join"),
    ("join: another condition", plan(join()), plan(join(where=["x"])), "pairs.*condition"),
    ("join: a column more", plan(join()), plan(join(MORE_COLUMNS)), "pairs.*columns ts, src, bytes, now"),
]


@pytest.mark.parametrize(("old", "new", "said"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_is_refused_and_says_what_differs(old: Plan, new: Plan, said: str):
    with pytest.raises(ConfigError) as told:
        match(old, new)
    import re

    text = f"{told.value.what} {told.value.detail}"
    assert re.search(said, text), text
    assert told.value.hint


def test_new_ones_start_empty_if_that_is_allowed():
    new = plan(windows(), windows("more", source=given("b")), stages=(source(), source("b"), sink()))
    found = match(OLD, new, allow_new=True)
    assert (found.goes_on, found.new, found.new_stages) == ({"talkers": 4}, ("more",), ("b",))
    assert "more is new and starts empty" in list(found.texts(new))


def test_dropped_ones_are_left_behind_if_that_is_allowed():
    old = plan(windows(), windows("more"), stages=(source(), sink(), sink("out_1", ("more",))))
    found = match(old, OLD, drop=True)
    assert (found.dropped, found.dropped_stages) == (("more",), ("out_1",))


def test_an_aggregate_that_is_new_needs_a_default_and_gets_it():
    new = plan(windows(shards=2, aggs={"most": MAX, "n": COUNT, "total": SUM}))
    found = match(OLD, new, defaults={("talkers", "most"): "0"})
    assert found.widened == {"talkers": ("most",)}
    assert list(found.texts(new)) == [
        "talkers goes on with its state, cut anew from 4 shards into 2; most begin with their defaults"
    ]


def test_aggregates_in_another_order_are_moved():
    found = match(OLD, plan(windows(aggs={"total": SUM, "n": COUNT})))
    assert found.widened == {"talkers": ()}


def test_a_default_of_an_aggregate_that_is_not_new_is_refused():
    with pytest.raises(ConfigError, match="not new in talkers"):
        match(OLD, OLD, defaults={("talkers", "n"): "0"})

"""Operators from a plan: what nodes build shards from, and what the planner checks a pipeline with. One code path.

`settings` of an OperatorPlan, by kind (plain data; names as the operator sees them, after `InputPlan.rename`):

    aggregate      size_us, step_us, by, aggs {name: [function, column or None, ignore_nulls]}, overflow
    count_window   size, step (rows), by, aggs, overflow (error: a result that does not fit is set aside; wrap)
    join           on [[left, right], …], how, within [after_us, before_us] or same_window (us), where (see `where.py`)
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import ConfigError
from holdfast.model.plan import InputPlan, OperatorPlan
from holdfast.operators.aggregate import Window, WindowAggregate
from holdfast.operators.aggregates import Agg
from holdfast.operators.aside import ASIDE, ERROR
from holdfast.operators.count_window import CountWindow, CountWindowAggregate
from holdfast.operators.join import Join, SameWindow, Within
from holdfast.operators.operator import StateConfig
from holdfast.operators.where import predicate

WINDOW_TIME = "window_time"
WINDOW_END = "window_end"


def build(
    plan: OperatorPlan, config: StateConfig | None = None, *, name: str | None = None
) -> WindowAggregate | CountWindowAggregate | Join:
    """The operator of one shard, which is its `name`. All shards of an operator are built alike."""
    s = plan.settings
    name = name or plan.name
    if plan.kind == "join":
        sides = [next(i for i in plan.inputs if i.side == side) for side in (0, 1)]
        left, right = (rows_schema(side) for side in sides)
        window = SameWindow(s["same_window"]) if s.get("same_window") else Within(*s["within"])
        return Join(
            name,
            left,
            right,
            times=(_event_time(sides[0]), _event_time(sides[1])),
            on=[(a, b) for a, b in s["on"]],
            window=window,
            how=s["how"],
            predicate=predicate(s["where"], pa.schema([*left, *right]), plan.name) if s.get("where") else None,
            config=config,
        )
    aggs = {name: Agg(function, column, nulls) for name, (function, column, nulls) in s["aggs"].items()}
    schema = rows_schema(plan.inputs[0])
    if plan.kind == "count_window":
        return CountWindowAggregate(
            name,
            schema,
            window=CountWindow(s["size"], s["step"]),
            by=list(s["by"]),
            aggs=aggs,
            overflow=ASIDE if s["overflow"] == ERROR else s["overflow"],
            config=config,
        )
    if plan.kind != "aggregate":
        raise ConfigError(f"{plan.name}: no operator of kind {plan.kind!r}")
    return WindowAggregate(
        name,
        schema,
        event_time=_event_time(plan.inputs[0]),
        window=Window(s["size_us"], s["step_us"]),
        by=list(s["by"]),
        aggs=aggs,
        overflow=ASIDE if s["overflow"] == ERROR else s["overflow"],
        config=config,
    )


def _event_time(plan: InputPlan) -> str:
    return plan.rename.get(plan.event_time, plan.event_time)


def wire_schema(plan: InputPlan) -> pa.Schema:
    """Columns as they cross the edge, when rows do."""
    return pa.ipc.read_schema(pa.py_buffer(plan.schema))


def rows_schema(plan: InputPlan) -> pa.Schema:
    """Columns as the operator gets them: what `rows_in` makes of a batch."""
    schema = wire_schema(plan)
    if plan.event_time == WINDOW_TIME and WINDOW_TIME not in schema.names:
        schema = schema.append(pa.field(WINDOW_TIME, schema.field(WINDOW_END).type))
    return pa.schema([pa.field(plan.rename.get(f.name, f.name), f.type) for f in schema])


def rows_in(plan: InputPlan, batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch from an edge as the operator wants it: `window_time` derived, columns renamed. Partials pass."""
    if plan.partial and "pane_start" in batch.schema.names:
        return batch
    if plan.event_time == WINDOW_TIME and WINDOW_TIME not in batch.schema.names:
        ends = batch.column(WINDOW_END)
        times = pc.subtract(ends.view(pa.int64()), 1).view(ends.type)  # pyright: ignore[reportAttributeAccessIssue]
        batch = batch.append_column(pa.field(WINDOW_TIME, ends.type), times)
    if plan.rename:
        batch = batch.rename_columns([plan.rename.get(name, name) for name in batch.schema.names])
    return batch

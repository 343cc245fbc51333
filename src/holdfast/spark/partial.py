"""Pre-aggregation of a collected batch by (pane, key), in Arrow: the columns of `WindowAggregate.partial_sql`.

Measured (docs/spark/costs.md): collecting 20,000 rows and grouping them here takes 32 ms, grouping them in Spark 68 ms,
since Spark plans, shuffles and runs a second stage for it; and at 200,000 rows it is 122 against 190-210 ms. Spark
is for batches that should not be collected whole.

Only what Arrow computes exactly as the shards would: counts, sums and averages of integers, sums of doubles, extremes
of integers, dates and times. For anything else `possible` is false, and the rows go as they are. Groups that Arrow
keeps apart (0.0 and -0.0) are merged by the shard.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.operators import WindowAggregate
from holdfast.operators.aggregates import AverageFloat, AverageWide, Count, Extreme, SumFloat, SumWide
from holdfast.operators.columns import Column

_LOW = pa.scalar(0xFFFFFFFF, pa.int64())
_SHIFT = pa.scalar(32, pa.int64())


class PartialAggregate:
    """Groups batches for one operator."""

    def __init__(self, op: WindowAggregate) -> None:
        self.time = op.time
        self.pane_us = op.window.pane_us
        self.keys = [k.name for k in op.keys]
        #: (output column, its type, input column or None, how to prepare it, Arrow's aggregate)
        self.parts: list[tuple[str, pa.DataType, str | None, str, str]] = []
        self.possible = not op.program.needs_rows()
        for name, agg, function in zip(op.program.names, op.program.aggs, op.program.functions, strict=True):
            for suffix, _, type_ in function.partial:
                how = _how(function, suffix)
                if how is None:
                    self.possible = False
                else:
                    self.parts.append((f"{name}__{suffix}", type_, agg.column, *how))

    def __call__(self, table: pa.Table) -> pa.Table:
        """One row per pane and key. Rows must have an event time."""
        times = table.column(self.time.name).combine_chunks().view(pa.int64()).to_numpy(zero_copy_only=False)
        panes = pa.array(times - np.mod(times, self.pane_us)).view(self.time.type)
        columns: dict[str, Any] = {"pane_start": panes, **{k: table.column(k) for k in self.keys}}
        wanted: list[tuple[Any, str]] = []
        for i, (_, _, column, prepare, aggregate) in enumerate(self.parts):
            if column is None:
                wanted.append(([], aggregate))
                continue
            columns[f"part {i}"] = _prepare(table.column(column), prepare)
            wanted.append((f"part {i}", aggregate))
        made = pa.table(columns).group_by(["pane_start", *self.keys]).aggregate(wanted)
        out = [made.column("pane_start"), *(made.column(k) for k in self.keys)]
        names = ["pane_start", *self.keys]
        for i, (name, type_, column, _, aggregate) in enumerate(self.parts):
            found = made.column(aggregate if column is None else f"part {i}_{aggregate}")
            out.append(found if found.type == type_ else found.cast(type_))
            names.append(name)
        return pa.table(dict(zip(names, out, strict=True)))


def _how(function: Any, suffix: str) -> tuple[str, str] | None:
    """(preparation, Arrow's aggregate) for one column of a partial aggregate; None: not here."""
    if isinstance(function, Count):
        return ("as it is", "count_all" if function.partial[0][1] == "count(1)" else "count")
    if isinstance(function, SumWide | AverageWide):
        if not function.column.is_integral:
            return None
        if suffix == "count":
            return ("as it is", "count")
        return {"high": ("high", "sum"), "low": ("low", "sum"), "sum": ("long", "sum")}.get(suffix)
    if isinstance(function, SumFloat | AverageFloat):
        return ("as it is", "count") if suffix == "count" else ("double", "sum")
    if isinstance(function, Extreme) and _is_ordered(function.column):
        return ("as it is", suffix)
    return None


def _is_ordered(column: Column) -> bool:
    """Arrow's order of it is Spark's: not that of doubles (NaN) nor of what Arrow cannot compare in groups."""
    return column.is_integral or pa.types.is_timestamp(column.type) or pa.types.is_date32(column.type)


def _prepare(array: Any, how: str) -> Any:
    if how == "high":
        return pc.shift_right(array, _SHIFT)  # pyright: ignore[reportAttributeAccessIssue]
    if how == "low":
        return pc.bit_wise_and(array, _LOW)  # pyright: ignore[reportAttributeAccessIssue]
    if how == "long":
        return array.cast(pa.int64())
    return array.cast(pa.float64()) if how == "double" else array

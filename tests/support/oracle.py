"""Spark in batch as the oracle: the same rows into an operator and into Spark SQL, and both results side by side.

Event times travel as `ts_us` (bigint), because Python knows no year beyond 9999; Spark makes timestamps of them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.operators import FOREVER, Agg, Window, WindowAggregate
from support.batches import TIME

#: Doubles may differ by this much: Spark adds in another order.
TOLERANCE = 1e-9


def with_time(table: pa.Table) -> pa.Table:
    """`ts_us` as the timestamp `ts`, first."""
    return table.add_column(0, "ts", table.column("ts_us").cast(pa.int64()).cast(TIME))


def view(spark: Any, table: pa.Table, name: str) -> None:
    """A temporary view of a table in Spark, with `ts` made of `ts_us`."""
    df = spark.createDataFrame(table)
    if "ts_us" in table.column_names:
        df = df.selectExpr("*", "timestamp_micros(ts_us) as ts")
    df.createOrReplaceTempView(name)


def feed(
    op: WindowAggregate, table: pa.Table, seed: int, *, batches: int = 12, lateness_us: int = 3_000_000
) -> pa.Table:
    """All output of an operator that gets the rows out of order, in batches, with watermarks as high as they may be.

    Some watermarks jump over many windows, some batches are empty, and arrays are slices of larger ones. Checks on the
    way that only closed windows come out, in the order of their ends.
    """
    rng = random.Random(seed)
    order, floor = _disorder(table, rng, lateness_us)
    (whole,) = with_time(table).take(pa.array(order)).combine_chunks().to_batches()
    cuts = sorted(rng.randrange(len(order) + 1) for _ in range(batches - 1))
    out: list[pa.Table] = []
    for start, stop in zip([0, *cuts], [*cuts, len(order)], strict=True):
        op.process(whole.slice(start, stop - start))
        if rng.random() < 0.7:
            out.append(_close(op, int(floor[stop]) - rng.choice([0, 0, 1, 500_000])))
    out.append(_close(op, FOREVER))
    assert len(op.state) == 0, "nothing is left after the last watermark"
    return pa.concat_tables(out)


def _disorder(table: pa.Table, rng: random.Random, lateness_us: int) -> tuple[np.ndarray, np.ndarray]:
    """An order in which no row comes later than allowed, and for each place the lowest time still to come."""
    times = table.column("ts_us").fill_null(0).to_numpy()
    noise = np.array([rng.randrange(lateness_us + 1) for _ in range(len(times))], np.int64)
    order = np.argsort(np.clip(times, -(2**62), 2**62) + noise, kind="stable")
    has = table.column("ts_us").is_valid().to_numpy(zero_copy_only=False)[order]
    ahead = np.where(has, times[order], FOREVER)
    floor = np.append(np.minimum.accumulate(ahead[::-1])[::-1], FOREVER)
    return order, np.minimum(floor, 2**62)


def _close(op: WindowAggregate, watermark: int) -> pa.Table:
    before = op.watermark
    table = op.on_watermark(watermark)
    if table.num_rows:
        ends = table.column("window_end").cast(pa.int64()).to_numpy()
        assert (np.diff(ends) >= 0).all(), "windows close in the order of their ends"
        assert before < ends.min()
        assert ends.max() <= watermark
    return table


def windows_sql(window: Window, keys: Sequence[str], aggs: dict[str, str], source: str) -> str:
    """Spark's own windowed aggregate of a view."""
    columns = "".join(f", `{k}`" for k in keys)
    results = ", ".join(f"{sql} as `{name}`" for name, sql in aggs.items())
    w = f"window(ts, '{window.size_us} microseconds', '{window.step_us} microseconds')"
    return (
        f"select unix_micros(w.start) as window_start, unix_micros(w.end) as window_end{columns}, {results} "
        f"from (select {w} as w, * from {source}) group by w{columns}"
    )


def spark_sql_of(agg: Agg) -> str:
    """An aggregate as Spark SQL; first and last by the column `seq`."""
    if agg.function in ("first", "last"):
        pick = "min_by" if agg.function == "first" else "max_by"
        where = f" filter (where `{agg.column}` is not null)" if agg.ignore_nulls else ""
        return f"{pick}(named_struct('x', `{agg.column}`), seq){where}.x"
    if agg.function == "count":
        return f"count(`{agg.column}`)" if agg.column else "count(1)"
    return f"{agg.function}(`{agg.column}`)"


def assert_same(ours: pa.Table, theirs: pa.Table, by: Sequence[str], *, slack: float = 0.0) -> None:
    """Equal row for row, in whatever order; `by` names columns that are unique together.

    Doubles may differ by TOLERANCE of their size, or by `slack` (for sums in which large numbers cancel).
    """
    assert ours.column_names == theirs.column_names
    assert ours.num_rows == theirs.num_rows
    ours, theirs = _ordered(ours, by), _ordered(theirs, by)
    for name in ours.column_names:
        a, b = ours.column(name), theirs.column(name)
        assert a.type == b.type, f"{name} is {a.type}, in Spark {b.type}"
        same = _same(a, b, slack)
        if not same.all():
            row = int((~same).argmax())
            raise AssertionError(
                f"{name} differs in {int((~same).sum())} of {len(same)} rows: "
                f"ours {ours.slice(row, 1).to_pylist()}, Spark's {theirs.slice(row, 1).to_pylist()}"
            )


def _ordered(table: pa.Table, by: Sequence[str]) -> pa.Table:
    columns = []
    for column in table.columns:
        column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.int64())
        columns.append(column)
    table = pa.table(columns, names=table.column_names)
    return table.take(pc.sort_indices(_sortable(table, by), [(k, "ascending") for k in by])) if by else table


def _sortable(table: pa.Table, by: Sequence[str]) -> pa.Table:
    """Floats in a key may be -0.0 or NaN: sort them by what groups them."""
    columns = {}
    for name in by:
        column = table.column(name)
        if pa.types.is_floating(column.type):
            column = pc.add(column, pa.scalar(0.0, column.type))
        elif pa.types.is_binary(column.type) or pa.types.is_boolean(column.type):
            column = column.cast(pa.large_binary() if pa.types.is_binary(column.type) else pa.int8())
        columns[name] = column
    return pa.table(columns)


def _same(a: pa.ChunkedArray, b: pa.ChunkedArray, slack: float) -> np.ndarray:
    null_a, null_b = (x.is_null().to_numpy(zero_copy_only=False) for x in (a, b))
    if pa.types.is_floating(a.type):
        x, y = (v.fill_null(0).to_numpy().astype(np.float64) for v in (a, b))
        values = np.isclose(x, y, rtol=TOLERANCE, atol=slack, equal_nan=True)
    else:
        values = pc.fill_null(pc.equal(a, b), True).to_numpy(zero_copy_only=False)
    return (null_a == null_b) & (null_a | values)


def sorted_rows(table: pa.Table) -> list[tuple]:
    """All rows as comparable tuples, sorted: for results that may hold the same row twice."""
    from support.batches import rows

    return sorted(rows(table), key=repr)

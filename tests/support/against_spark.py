"""Operators as the tests against Spark build and feed them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from holdfast.operators import FOREVER, LEFT, RIGHT, Agg, Join, Window, WindowAggregate
from support import oracle
from support.batches import SECOND

WINDOWS = {
    "tumbling": Window(10 * SECOND, 10 * SECOND),
    "sliding": Window(10 * SECOND, SECOND),
    "step that does not divide the size": Window(10 * SECOND, 3 * SECOND),
    "odd microseconds": Window(7_000_001, 7_000_001),
}


def aggregate(table: pa.Table, window: Window, by: list[str], aggs: dict[str, Agg], **more) -> WindowAggregate:
    schema = oracle.with_time(table.slice(0, 0)).schema
    return WindowAggregate("w", schema, event_time="ts", window=window, by=by, aggs=aggs, **more)


def expected(spark, window: Window, by: list[str], aggs: dict[str, Agg], source: str) -> pa.Table:
    sql = {name: oracle.spark_sql_of(agg) for name, agg in aggs.items()}
    return spark.sql(oracle.windows_sql(window, by, sql, source)).toArrow()


def run_join(op: Join, tables: list[pa.Table], *, batch: int = 60) -> list[pa.Table]:
    """Both sides in the order of time, in turns, with watermarks as high as they may be; side by side at the end."""
    ordered = []
    for table in tables:
        times = table.column(0).cast(pa.int64()).fill_null(-(2**60)).to_numpy()
        ordered.append(table.take(pa.array(np.argsort(times, kind="stable"))))
    out: list[pa.Table] = []
    at = [0, 0]
    while any(a < len(t) for a, t in zip(at, ordered, strict=True)):
        for which in (LEFT, RIGHT):
            part = ordered[which].slice(at[which], batch).combine_chunks()
            out += [op.process(which, p) for p in part.to_batches()]
            at[which] += batch
            rest = ordered[which].column(0).slice(at[which], 1).cast(pa.int64()).to_pylist()
            if not rest or rest[0] is not None:
                out.append(op.on_watermark(which, rest[0] if rest else FOREVER))
    for which in (LEFT, RIGHT):
        out.append(op.on_watermark(which, FOREVER))
    assert len(op) == 0, "nothing waits after the last watermark"
    return out

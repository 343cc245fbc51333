"""Joins against Spark SQL in batch on the same rows: equal results, row for row."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support import oracle
from support.against_spark import run_join
from support.batches import TIME
from support.mixed import mixed_rows

from holdfast.operators import (
    Join,
    SameWindow,
    Within,
)

pytestmark = pytest.mark.spark


def two_sides(n: int) -> tuple[pa.Table, pa.Table]:
    """Rows with few keys, so that many match; also null, NaN and -0.0 keys, null times, and rows that come twice."""
    sides = []
    for prefix, seed in (("l_", 1), ("r_", 2)):
        table = mixed_rows(n, seed, first_us=-5_000_000, span_us=10_000_000)
        table = table.select(["ts_us", "f64", "long", "i32", "money", "v_i8"]).rename_columns(
            [prefix + c for c in ("us", "f", "s", "i", "d", "v")]
        )
        sides.append(pa.concat_tables([table, table.slice(0, n // 10)]))
    return sides[0], sides[1]


@pytest.fixture(scope="module")
def sides(spark):
    left, right = two_sides(400)
    for name, prefix, table in (("lefts", "l_", left), ("rights", "r_", right)):
        df = spark.createDataFrame(table).selectExpr(f"timestamp_micros({prefix}us) as {prefix}ts", "*")
        df.drop(f"{prefix}us").createOrReplaceTempView(name)
        spark.sql(f"cache table {name}")
    return left, right


def smaller(pairs: pa.RecordBatch) -> pa.BooleanArray:
    return pc.less(pairs.column("l_v"), pairs.column("r_v"))


@pytest.mark.parametrize("predicate", [None, smaller], ids=["keys only", "predicate"])
@pytest.mark.parametrize("how", ["inner", "left_outer"])
@pytest.mark.parametrize(
    "window",
    [Within(0, 1_000_000), Within(-700_000, 300_000), Within(-900_000, -200_000), SameWindow(1_500_000)],
    ids=str,
)
def test_joins_match_what_spark_matches(spark, sides, window, how, predicate):
    tables = [t.set_column(0, p + "ts", t.column(0).cast(TIME)) for t, p in zip(sides, ("l_", "r_"), strict=True)]
    op = Join(
        "j",
        tables[0].schema,
        tables[1].schema,
        times=("l_ts", "r_ts"),
        on=[("l_f", "r_f"), ("l_s", "r_s")],
        window=window,
        how=how,
        predicate=predicate,
    )
    ours = pa.concat_tables(run_join(op, tables))
    source, on = ("lefts", "l_f = r_f and l_s = r_s"), ""
    if isinstance(window, Within):
        micros = "unix_micros(r_ts) - unix_micros(l_ts)"
        on = f" and {micros} between {window.after_us} and {window.before_us}"
    else:
        size = window.size_us
        on = f" and floor(unix_micros(l_ts) / {size}) = floor(unix_micros(r_ts) / {size})"
        source = ("(select * from lefts where l_ts is not null)", source[1])
    if predicate is not None:
        on += " and l_v < r_v"
    kind = "left outer" if how == "left_outer" else "inner"
    theirs = spark.sql(f"select * from {source[0]} {kind} join rights on {source[1]}{on}").toArrow()
    assert theirs.num_rows > 50
    assert ours.schema.names == theirs.schema.names
    assert oracle.sorted_rows(ours) == oracle.sorted_rows(theirs)

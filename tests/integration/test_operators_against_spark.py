"""Every operator against Spark SQL in batch on the same rows: equal results, row for row.

Doubles may differ by one part in a thousand million (`oracle.TOLERANCE`): Spark adds them in another order.
"""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from support import oracle
from support.against_spark import WINDOWS, aggregate, expected
from support.batches import SECOND, TIME, rows
from support.mixed import COLUMNS, NUMBERS, mixed_rows

from holdfast.errors import InputError, OverflowInWindowError
from holdfast.operators import (
    FOREVER,
    Agg,
    CountWindow,
    CountWindowAggregate,
    Union,
    Window,
)

pytestmark = pytest.mark.spark

MIXES = {
    "no key": [],
    "integers": ["i8", "i16", "i32", "i64"],
    "floats": ["f32", "f64"],
    "strings": ["short", "long"],
    "binary, boolean and times": ["bin", "flag", "when", "day"],
    "decimals and a string": ["money", "exact", "short"],
}

#: Every aggregate over every type that has it.
ALL: dict[str, Agg] = {"rows": Agg("count")}
for _name in COLUMNS:
    ALL[f"count_{_name}"] = Agg("count", f"v_{_name}")
    for _function in ("min", "max"):
        ALL[f"{_function}_{_name}"] = Agg(_function, f"v_{_name}")
for _name in NUMBERS:
    for _function in ("sum", "avg", "stddev", "stddev_pop"):
        ALL[f"{_function}_{_name}"] = Agg(_function, f"v_{_name}")
PICKS: dict[str, Agg] = {}
for _name in COLUMNS:
    PICKS[f"first_{_name}"] = Agg("first", f"v_{_name}")
    PICKS[f"last_{_name}"] = Agg("last", f"v_{_name}")
    PICKS[f"first_some_{_name}"] = Agg("first", f"v_{_name}", ignore_nulls=True)
    PICKS[f"last_some_{_name}"] = Agg("last", f"v_{_name}", ignore_nulls=True)


@pytest.fixture(scope="module")
def mixed(spark):
    """Rows of all types, as a table and as the view `mixed`."""
    table = mixed_rows(1500, seed=7)
    oracle.view(spark, table, "mixed")
    spark.sql("cache table mixed")
    return table


def check(spark, table: pa.Table, window: Window, by: list[str], aggs: dict[str, Agg], source: str, **more) -> None:
    ours = oracle.feed(aggregate(table, window, by, aggs), table, seed=len(by), **more)
    oracle.assert_same(ours, expected(spark, window, by, aggs, source), ["window_start", *by], slack=1e-6)


# -- time windows ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
def test_every_aggregate_of_every_type_is_what_spark_computes(spark, mixed, window):
    check(spark, mixed, window, ["short"], ALL, "mixed")


@pytest.mark.parametrize("by", MIXES.values(), ids=MIXES)
@pytest.mark.parametrize("window", list(WINDOWS.values())[1:3], ids=list(WINDOWS)[1:3])
def test_rows_are_grouped_by_any_mix_of_types_as_spark_groups_them(spark, mixed, window, by):
    aggs = {"rows": Agg("count"), "total": Agg("sum", "v_i32"), "most": Agg("max", "v_long")}
    check(spark, mixed, window, by, aggs, "mixed")


@pytest.mark.parametrize("window", [WINDOWS["tumbling"], WINDOWS["step that does not divide the size"]], ids=str)
def test_first_and_last_go_by_arrival(spark, mixed, window):
    """Rows in the order of `seq`, all before the first watermark: Spark orders by that column."""
    op = aggregate(mixed, window, ["flag"], PICKS)
    table = oracle.with_time(mixed)
    for start in range(0, len(table), 400):
        for piece in table.slice(start, 400).to_batches():
            op.process(piece)
    ours = op.on_watermark(FOREVER)
    oracle.assert_same(ours, expected(spark, window, ["flag"], PICKS, "mixed"), ["window_start", "flag"])


def test_rows_before_the_epoch_and_at_the_ends_of_time_fall_into_sparks_windows(spark):
    year_1, year_9999 = -62_135_596_800_000_000, 253_402_300_799_999_999
    far = 150_000 * 366 * 86_400 * SECOND  # the year 150,000, which only a bigint can name
    times = [year_1, year_1 + 1, -far, far, -1, 0, 1, -10 * SECOND, -10 * SECOND - 1, year_9999, year_9999 - 1, None]
    table = pa.table({"ts_us": pa.array(times, pa.int64()), "seq": pa.array(range(len(times)), pa.int64())})
    oracle.view(spark, table, "far")
    for window in WINDOWS.values():
        check(spark, table, window, [], {"rows": Agg("count"), "seq": Agg("sum", "seq")}, "far", lateness_us=0)


@pytest.mark.parametrize("time", [2**63 - 1, -(2**63), 2**63 - 15 * SECOND])
def test_a_time_whose_window_64_bits_cannot_hold_is_an_error_here_and_nonsense_or_an_error_in_spark(time):
    table = pa.table({"ts_us": pa.array([0, time], pa.int64())})
    op = aggregate(table, WINDOWS["sliding"], [], {"rows": Agg("count")})
    (piece,) = oracle.with_time(table).to_batches()
    with pytest.raises(InputError) as caught:
        op.process(piece)
    assert caught.value.what == "w: an event time is out of range"
    assert caught.value.detail == f"Row 1: {time} us; its window would end outside 64 bits."
    assert op.on_watermark(FOREVER).num_rows == 0


def test_windows_of_one_microsecond_hold_one_row_each(spark):
    table = pa.table({"ts_us": pa.array(range(-500, 500), pa.int64()), "seq": pa.array(range(1000), pa.int64())})
    oracle.view(spark, table, "dense")
    aggs = {"rows": Agg("count"), "seq": Agg("max", "seq")}
    check(spark, table, Window(1, 1), [], aggs, "dense", lateness_us=10)
    check(spark, table, Window(3, 2), [], aggs, "dense", lateness_us=10)


def test_a_million_groups_and_a_single_one(spark):
    n = 1_000_000
    table = pa.table(
        {
            "ts_us": pa.array(np.arange(n) % (20 * SECOND), pa.int64()),
            "seq": pa.array(np.arange(n)),
            "v": pa.array(np.arange(n) * 7919 % 1009),
        }
    )
    spark.range(n).selectExpr(
        "timestamp_micros(id % 20000000) as ts", "id as seq", "id * 7919 % 1009 as v"
    ).createOrReplaceTempView("million")
    aggs = {"rows": Agg("count"), "total": Agg("sum", "v"), "mean": Agg("avg", "v")}
    for by in (["seq"], []):
        op = aggregate(table, WINDOWS["tumbling"], by, aggs)
        for piece in oracle.with_time(table).to_batches(max_chunksize=200_000):
            op.process(piece)
        theirs = expected(spark, WINDOWS["tumbling"], by, aggs, "million")
        oracle.assert_same(op.on_watermark(FOREVER), theirs, ["window_start", *by])


# -- numbers --------------------------------------------------------------------------------------------------------


def one_group(values: list, type_: pa.DataType) -> pa.Table:
    n = len(values)
    return pa.table({"ts_us": pa.array([0] * n, pa.int64()), "v": pa.array(values, type_)})


def ours_and_sparks(spark, table: pa.Table, aggs: dict[str, Agg], overflow: str) -> tuple[list[tuple], list[tuple]]:
    oracle.view(spark, table, "one_group")
    window = WINDOWS["tumbling"]
    op = aggregate(table, window, [], aggs, overflow=overflow)
    return rows(oracle.feed(op, table, 1)), rows(expected(spark, window, [], aggs, "one_group"))


LONGS = [
    [2**63 - 1, 1],
    [-(2**63), -1],
    [2**63 - 1] * 5,
    [-(2**63)] * 4,
    [2**62] * 4 + [7],
]


@pytest.mark.parametrize("values", LONGS, ids=str)
def test_a_sum_of_bigints_that_overflows_is_an_error_as_in_ansi_mode(spark, values):
    table = one_group(values, pa.int64())
    with pytest.raises(OverflowInWindowError, match="total does not fit bigint"):
        oracle.feed(aggregate(table, WINDOWS["tumbling"], [], {"total": Agg("sum", "v")}), table, 1)
    oracle.view(spark, table, "one_group")
    with pytest.raises(Exception, match="ARITHMETIC_OVERFLOW"):
        spark.sql("select sum(v) from one_group").collect()


@pytest.fixture
def without_ansi(spark):
    spark.conf.set("spark.sql.ansi.enabled", "false")
    yield
    spark.conf.unset("spark.sql.ansi.enabled")


@pytest.mark.parametrize("values", LONGS, ids=str)
def test_a_sum_of_bigints_wraps_as_in_spark_without_ansi(spark, without_ansi, values):
    ours, theirs = ours_and_sparks(spark, one_group(values, pa.int64()), {"total": Agg("sum", "v")}, "wrap")
    assert ours == theirs


DECIMALS = {
    "half up": ((10, 2), ["0.01", "0.02", "0.02", "0.00", "0.01", "0.01", "0.03"]),
    "half up, below zero": ((10, 2), ["-0.01", "-0.02", "-0.02", "0.00", "-0.01", "-0.01", "-0.03"]),
    "thirds": ((20, 4), ["0.0001", "0.0001", "0.0000"]),
    "a tie": ((10, 0), ["1", "2"] + ["0"] * 59_998),
    "18 digits after the point": ((38, 18), ["12345678901234567890.123456789012345678", "-0.000000000000000001", "1"]),
    "rounded twice": ((38, 34), ["0.0000000000000000000000000000000099"] + ["0"] * 1999),
    "rounded twice at 37": ((38, 33), ["0.00000000000000000000000000000099"] + ["0"] * 1999),
    "largest that fits": ((38, 4), ["9999999999999999999999999999999999.9999"]),
    "smallest that fits": ((38, 4), ["-9999999999999999999999999999999999.9999"]),
    "all null": ((10, 2), [None, None]),
}


@pytest.mark.parametrize(("shape", "values"), DECIMALS.values(), ids=DECIMALS)
def test_decimals_are_summed_and_averaged_to_the_last_digit_as_in_spark(spark, without_ansi, shape, values):
    table = one_group([None if v is None else Decimal(v) for v in values], pa.decimal128(*shape))
    aggs = {"total": Agg("sum", "v"), "mean": Agg("avg", "v"), "least": Agg("min", "v"), "most": Agg("max", "v")}
    oracle.view(spark, table, "one_group")
    op = aggregate(table, WINDOWS["tumbling"], [], aggs, overflow="wrap")
    ours, theirs = oracle.feed(op, table, 1), expected(spark, WINDOWS["tumbling"], [], aggs, "one_group")
    oracle.assert_same(ours, theirs, ["window_start"])


BIG = Decimal(9 * 10**37)
DECIMAL_OVERFLOWS = {
    "sum": ("sum", (38, 0), [BIG, BIG]),
    "sum below zero": ("sum", (38, 0), [-BIG, -BIG, -BIG]),
    "sum far beyond 128 bits": ("sum", (38, 0), [BIG] * 9),
    "average": ("avg", (38, 0), [BIG]),
    "average just beyond": ("avg", (38, 0), [Decimal(10**34)]),
}


@pytest.mark.parametrize(("function", "shape", "values"), DECIMAL_OVERFLOWS.values(), ids=DECIMAL_OVERFLOWS)
def test_decimals_that_overflow_are_null_without_ansi_and_an_error_with_it(
    spark, without_ansi, function, shape, values
):
    table = one_group(values, pa.decimal128(*shape))
    aggs = {"x": Agg(function, "v")}
    ours, theirs = ours_and_sparks(spark, table, aggs, "wrap")
    assert ours == theirs == [(0, 10 * SECOND, None)]
    spark.conf.set("spark.sql.ansi.enabled", "true")
    with pytest.raises(OverflowInWindowError, match="x does not fit decimal128"):
        oracle.feed(aggregate(table, WINDOWS["tumbling"], [], aggs), table, 1)
    with pytest.raises(Exception, match=r"OVERFLOW|OUT_OF_RANGE|NUMERIC_VALUE"):
        expected(spark, WINDOWS["tumbling"], [], aggs, "one_group")


def test_averages_of_huge_bigints_neither_overflow_nor_drown(spark):
    for values in ([2**63 - 1, 2**63 - 1], [-(2**63)] * 3, [-1], [-(2**63), 2**63 - 1]):
        ours, theirs = ours_and_sparks(spark, one_group(values, pa.int64()), {"mean": Agg("avg", "v")}, "error")
        (a,), (b,) = (r[2:] for r in ours), (r[2:] for r in theirs)
        # Spark adds doubles: where large numbers cancel, ours is the exact one
        assert a[0] == pytest.approx(b[0], rel=1e-12, abs=1.0)


# -- partial aggregates ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", list(WINDOWS.values())[:3], ids=list(WINDOWS)[:3])
def test_sparks_partial_aggregates_by_pane_give_what_the_rows_give(spark, mixed, window):
    by = ["long", "f64", "money"]
    partly = {name: agg for name, agg in ALL.items() if name not in ("sum_exact", "avg_exact")}
    op = aggregate(mixed, window, by, partly)
    sql = op.partial_sql()
    grouped = ["pane_start", *by]
    select = ", ".join(f"{expr} as `{name}`" for name, expr in sql.items())
    groups = ", ".join(sql[name] for name in grouped)
    half = "mixed where {} and seq % 2 = {}"
    for part in (0, 1):  # two batches, whose panes overlap
        partial = spark.sql(f"select {select} from {half.format('true', part)} group by {groups}").toArrow()
        for piece in partial.to_batches():
            op.process_partial(piece)
    raw = oracle.feed(aggregate(mixed, window, by, partly), mixed, seed=3)
    ours = op.on_watermark(FOREVER)
    oracle.assert_same(ours, raw, ["window_start", *by], slack=1e-6)
    oracle.assert_same(ours, expected(spark, window, by, partly, "mixed"), ["window_start", *by], slack=1e-6)


def test_sums_of_decimals_that_may_not_fit_are_not_taken_in_part(mixed):
    """Spark gives null for one that does not fit (without ANSI), as it does for no value at all."""
    op = aggregate(mixed, WINDOWS["tumbling"], [], {k: ALL[k] for k in ("sum_money", "sum_exact", "avg_exact")})
    assert op.program.needs_rows() == ["sum_exact", "avg_exact"]


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_partial_sums_of_bigints_are_exact_even_where_a_pane_alone_overflows(spark, ansi):
    table = pa.table(
        {
            "ts_us": pa.array([0, 0, 5 * SECOND, 5 * SECOND], pa.int64()),
            "v": pa.array([2**63 - 1, 2**63 - 1, -(2**63), -(2**63) + 3], pa.int64()),
        }
    )
    oracle.view(spark, table, "steep")
    op = aggregate(table, Window(10 * SECOND, 5 * SECOND), [], {"total": Agg("sum", "v"), "mean": Agg("avg", "v")})
    sql = op.partial_sql()
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        select = ", ".join(f"{expr} as `{name}`" for name, expr in sql.items())
        partial = spark.sql(f"select {select} from steep group by {sql['pane_start']}").toArrow()
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")
    for piece in partial.to_batches():
        op.process_partial(piece)
    with pytest.raises(OverflowInWindowError):  # the first and the last of the three windows
        op.on_watermark(5 * SECOND)
    whole = aggregate(table, WINDOWS["tumbling"], [], {"total": Agg("sum", "v"), "mean": Agg("avg", "v")})
    for piece in partial.to_batches():
        starts = pa.array([0] * piece.num_rows, pa.int64()).cast(TIME)
        whole.process_partial(piece.set_column(0, piece.schema.field(0), starts))
    assert rows(whole.on_watermark(FOREVER)) == [(0, 10 * SECOND, 1, 0.25)]


# -- count windows --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "step"), [(1, 1), (5, 5), (6, 2), (5, 3), (7, 1)])
def test_count_windows_are_runs_of_row_numbers_in_spark(spark, mixed, size, step):
    by = ["short", "f32"]
    aggs = {
        "rows": Agg("count"),
        "some": Agg("count", "v_i32"),
        "total": Agg("sum", "v_i32"),
        "mean": Agg("avg", "v_money"),
        "least": Agg("min", "v_long"),
        "most": Agg("max", "v_exact"),
        "spread": Agg("stddev", "v_i16"),
        "first": Agg("first", "v_long"),
        "last": Agg("last", "v_i64", ignore_nulls=True),
    }
    schema = oracle.with_time(mixed.slice(0, 0)).schema
    op = CountWindowAggregate("c", schema, window=CountWindow(size, step), by=by, aggs=aggs)
    table = oracle.with_time(mixed)
    out = [op.process(p) for s in range(0, len(table), 333) for p in table.slice(s, 333).to_batches()]
    sql = ", ".join(f"{oracle.spark_sql_of(a)} as `{n}`" for n, a in aggs.items())
    # window w of a key holds its rows [w * step, w * step + size), and only whole windows count
    theirs = spark.sql(f"""
        with numbered as (
            select *, row_number() over (partition by short, f32 order by seq) - 1 as r from mixed
        ), spread_out as (
            select *, explode(sequence(greatest(0L, cast(ceil((r - {size} + 1) / {step}) as bigint)),
                                       cast(floor(r / {step}) as bigint))) as w
            from numbered where floor(r / {step}) >= ceil((r - {size} + 1) / {step})
        )
        select w * {step} as window_start, w * {step} + {size} as window_end, short, f32, {sql}
        from spread_out where r >= w * {step} and r < w * {step} + {size}
        group by w, short, f32 having count(1) = {size}
    """).toArrow()
    oracle.assert_same(pa.concat_tables(out), theirs, ["window_start", *by], slack=1e-6)


def test_a_union_passes_all_rows_and_its_watermark_is_the_lowest(spark, mixed):
    table = oracle.with_time(mixed)
    union = Union("u", table.schema, 3)
    op = aggregate(mixed, WINDOWS["tumbling"], ["flag"], {"rows": Agg("count")})
    out = []
    for turn, piece in enumerate(table.to_batches(max_chunksize=100)):
        op.process(union.process(turn % 3, piece))
    for watermark in (0, 10 * SECOND, FOREVER):
        for index in range(3):
            combined = union.on_watermark(index, watermark)
            assert combined == min(union.watermarks.inputs)
            out.append(op.on_watermark(combined))
    theirs = expected(spark, WINDOWS["tumbling"], ["flag"], {"rows": Agg("count")}, "mixed")
    oracle.assert_same(pa.concat_tables(out), theirs, ["window_start", "flag"])

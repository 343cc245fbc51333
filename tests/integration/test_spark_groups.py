"""Micro-batches that Spark groups before they are collected: the same as the rows themselves would give."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from support.collected import (
    AGGS,
    SCHEMA,
    assert_alike,
    collector,
    operator,
    results,
    rows,
    with_key,
    with_times,
)

from holdfast.model.plan import FOREVER_US, NEVER_US
from holdfast.operators.limits import TIME_MAX_US, TIME_MIN_US, VALUE_BYTES_MAX
from holdfast.spark.bad import OPERATOR, REASON
from holdfast.spark.collect import FIRST_BATCHES, TIMED_BATCHES, Batch

pytestmark = [pytest.mark.spark, pytest.mark.slow]

#: Those, and some that Arrow would compute otherwise than Spark.
MORE = {**AGGS, "nf": ["min", "f", False], "xs": ["max", "src", False], "nd": ["min", "d", False]}


def crossed(made: Batch) -> list[pa.RecordBatch]:
    return [batch for part in made.parts.values() for batch in part.batches]


@pytest.mark.parametrize("aggs", [AGGS, MORE], ids=["as Arrow", "more"])
@pytest.mark.parametrize("watermark", [NEVER_US, 10**7, 10**12], ids=["none late", "some late", "all late"])
def test_groups_of_sparks_are_what_the_operator_makes_of_the_rows(spark, aggs, watermark):
    plan, table = operator(aggs=aggs), rows()
    made = collector(plan, spark_rows_min=0).collect(spark.createDataFrame(table), watermark)
    instants = [t for t in table["ts"].cast(pa.int64()).to_pylist() if t is not None]
    late = [t for t in instants if t < watermark]
    assert made.rows == table.num_rows
    assert made.without_time == table["ts"].null_count
    assert (made.late.num_rows if made.late is not None else 0) == len(late)
    if made.late is not None:
        assert sorted(made.late["ts"].cast(pa.int64()).to_pylist()) == sorted(late)
        assert made.late.schema.names == SCHEMA.names
    on_time = table.filter(
        pa.array([t is not None and t >= watermark for t in table["ts"].cast(pa.int64()).to_pylist()])
    )
    assert made.sent == sum(batch.num_rows for batch in crossed(made))
    if len(late) == len(instants):
        assert crossed(made) == []
        return
    assert made.max_us == max(instants)
    assert all("pane_start" in batch.schema.names for batch in crossed(made))
    assert_alike(results(plan, on_time.combine_chunks().to_batches()), results(plan, crossed(made)))


@pytest.mark.parametrize("watermark", [NEVER_US, 10**7], ids=["none late", "some late"])
@pytest.mark.parametrize("aggs", [AGGS, MORE], ids=["as Arrow", "more"])
def test_bad_rows_are_set_aside_by_spark_as_they_are_here(spark, aggs, watermark):
    """The pane of such a time cannot be computed: with ANSI arithmetic the job failed, and the stage with it."""
    table = with_times(FOREVER_US, NEVER_US, TIME_MIN_US - 1, TIME_MAX_US + 1, n=300)
    longest = with_key("x" * (VALUE_BYTES_MAX + 1))
    table = pa.concat_tables([table, longest.slice(0, 1)])
    plan = operator(aggs=aggs)
    mine, here = (collector(plan, spark_rows_min=least) for least in (0, 1 << 60))
    made = mine.collect(spark.createDataFrame(table), watermark)
    wanted = here.split(table, watermark, lambda: table)
    assert made.in_spark
    assert wanted.bad_rows == 5
    for name in ("rows", "late_rows", "bad_rows", "without_time", "max_us"):
        assert getattr(made, name) == getattr(wanted, name), name
    assert made.bad is not None
    assert wanted.bad is not None
    assert sorted(made.bad[REASON].to_pylist()) == sorted(wanted.bad[REASON].to_pylist())
    assert made.bad.column_names == [*SCHEMA.names, REASON, OPERATOR]
    assert_alike(results(plan, crossed(wanted)), results(plan, crossed(made)))
    few = mine.collect(spark.createDataFrame(table), watermark, bad_max=2)
    assert few.bad_rows == 3  # enough to know that it is too many


def test_an_empty_batch_has_no_groups(spark):
    made = collector(operator(), spark_rows_min=0).collect(spark.createDataFrame(rows().slice(0, 0), "ts timestamp, "
        "src string, b long, i int, f double, d date"), 5)  # fmt: skip
    assert (made.rows, made.parts, made.late, made.max_us) == (0, {}, None, NEVER_US)


def test_late_rows_and_groups_are_of_one_evaluation(spark):
    """Event times that move with the clock: every evaluation of the batch has others."""
    count = 20_000
    frame = spark.range(count).selectExpr(
        "timestamp_micros(unix_micros(current_timestamp()) + 1000 * id) as ts", "'k' as src", "id as b",
        "cast(id as int) as i", "cast(id as double) as f", "date'2026-01-01' as d",
    )  # fmt: skip
    (now,) = spark.sql("select unix_micros(current_timestamp())").first()
    made = collector(operator(), spark_rows_min=0).collect(frame, now + 500 * count)
    assert made.late is not None
    assert made.rows == count
    ids = set(made.late["b"].to_pylist())
    assert 0 < len(ids) < count
    sums = [row for batch in crossed(made) for row in batch.to_pylist()]
    assert sum(row["n__count"] for row in sums) == count - len(ids)
    assert sum((row["sb__high"] << 32) + row["sb__low"] for row in sums) == sum(set(range(count)) - ids)


def test_large_batches_of_few_groups_are_tried_both_ways(spark, monkeypatch):
    mine, table = collector(operator()), rows(120_000)
    frame = spark.createDataFrame(table).cache()
    ways, real = [], {way: getattr(mine, way) for way in ("_rows", "_grouped_in_spark")}
    for way in real:
        monkeypatch.setattr(mine, way, lambda *args, way=way: ways.append(way) or real[way](*args))
    wanted = results(operator(), table.combine_chunks().to_batches())
    for _ in range(FIRST_BATCHES + 2 * TIMED_BATCHES + 2):
        assert_alike(wanted, results(operator(), crossed(mine.collect(frame, NEVER_US))))
    # of the first one nothing is known yet
    assert ways[:-1] == ["_rows"] * (1 + FIRST_BATCHES + TIMED_BATCHES) + ["_grouped_in_spark"] * TIMED_BATCHES
    assert ways[-1] == ("_grouped_in_spark" if mine.faster.least[True] < mine.faster.least[False] else "_rows")
    late = int(np.median(table["ts"].drop_null().cast(pa.int64()).to_numpy()))
    mine.collect(frame, late)
    mine.collect(frame, late)
    assert ways[-1] == "_rows"  # where rows come late, one pass is enough only there


def test_a_batch_too_large_to_be_collected_is_grouped_or_refused_with_the_reason(tmp_path: Path):
    """In a process of its own: the limit belongs to the JVM."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            from support.collected import collector, operator, results, assert_alike, rows
            from holdfast.errors import InputError
            from holdfast.model.plan import NEVER_US
            from holdfast.spark.session import session

            spark = session("small", "local[2]", {"spark.driver.maxResultSize": "100k"})
            table = rows(20_000, keys=1)
            frame = spark.createDataFrame(table)
            made = collector(operator()).collect(frame, NEVER_US)
            batches = [batch for part in made.parts.values() for batch in part.batches]
            assert_alike(results(operator(), table.combine_chunks().to_batches()), results(operator(), batches))
            try:
                collector(operator("w"), operator("v")).collect(frame, NEVER_US)
            except InputError as error:
                print(error.what)
                assert "maxFilesPerTrigger" in error.hint
            """
        )
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=180, env=_environment())
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "stage s: a micro-batch is too large for its driver"


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

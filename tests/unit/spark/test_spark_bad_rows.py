"""Rows that no operator can hold are found before their batch counts; all others cross."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest
from support.collected import SCHEMA, collector, operator, results, with_key, with_times

from holdfast.model.block import WATERMARK_MAX
from holdfast.model.plan import FOREVER_US, NEVER_US, to_core
from holdfast.operators.limits import TIME_MAX_US, TIME_MIN_US, VALUE_BYTES_MAX, long_columns, time_limits
from holdfast.spark.bad import OPERATOR, REASON, clock_us, example
from holdfast.spark.collect import Batch

MINUTE = 60_000_000


def crossed(made: Batch) -> list[pa.RecordBatch]:
    return [batch for part in made.parts.values() for batch in part.batches]


@pytest.mark.parametrize("micros", [FOREVER_US, NEVER_US, FOREVER_US - 1_000_000, NEVER_US + 1_000_000])
def test_a_row_with_an_impossible_time_stops_no_operator_and_ends_no_stream(micros):
    """Once its batch was committed, and then no shard could take it: it stood still for good."""
    table = with_times(micros)
    made = collector(operator()).split(table, NEVER_US, lambda: table)
    results(operator(), crossed(made))  # raised: an event time is out of range
    assert to_core(made.max_us) < WATERMARK_MAX  # was the watermark of a stream that is finished


def split(table: pa.Table, watermark_us: int = NEVER_US, **stage: Any) -> Batch:
    return collector(operator(), **stage).split(table, watermark_us, lambda: table)


@pytest.mark.parametrize("micros", [TIME_MIN_US - 1, TIME_MAX_US + 1])
@pytest.mark.parametrize("watermark", [NEVER_US, 10**7])
def test_only_the_bad_rows_are_set_aside_each_with_operator_and_reason(micros, watermark):
    table = with_times(micros, n=300)
    made = split(table, watermark)
    assert made.bad is not None
    assert made.bad.select(SCHEMA.names).equals(table.slice(table.num_rows - 1))
    assert made.bad.column(OPERATOR).to_pylist() == ["w"]
    assert made.bad.column(REASON).to_pylist() == ["the event time is not in the years 1 to 9999"]
    assert made.rows == made.bad_rows + made.late_rows + sum(b.num_rows for b in crossed(made))
    assert made.max_us == max(table.slice(0, table.num_rows - 1)["ts"].cast(pa.int64()).to_pylist())


@pytest.mark.parametrize("micros", [TIME_MIN_US, TIME_MAX_US])
def test_the_first_and_the_last_possible_moment_are_not_bad(micros):
    made = split(with_times(micros))
    assert made.bad is None
    assert results(operator(), crossed(made)).num_rows


def test_a_batch_of_bad_rows_only_moves_no_watermark():
    made = split(with_times(FOREVER_US, NEVER_US, n=0))
    assert (made.bad_rows, made.sent, made.parts, made.max_us) == (2, 0, {}, NEVER_US)


def test_rows_too_far_ahead_of_the_clock_are_bad_if_the_source_says_so():
    now = clock_us()
    table = with_times(now + 30 * MINUTE, now + 90 * MINUTE)
    assert split(table).bad is None
    made = split(table, future_us=60 * MINUTE)
    assert made.bad is not None
    assert made.bad["ts"].cast(pa.int64()).to_pylist() == [now + 90 * MINUTE]
    assert made.bad[REASON].to_pylist() == ["the event time is more than 1 h ahead of the clock"]
    assert made.max_us == now + 30 * MINUTE


@pytest.mark.parametrize("aggs", [None, {"xs": ["max", "src", False]}], ids=["key", "key and value"])
def test_a_value_that_is_too_long_for_state_is_set_aside(aggs):
    """Once the stage failed for ever, since it could not cut its rows by key; with one shard, the shard did."""
    table = with_key("x" * (VALUE_BYTES_MAX + 1))
    made = collector(operator(aggs=aggs)).split(table, NEVER_US, lambda: table)
    assert made.bad is not None
    assert made.bad[REASON].to_pylist() == ["column 'src' has more than 16,777,215 bytes"]
    assert made.sent == table.num_rows - 1
    assert example(made.bad).count("x") < 100
    table = with_key("x" * VALUE_BYTES_MAX)
    assert split(table).bad is None


def test_a_value_that_is_only_counted_may_have_any_length():
    plan = operator(aggs={"n": ["count", "src", False]})
    alone = msgspec.structs.replace(plan, inputs=(msgspec.structs.replace(plan.inputs[0], by=("i",)),))
    assert long_columns(alone, 0) == []
    assert long_columns(plan, 0) == ["src"]


def test_a_join_holds_all_columns_and_times_as_far_as_its_partners():
    sides = tuple(msgspec.structs.replace(operator().inputs[0], side=side) for side in (0, 1))
    settings = {"on": [["src", "src"]], "how": "inner", "within": [0, 2**62 - 2**54]}
    plan = msgspec.structs.replace(operator(), kind="join", inputs=sides, settings=settings)
    assert long_columns(plan, 1) == ["src"]
    reach = 2 * (2**62 - 2**54 + 1)
    assert time_limits(plan) == (NEVER_US + reach, FOREVER_US - reach)


def test_bad_rows_and_those_that_cross_are_of_one_evaluation():
    first, second = with_times(FOREVER_US), with_times(NEVER_US, FOREVER_US, n=100)
    made = collector(operator()).split(first, NEVER_US, lambda: second)
    assert (made.rows, made.bad_rows) == (second.num_rows, 2)


def test_an_example_of_a_bad_row_can_be_read():
    made = split(with_times(FOREVER_US, n=0))
    assert made.bad is not None
    assert example(made.bad).startswith("ts=9223372036854775807 us, src=")

"""A micro-batch, once collected: lateness, grouping and shards, against the operator itself."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from support.collected import assert_alike, collector, operator, results, rows, with_times

from holdfast.errors import InputError
from holdfast.model.plan import NEVER_US
from holdfast.operators import build
from holdfast.spark.collect import FIRST_BATCHES, KEEP_MIN, SKIP_MIN, TIMED_BATCHES, Adaptive, Faster
from holdfast.spark.partial import PartialAggregate


def test_groups_made_in_arrow_are_what_the_operator_makes_of_the_rows():
    plan, table = operator(), rows()
    partial = PartialAggregate(build(plan))
    assert partial.possible
    kept = table.filter(table["ts"].is_valid())
    assert_alike(
        results(plan, table.combine_chunks().to_batches()), results(plan, partial(kept).combine_chunks().to_batches())
    )


@pytest.mark.parametrize(("function", "column"), [("stddev", "b"), ("min", "f"), ("max", "src"), ("first", "b")])
def test_what_arrow_does_otherwise_than_spark_goes_as_rows(function, column):
    plan = operator(aggs={"x": [function, column, False]})
    made = collector(plan).split(rows(), NEVER_US, None)
    assert all("pane_start" not in part.schema.names for part in made.parts.values())


def test_late_rows_and_those_that_cross_are_of_one_evaluation():
    """A function that is not deterministic gives other rows when the batch is asked for all its columns."""
    first, second = rows(150, seed=1), rows(150, seed=2)
    times = second.column("ts").combine_chunks().view(pa.int64())
    watermark = int(np.median(times.drop_null().to_numpy()))
    made = collector(operator()).split(first, watermark, lambda: second)
    assert made.late is not None
    crossed = {t for part in made.parts.values() for t in part.table().column("ts").to_pylist()}
    wanted = set(second.column("ts").to_pylist()) - set(made.late.column("ts").to_pylist()) - {None}
    assert crossed == wanted


def test_every_row_is_late_or_crosses_or_has_no_time():
    plan, table, watermark = operator(), rows(), 10**7
    made = collector(plan).split(table, watermark, lambda: table)
    assert made.late is not None
    times = table["ts"].cast(pa.int64())
    late = [t for t in times.to_pylist() if t is not None and t < watermark]
    assert made.late.num_rows == len(late)
    assert made.without_time == table["ts"].null_count
    assert made.max_us == max(t for t in times.to_pylist() if t is not None)
    on_time = table.filter(pa.array([t is not None and t >= watermark for t in times.to_pylist()]))
    crossed = [b for part in made.parts.values() for b in part.batches]
    assert_alike(results(plan, on_time.combine_chunks().to_batches()), results(plan, crossed))


def test_a_key_goes_to_one_shard():
    made = collector(operator()).split(rows(), NEVER_US, None)
    seen: dict = {}
    for edge, part in made.parts.items():
        for key in part.table()["src"].to_pylist():
            assert seen.setdefault(key, edge) == edge
    assert sorted(made.parts) == ["s>w-0", "s>w-1", "s>w-2"]


def test_several_operators_are_fed_from_one_pass():
    made = collector(operator("w"), operator("v")).split(rows(), NEVER_US, None)
    assert {edge[:3] for edge in made.parts} == {"s>w", "s>v"}


def test_an_empty_batch_has_nothing_to_say():
    made = collector(operator()).split(rows().slice(0, 0), 5, None)
    assert (made.rows, made.parts, made.late, made.max_us) == (0, {}, None, NEVER_US)


def test_rows_of_another_type_are_refused_and_the_column_named():
    table = rows().set_column(2, "b", rows()["i"])
    with pytest.raises(InputError) as caught:
        collector(operator()).branches[0].check(table, "s")
    assert caught.value.detail == "Column 'b' was planned as int64, and is int32 now."


def test_grouping_that_does_not_pay_is_left_and_tried_again():
    adaptive = Adaptive()
    assert adaptive.wants(1000)
    assert adaptive.grouped(1000, 400)
    assert adaptive.wants(1000)
    assert not adaptive.grouped(1000, 900)
    assert [adaptive.wants(1000) for _ in range(SKIP_MIN + 1)] == [False] * SKIP_MIN + [True]
    assert not adaptive.grouped(1000, 900)
    assert [adaptive.wants(1000) for _ in range(2 * SKIP_MIN + 1)] == [False] * 2 * SKIP_MIN + [True]
    assert not adaptive.wants(3)


@pytest.mark.parametrize("faster_in_spark", [True, False])
def test_both_ways_are_timed_and_the_faster_one_is_kept(faster_in_spark):
    faster = Faster()
    seconds = {True: 1.0 if faster_in_spark else 3.0, False: 2.0}

    def ways(count: int) -> list[bool]:
        found = []
        for number in range(count):
            found.append(faster.in_spark)
            # the first of each way compiles; and size alone must not decide
            size = 1 + number % 3
            faster.took(size * seconds[faster.in_spark] + (9.0 if number % TIMED_BATCHES == 0 else 0.0), size * 1000)
        return found

    assert ways(FIRST_BATCHES) == [False] * FIRST_BATCHES
    trial = [False] * TIMED_BATCHES + [True] * TIMED_BATCHES
    assert ways(2 * TIMED_BATCHES + KEEP_MIN) == trial + [faster_in_spark] * KEEP_MIN
    assert ways(2 * TIMED_BATCHES + 2 * KEEP_MIN) == trial + [faster_in_spark] * 2 * KEEP_MIN


def in_outlets(**tables: pa.Table) -> pa.Table:
    """As Spark gives the rows of a stage with several outlets: a column for each, a struct or null."""
    rows = {name: table.to_struct_array().combine_chunks() for name, table in tables.items()}
    columns = {}
    for name, mine in rows.items():
        parts = [mine if other == name else pa.nulls(len(its), mine.type) for other, its in rows.items()]
        columns[name] = pa.concat_arrays(parts)
    return pa.table(columns)


def test_each_outlet_gets_its_own_rows_and_what_is_set_aside_keeps_its_outlet():
    plan, other, watermark = operator("w"), operator("v"), 10**7
    tables = {"w": rows(900, seed=1), "v": rows(500, seed=2)}
    both = in_outlets(**tables)
    made = collector(plan, other, outlets=("w", "v")).split(both, watermark, lambda: both)
    alone = {
        name: collector(one).split(tables[name], watermark, lambda name=name: tables[name])
        for name, one in (("w", plan), ("v", other))
    }
    assert made.rows == 1_400
    assert made.without_time == sum(one.without_time for one in alone.values())
    assert made.max_us == max(one.max_us for one in alone.values())
    for name, one in alone.items():
        for edge, part in one.parts.items():
            assert made.parts[edge].table().equals(part.table())
        assert made.late is not None
        assert one.late is not None
        late = made.late.filter(made.late[name].is_valid()).column(name).combine_chunks()
        assert pa.Table.from_struct_array(late).equals(one.late.combine_chunks())
    assert len(made.parts) == 6


def test_a_row_that_one_outlet_cannot_hold_is_set_aside_for_that_one_alone():
    bad = with_times(2**62)
    both = in_outlets(w=rows(300), v=bad)
    made = collector(operator("w"), operator("v"), outlets=("w", "v")).split(both, NEVER_US, lambda: both)
    assert made.bad is not None
    assert made.bad.column("w").null_count == made.bad.num_rows == 1
    assert made.bad.column("holdfast_operator").to_pylist() == ["v"]

"""What an operator shows of its state: at its edges. (Against Spark: `integration/test_state_source.py`.)"""

from __future__ import annotations

import pyarrow as pa
import pytest
from support.batches import SECOND, TIME, batch
from support.small_checkpoints import MAKERS, feed, results
from support.small_operators import NUMBERS, aggregate

from holdfast.operators import LEFT, RIGHT, Agg, CountWindow, CountWindowAggregate, Join, Within
from holdfast.operators.contents import contents, contents_schema

BIG = 2**63 - 1


def _shown(op, **more) -> list[dict]:
    return [row for found in contents(op, **more) for row in found.to_pylist()]


@pytest.mark.parametrize("kind", MAKERS)
def test_batches_are_as_small_as_one_likes_and_showing_changes_nothing(kind):
    op, untouched = MAKERS[kind](), MAKERS[kind]()
    assert list(contents(op)) == []
    for fed in (op, untouched):
        feed(fed, 1)
    whole = list(contents(op))
    assert [found.schema for found in whole] == [contents_schema(op)] * len(whole)
    small = list(contents(op, bytes_max=1))
    assert {found.num_rows for found in small} == {1}
    assert [row for found in small for row in found.to_pylist()] == _shown(op)
    assert results(op) == results(untouched)


def test_a_sum_that_does_not_fit_is_null_and_says_so():
    op = aggregate(by=("k",), overflow="aside", total=Agg("sum", "v"), n=Agg("count"))
    op.process(batch(NUMBERS, [0, 1, 2], [1, 1, 2], [BIG, 1, 5]))
    found = {row["key"]["k"]: (row["value"], row["overflow"]) for row in _shown(op)}
    assert found[1] == ({"total": None, "n": 2}, "total does not fit bigint")
    assert found[2] == ({"total": 5, "n": 1}, None)


def test_a_sum_wraps_around_where_its_operator_does():
    op = aggregate(by=("k",), overflow="wrap", total=Agg("sum", "v"))
    op.process(batch(NUMBERS, [0, 1], [1, 1], [BIG, 1]))
    assert [(row["value"], row["overflow"]) for row in _shown(op)] == [({"total": -(2**63)}, None)]


def test_a_key_of_a_count_window_without_panes_keeps_its_count():
    schema = pa.schema([("k", pa.string()), ("v", pa.int64())])
    op = CountWindowAggregate(
        "c", schema, window=CountWindow(2, 2), by=["k"], aggs={"total": Agg("sum", "v")}
    )  # fmt: skip
    long = "a key that is too long for a word" * 9
    op.process(batch(schema, [long, long, long, None, None, "b"], [1, 2, 3, 4, 5, 6]))
    found = {row["key"]["k"]: (row["pane_start"], row["pane_end"], row["rows"], row["value"]) for row in _shown(op)}
    assert found == {
        long: (2, 4, 3, {"total": 3}),
        None: (None, None, 2, None),
        "b": (0, 2, 1, {"total": 6}),
    }


def test_a_column_that_is_compared_with_two_others_gives_a_key_of_both():
    left = pa.schema([("a", TIME), ("x", pa.int64())])
    right = pa.schema([("b", TIME), ("y", pa.int64()), ("z", pa.int64())])
    op = Join("j", left, right, times=("a", "b"), on=[("x", "y"), ("x", "z")], window=Within(0, 10))
    op.process(LEFT, batch(left, [SECOND], [7]))
    op.process(RIGHT, batch(right, [SECOND], [7], [8]))
    assert [(row["side"], row["key"], row["matched"]) for row in _shown(op)] == [
        ("left", {"x": 7, "z": 7}, None),
        ("right", {"x": 7, "z": 8}, None),
    ]

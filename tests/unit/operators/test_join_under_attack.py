"""A join at the edges of time: bounds, rows without a time, late rows, and what it forgets when."""

from __future__ import annotations

import pytest
from support.batches import batch, rows
from support.small_operators import join

from holdfast.errors import InputError
from holdfast.operators import (
    LEFT,
    RIGHT,
    SameWindow,
    Within,
)


@pytest.mark.parametrize("window", [Within(-5, 10), Within(10, 20), Within(-20, -10), SameWindow(100)])
@pytest.mark.parametrize("time", [2**63 - 1, -(2**63), 2**63 - 20, -(2**63) + 20])
def test_a_join_refuses_times_whose_partners_would_lie_outside_64_bits(window, time):
    op = join(window=window)
    for which in (LEFT, RIGHT):
        with pytest.raises(InputError, match="an event time is out of range") as caught:
            op.process(which, batch(op.sides[which].schema, [0, time], [1, 1], [1, 1]))
        assert caught.value.detail.startswith(f"Row 1: {time} us")
    assert len(op) == 0


def test_a_left_row_without_a_time_comes_out_alone_as_in_spark():
    op = join(how="left_outer")
    given = batch(op.sides[LEFT].schema, [None, 3], [1, 1], [7, 8])
    assert rows(op.process(LEFT, given)) == [(None, 1, 7, None, None, None)]


def test_rows_without_a_time_are_in_no_window_and_so_in_no_join_by_window():
    op = join(how="left_outer", window=SameWindow(10))
    assert rows(op.process(LEFT, batch(op.sides[LEFT].schema, [None], [1], [7]))) == []


def test_a_late_row_is_refused_even_if_its_key_is_null():
    op = join(how="left_outer")
    op.on_watermark(LEFT, 100)
    op.on_watermark(RIGHT, 100)
    with pytest.raises(InputError, match="1 rows are older than the watermark"):
        op.process(LEFT, batch(op.sides[LEFT].schema, [99], [None], [7]))


@pytest.mark.parametrize(("after", "before"), [(0, 10), (-10, 0), (5, 15), (-15, -5), (7, 7), (0, 0), (-3, 4)])
def test_join_bounds_hold_to_the_microsecond_on_both_sides_of_the_epoch(after, before):
    for base in (-1000, -1, 0, 1, 997):
        op = join(window=Within(after, before))
        others = range(base - 40, base + 41)
        op.process(RIGHT, batch(op.sides[RIGHT].schema, others, [1] * 81, others))
        found = op.process(LEFT, batch(op.sides[LEFT].schema, [base], [1], [0]))
        assert sorted(found.column("v").to_pylist()) == list(range(base + after, base + before + 1))


@pytest.mark.parametrize(("after", "before"), [(0, 10), (5, 15), (-15, -5), (7, 7), (-3, 4)])
@pytest.mark.parametrize("base", [-1003, 0, 997])
def test_a_join_forgets_a_row_only_when_nothing_to_come_can_match_it(after, before, base):
    """At every watermark: the partner at the watermark itself is still found, on either side."""
    for shift in range(-30, 31):
        watermark = base + shift
        op = join(window=Within(after, before))
        op.process(LEFT, batch(op.sides[LEFT].schema, [base], [1], [1]))
        op.process(RIGHT, batch(op.sides[RIGHT].schema, [base], [2], [2]))
        for which in (LEFT, RIGHT):
            op.on_watermark(which, watermark)
        right = op.process(RIGHT, batch(op.sides[RIGHT].schema, [watermark], [1], [3]))
        left = op.process(LEFT, batch(op.sides[LEFT].schema, [watermark], [2], [4]))
        assert right.num_rows == (after <= watermark - base <= before)
        assert left.num_rows == (after <= base - watermark <= before)

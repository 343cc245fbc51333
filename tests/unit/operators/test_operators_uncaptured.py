"""What operators keep for the next capture, where there is none (modes none and active)."""

from __future__ import annotations

from support.batches import batch
from support.small_operators import NUMBERS

from holdfast.operators import Agg, CountWindow, CountWindowAggregate


def test_a_count_window_that_nobody_captures_keeps_nothing_of_windows_that_are_gone():
    op = CountWindowAggregate("c", NUMBERS, window=CountWindow(2, 2), by=["k"], aggs={"n": Agg("count")})
    for _ in range(5):
        assert op.process(batch(NUMBERS, [0] * 8, [1] * 8, [1] * 8)).num_rows == 4
    assert op._removed == []

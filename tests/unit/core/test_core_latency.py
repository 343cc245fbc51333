"""Histograms that can be added up, and the parts of a hand-over by what its driver notes."""

from __future__ import annotations

import json
from itertools import pairwise
from math import ceil
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.ids import asset_id
from holdfast.model.latency import EDGES_S, SPANS_MAX, HandOverClock, Histogram
from holdfast.model.parts import CommitRecord
from holdfast.model.stage_notes import AllDelivered, AllSealed, Committed, Delivered

S0 = asset_id("s0")
MS = 1_000_000


def of(*seconds: float) -> Histogram:
    made = Histogram()
    for each in seconds:
        made.add(each)
    return made


def test_edges_grow_from_a_tenth_of_a_millisecond_to_over_a_minute():
    assert list(EDGES_S) == sorted(set(EDGES_S))
    assert (EDGES_S[0], EDGES_S[-1]) == (0.0001, 70.0)
    assert all(1.33 < high / low < 1.68 for low, high in pairwise(EDGES_S))


def test_nothing_has_no_quantile():
    assert (of().count, of().quantile(0.5), of().mean_s) == (0, None, None)


def test_what_is_at_an_edge_is_below_it_and_what_is_beyond_all_is_counted():
    made = of(EDGES_S[3], 1e6, -1.0)
    assert made.counts[3] == made.counts[-1] == made.counts[0] == 1
    assert made.quantile(1.0) == EDGES_S[-1]


@given(st.lists(st.floats(0.00011, 69), min_size=1, max_size=300), st.sampled_from([0.01, 0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_is_within_one_step_of_the_right_one(values: list[float], share: float):
    right = sorted(values)[max(0, ceil(share * len(values) - 1e-9) - 1)]
    found = of(*values).quantile(share)
    assert found is not None
    assert right / 1.68 <= found <= right * 1.68


def test_a_quantile_of_many_is_close():
    rng = Random(7)
    values = [rng.expovariate(20) for _ in range(20_000)]
    found = of(*values).quantile(0.5)
    assert found == pytest.approx(sorted(values)[10_000], rel=0.1)


@given(st.lists(st.floats(0, 100)), st.lists(st.floats(0, 100)))
def test_two_that_are_added_up_are_one_of_both(one: list[float], other: list[float]):
    made = of(*one)
    made.merge(of(*other))
    assert made.counts == of(*one, *other).counts
    assert made.total_s == pytest.approx(sum(one) + sum(other))
    again = Histogram.of(json.loads(json.dumps(made.told())))
    assert again.counts == made.counts


def test_prometheus_gets_how_many_took_at_most_so_long():
    found = of(0.00005, 0.0012, 1e9).cumulative()
    assert found[0] == ("0.0001", 1)
    assert found[-1] == ("+Inf", 3)
    assert [n for _, n in found] == sorted(n for _, n in found)


def committed(batch: int) -> Committed:
    return Committed(
        S0, 1, CommitRecord(batch=batch, epoch=1, attempt=1, offsets=(0, 1), watermark=0, ends={}, query="q")
    )


def test_a_hand_over_is_delivered_then_in_the_ledger_then_sealed():
    clock = HandOverClock()
    clock.post(10 * MS)
    clock.on_notes([Delivered(S0, 0, "n1#1", 1, 1)], 12 * MS)
    clock.on_notes([AllDelivered(S0, 1, 0, 1)], 14 * MS)
    clock.on_notes([committed(0)], 17 * MS)
    assert clock.take() == {"deliver": [4.0], "ledger": [3.0]}
    clock.on_notes([AllSealed(S0, 1, 0)], 19 * MS)
    clock.post(20 * MS)
    clock.on_notes([AllDelivered(S0, 1, 1, 1), committed(1), AllSealed(S0, 1, 1)], 21 * MS)
    assert clock.take() == {"seal": [2.0, 0.0], "deliver": [1.0], "ledger": [0.0]}
    assert clock.take() == {}


def test_what_an_earlier_driver_began_is_not_measured():
    clock = HandOverClock()
    clock.on_notes([committed(3)], 5 * MS)
    assert clock.take() == {}
    clock.on_notes([AllSealed(S0, 1, 3)], 9 * MS)
    assert clock.take() == {"seal": [4.0]}


def test_a_clock_that_nobody_reads_keeps_the_newest():
    clock = HandOverClock()
    for i in range(SPANS_MAX + 5):
        clock.post(MS)
        clock.on_notes([AllDelivered(S0, 1, i, 1)], (i + 1) * MS)
    found = clock.take()["deliver"]
    assert (len(found), found[0], found[-1]) == (SPANS_MAX, 5.0, SPANS_MAX + 4.0)

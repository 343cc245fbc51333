"""Stalls as distributions, and the benchmark method: arithmetic of hybrid-ha §II-B and §IV-A."""

from __future__ import annotations

import pytest

from holdfast.core.detect.benchmark import Benchmark
from holdfast.core.detect.stalls import BUSY, EDGES_S, SAMPLE_NS, Spread, Stalls
from holdfast.model.config import MS

S = 1_000 * MS


def fed(*taken: float) -> Stalls:
    made = Stalls(BUSY, S)
    for i, part in enumerate(taken):
        made.sample(S + i * SAMPLE_NS, S + (i + 1) * SAMPLE_NS, part)
    return made


def test_samples_above_the_threshold_that_follow_each_other_are_one_stall():
    made = fed(0.2, 0.95, 1.0, 0.97, 0.94, 0.96, 0.3)
    assert made.told()["stalls"] == 2
    assert made.lengths.counts[EDGES_S.index(0.25)] == 1
    assert made.lengths.counts[EDGES_S.index(1)] == 1  # 0.75 s
    assert made.lengths.longest_s == 0.75
    assert made.between.total_s == 1.0  # from the beginning of one to that of the next
    assert made.told()["share"] == pytest.approx(4 / 7)


def test_a_stall_that_goes_on_is_told_and_has_no_length_yet():
    told = fed(1.0, 1.0).told()
    assert (told["stalls"], told["stalled_now"], told["lengths"]["at_most"][-1]) == (1, True, 0)


def test_a_distribution_counts_up_to_its_edges_and_beyond_the_last():
    spread = Spread()
    for seconds in (0.25, 0.3, 0.5, 14.9, 15.0, 4_000.0):
        spread.add(seconds)
    told = spread.told()
    at_most = dict(zip(told["edges_s"], told["at_most"], strict=False))
    assert (at_most[0.25], at_most[0.5], at_most[10], at_most[15], at_most[3_600]) == (2, 3, 3, 5, 5)
    assert told["at_most"][-1] == 6
    assert told["longest_s"] == 4_000.0


def test_what_is_remembered_does_not_grow():
    made = fed(*([1.0, 0.0] * 5_000))
    assert len(made.lengths.counts) == len(EDGES_S) + 1
    assert made.told()["stalls"] == 5_000


def test_the_set_is_run_only_above_the_load_threshold():
    made = Benchmark(load_max=0.9, longer_max=0.5)
    assert not made.wants(1.0)  # there is no benchmark yet
    made.learn(2 * MS)
    assert not made.wants(0.9)
    assert made.wants(0.91)


def test_a_node_is_slow_when_the_set_exceeds_the_benchmark_by_more_than_the_threshold():
    made = Benchmark(load_max=0.9, longer_max=0.5)
    for took_ns in (3 * MS, 2 * MS, 5 * MS):
        made.learn(took_ns)
    assert not made.on_ran(3 * MS)  # 2 ms and a half of it
    assert made.on_ran(3 * MS + 1)
    assert not made.on_ran(2 * MS)


def test_a_node_is_not_slow_any_more_when_the_load_is_gone():
    made = Benchmark(load_max=0.9, longer_max=0.5)
    made.learn(MS)
    assert made.wants(1.0)
    assert made.on_ran(2 * MS)
    assert not made.wants(0.5)
    assert not made.slow

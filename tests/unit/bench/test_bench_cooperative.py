"""The model cluster does what the paper's servers do: captures stop them, pastes do not, and twins get what is left."""

from __future__ import annotations

import pytest

from bench.cooperative.cluster import ClusterUnit, InputTrace, ModelCluster, active_s, load_at, rate_at


def run(cluster: ModelCluster, seconds: float, load: float = 0.5) -> ModelCluster:
    cluster.run(seconds, lambda at, unit: rate_at(load), lambda cluster: None)
    return cluster


def test_four_units_of_each_kind_keep_a_server_busy_for_90_percent():
    assert load_at(2_000) == pytest.approx(0.9)
    assert ModelCluster(5, "min_max").servers[0].load == pytest.approx(0.9)
    assert load_at(rate_at(0.7)) == pytest.approx(0.7)


@pytest.mark.parametrize("scheduler", ["round_robin", "min_max", "whole"])
def test_work_is_never_lost_and_every_unit_is_captured_and_pasted(scheduler):
    made = run(ModelCluster(4, scheduler), 20)
    for server in made.servers:
        assert server.backlog_s < 1
        for unit in server.units:
            assert unit.cycle > 0
            assert 0 <= unit.image_s <= unit.work_s
            assert unit.home != unit.backup


def test_a_capture_costs_more_the_longer_it_was_not_taken_and_a_state_is_bounded():
    unit = ClusterUnit("u", 0, 1, bursty=False, row_s=1e-4, rate=100.0)
    costs = [unit.costs_s(now)[0] for now in (0.1, 1.0, 5.0, 10.0, 20.0)]
    assert costs[:4] == sorted(costs[:4])
    assert costs[3] == costs[4]  # a window is gone after 10 s
    assert all(unit.costs_s(now)[1] > unit.costs_s(now)[0] for now in (1.0, 10.0))  # pasting new windows costs more


def test_a_unit_that_moves_keeps_its_old_image_until_the_new_one_is_pasted():
    made = run(ModelCluster(4, "round_robin"), 5)
    unit = made.servers[0].units[0]
    before = unit.backup
    unit.moves_to = next(i for i in range(4) if i not in (0, before))
    target, cycle = unit.moves_to, unit.cycle
    while unit.moves_to is not None:
        assert unit.backup == before
        run(made, made.now_s + 0.05)
    assert unit.backup == target
    assert unit.cycle > cycle
    assert unit in made.images[target]
    assert unit not in made.images[before]


def test_assignments_by_figure_6_make_the_worst_server_better():
    found = {}
    for assignment in ("random_static", "dynamic"):
        worst: list[float] = []
        made = ModelCluster(5, "round_robin", assignment=assignment, seed=1)
        made.run(
            70,
            lambda at, unit: rate_at(0.7),
            lambda cluster, worst=worst: worst.append(max(s.recovery_s() for s in cluster.servers)),
        )
        found[assignment] = sum(worst[-200:]) / 200
    assert found["dynamic"] < 0.8 * found["random_static"]


def test_active_standby_keeps_up_below_half_of_the_load_and_falls_behind_above():
    assert max(active_s(20, lambda at, unit: rate_at(0.45), 5)) < 0.01
    behind = active_s(20, lambda at, unit: rate_at(0.7), 5)
    assert behind[-1] == pytest.approx((2 * 0.7 - 1) * 20 / 4, rel=0.1)  # spread over four others


def test_the_trace_rises_and_then_is_bursty_around_its_mean():
    trace, steady = InputTrace(10, bursty=True), InputTrace(10, bursty=False)
    assert (steady(0, 0), steady(5, 0), steady(20, 0)) == (0, 1_000, 2_000)
    later = [trace(20 + i / 2, 0) for i in range(4_000)]
    mean = sum(later) / len(later)
    spread = (sum((rate - mean) ** 2 for rate in later) / len(later)) ** 0.5
    assert mean == pytest.approx(2_000, rel=0.05)
    assert spread == pytest.approx(700, rel=0.1)

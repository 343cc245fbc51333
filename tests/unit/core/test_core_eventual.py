"""When windows are checked, and how many (cec §III.A, §IV-B)."""

from __future__ import annotations

import math

import pytest

from holdfast.core.eventual import SECOND_NS, Attained, Cadence, Calibration, Checks, RecoverIn, Targets, Worth
from holdfast.errors import ConfigError
from holdfast.model.footprint import Extent


def ages(windows: int, tuples_each: int, rows_each: int):
    """Windows that left footprints one after the other, so many tuples and rows apart; none is newer than that."""

    def after(checks: int) -> Extent:
        if checks >= windows:
            return Extent(windows, windows, 0)
        left = windows - checks
        return Extent(windows, left * tuples_each + checks, left * rows_each)

    return after


def test_as_few_windows_are_checked_as_meet_the_targets_oldest_first():
    after = ages(100, 5, 7)  # now: 500 tuples, 700 rows
    assert Targets(500, 700).checks(after, 1000) == Checks(0, Attained.MET)
    assert Targets(400, None).checks(after, 1000) == Checks(25, Attained.MET)  # 75 * 5 + 25
    assert Targets(None, 350).checks(after, 1000) == Checks(50, Attained.MET)
    assert Targets(400, 350).checks(after, 1000) == Checks(50, Attained.MET)
    assert Targets(100, None).checks(after, 1000) == Checks(100, Attained.MET)


def test_more_checks_than_there_is_time_for_are_not_asked_for():
    assert Targets(None, 350).checks(ages(100, 5, 7), 20) == Checks(20, Attained.BEHIND)
    assert Targets(None, 350).checks(ages(100, 5, 7), 0) == Checks(0, Attained.BEHIND)


def test_a_target_below_the_number_of_open_windows_is_refused_as_unattainable():
    with pytest.raises(ConfigError, match="cannot be reached") as caught:
        Targets(99).check_attainable(100)
    assert "Q is 99 tuples, and 100 windows are open" in caught.value.detail
    Targets(100).check_attainable(100)
    Targets(None, 1).check_attainable(100)


def test_a_target_that_has_become_unattainable_asks_for_no_checks_in_vain_but_the_other_one_counts():
    after = ages(100, 5, 7)
    assert Targets(99).checks(after, 1000) == Checks(0, Attained.UNATTAINABLE)
    assert Targets(99, 350).checks(after, 1000) == Checks(50, Attained.UNATTAINABLE)


def test_what_is_worth_it_is_checked_at_the_age_at_which_checks_and_recoveries_cost_least_together():
    """N windows in turn: the oldest is checked at sqrt(N c / (rate r))."""
    costs = Calibration(check_ns=10_000, load_ns=0, replay_ns=1_000)
    costs.rows_per_s = 100_000.0
    windows, rate = 1_000, 1 / 600
    best_s = math.sqrt(windows * 10_000 / (rate * 1_000 * costs.rows_per_s))
    each = lambda age_s: int(age_s * costs.rows_per_s / windows)  # noqa: E731
    policy = Worth(crashes_per_s=rate)
    assert policy.checks(ages(windows, 1, each(0.9 * best_s)), windows, costs) == 0
    assert policy.checks(ages(windows, 1, each(1.1 * best_s)), windows, costs) > 0
    assert policy.checks(ages(windows, 1, each(1.1 * best_s)), 0, costs) == 0


def test_an_objective_checks_until_a_recovery_would_be_short_enough_and_says_when_none_would():
    costs = Calibration(check_ns=1_000, load_ns=1_000, replay_ns=500)
    after = ages(1_000, 20, 2_000)  # 20 ms of tuples and 1 s of rows
    assert RecoverIn(2 * SECOND_NS, margin=1.0).checks(after, 10_000, costs) == Checks(0, Attained.MET)
    found = RecoverIn(SECOND_NS // 2, margin=1.0).checks(after, 10_000, costs)
    assert found.verdict is Attained.MET
    assert costs.recovery_ns(after(found.count)) <= SECOND_NS // 2 < costs.recovery_ns(after(found.count - 1))
    assert RecoverIn(SECOND_NS // 2, margin=1.0).checks(after, 3, costs) == Checks(3, Attained.BEHIND)
    assert RecoverIn(900_000, margin=1.0).checks(after, 3, costs) == Checks(0, Attained.UNATTAINABLE)


def test_an_objective_comes_to_targets_and_a_cadence_by_itself():
    costs = Calibration(check_ns=1_000, load_ns=1_000, replay_ns=500)
    costs.rows_per_s, costs.tuples_per_s = 1e6, 1e5
    chosen = RecoverIn(SECOND_NS, margin=0.5).choose(10_000, costs)
    assert chosen.tuples_max > 10_000
    taken = costs.recovery_ns(Extent(10_000, chosen.tuples_max, chosen.rows_max))
    assert taken == pytest.approx(SECOND_NS / 2, rel=0.01)
    assert 0 < chosen.interval_ns < chosen.period_ns <= SECOND_NS
    Targets(chosen.tuples_max, chosen.rows_max).check_attainable(10_000)
    with pytest.raises(ConfigError, match="objective cannot be reached"):
        RecoverIn(SECOND_NS // 100).choose(1_000_000, costs)


def test_no_more_than_the_interval_of_every_period_goes_into_checks():
    cadence = Cadence(5, 100)
    assert cadence.left_ns(1_000) == 5
    cadence.spent(3)
    assert cadence.left_ns(1_050) == 2
    cadence.spent(9)  # one check took longer than was left: the next period pays for it
    assert cadence.left_ns(1_060) == 0
    assert cadence.left_ns(1_100) == 0
    assert cadence.left_ns(1_200) == 3
    assert cadence.left_ns(1_900) == 5
    with pytest.raises(ConfigError, match="interval cannot be used"):
        Cadence(10, 5)


def test_costs_are_learnt_from_what_is_measured():
    costs = Calibration(check_ns=1_000)
    for _ in range(100):
        costs.checked(1_000, 5_000_000)
        costs.grew(2_000, 10_000, SECOND_NS / 10)
    assert costs.check_ns == pytest.approx(5_000, rel=0.01)
    assert costs.rows_per_s == pytest.approx(100_000, rel=0.01)
    assert costs.tuples_per_s == pytest.approx(20_000, rel=0.01)
    costs.loaded(0, 10)
    assert costs.load_ns == 1_000

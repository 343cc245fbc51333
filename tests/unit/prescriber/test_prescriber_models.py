"""The exact models where another way to the same number exists."""

import math

import numpy as np
import pytest

from holdfast.prescriber import Scenario, catalogue
from holdfast.prescriber.models import StrategyPlan
from holdfast.prescriber.models.aa_periodic import aa_periodic_downtime_rough, checkpointer_rate
from holdfast.prescriber.models.on_demand import recovery_chain, stationary
from holdfast.prescriber.models.standby import fall_back_rate, refresh_size
from holdfast.prescriber.optimise import best, settle

EXACT, PUBLISHED = catalogue("exact"), catalogue("published")


def params(**changes):
    base = {"sla": 0.99999, "input_rate": 1.0, "mtbf": 100.0, "window": 2.0, "checkpoint_size": 5.0}
    return Scenario(**{**base, **changes}).params()


def test_all_eight_strategies_are_in_both_sets():
    names = ["replay", "replay_missing", "aa_replay", "periodic", "aa_periodic", "on_demand", "hybrid", "cooperative"]
    assert list(EXACT) == names
    assert list(PUBLISHED) == names


def test_replay_exact_and_published_agree_when_failures_during_recovery_are_rare():
    a = 1e-6
    exact, printed = (m["replay"].downtime(params(), StrategyPlan(a, 1, 1.0)) for m in (EXACT, PUBLISHED))
    assert exact == pytest.approx(printed, rel=1e-5)


def test_missing_output_has_the_closed_form_minus_log_sla():
    found = settle(EXACT["replay_missing"], params(sla=0.99, window=50.0), 1, 1.0)
    assert found.rr == pytest.approx(0.5 / -math.log(0.99), rel=1e-6)


def test_independent_copies_are_all_down_with_the_product_of_their_probabilities():
    one = EXACT["replay"].downtime(params(window=30.0), StrategyPlan(0.7, 1, 1.0))
    assert EXACT["aa_replay"].downtime(params(window=30.0), StrategyPlan(0.7, 3, 1.0)) == pytest.approx(one**3)


def test_periodic_exact_tends_to_published_when_everything_is_short():
    plan = StrategyPlan(1e-5, 1, 0.2)
    assert EXACT["periodic"].downtime(params(), plan) == pytest.approx(
        PUBLISHED["periodic"].downtime(params(), plan), rel=2e-3
    )


@pytest.mark.parametrize("copies", [2, 4])
def test_on_demand_with_rare_failures_follows_first_order_by_hand(copies):
    # Two copies: each failure stops both for S·a. Four: the two others fail meanwhile, or a donor dies in between.
    a, s = 1e-4, 0.05
    down, losses = recovery_chain(params(), StrategyPlan(a, copies, 1.0))
    u = a / (1 + a)
    if copies == 2:
        assert down == pytest.approx(2 * s * a, rel=1e-3)
        assert losses == pytest.approx(2 * u * s, rel=1e-3)
    else:
        assert 0.0 < down < (10 * s * a) ** 2
        assert 0.0 < losses < (10 * u * s) ** 3


def test_the_stationary_shares_of_a_chain_keep_their_digits_when_tiny():
    rare = 1e-14
    step = np.array([[0.0, 1.0, 0.0], [1.0 - rare, 0.0, rare], [1.0, 0.0, 0.0]])
    shares = stationary(step)
    assert shares @ step == pytest.approx(shares)
    assert shares[2] == pytest.approx(0.5 * rare, rel=1e-9)


def test_the_checkpointer_reserves_for_its_largest_checkpoint_not_for_the_average():
    assert checkpointer_rate(params(checkpoint_spread=0.2), 0.1) == pytest.approx(1.0 + 0.05 * 1.2 / 0.1)


def test_active_active_periodic_with_one_output_copy_is_down_as_long_as_its_recoveries_take():
    # Rollback averages C/2 + S/Q; recovery U·S + (rollback + U·S)·a; one failure per F_T.
    a, c, s = 1e-4, 0.2, 0.05
    q, u = 1 + s / c, a / (1 + a)
    by_hand = u * s + (c / 2 + s / q + u * s) * a
    assert EXACT["aa_periodic"].downtime(params(), StrategyPlan(a, 2, c)) == pytest.approx(by_hand, rel=5e-3)


def test_the_rough_stand_in_is_near_the_fine_quadrature():
    for copies in (2, 5):
        plan = StrategyPlan(0.3, copies, 0.1)
        assert aa_periodic_downtime_rough(params(), plan) == pytest.approx(
            EXACT["aa_periodic"].downtime(params(), plan), rel=0.1
        )


def test_hybrid_falls_back_as_often_as_two_failures_fall_within_a_build():
    assert fall_back_rate(1e-4, 0.0) == pytest.approx(2e-4, rel=1e-3)
    assert fall_back_rate(0.0, 0.5) == 0.0


def test_a_refresh_moves_what_changed_and_at_most_everything():
    assert refresh_size(params(churn=0.5), 1e-6) == pytest.approx(0.5e-6, rel=1e-3)
    assert refresh_size(params(), 1e3) == pytest.approx(0.05)


@pytest.mark.parametrize("name", list(EXACT))
def test_what_is_prescribed_uses_the_budget_up_or_is_bound_by_something_else(name):
    at = params(sla=0.999)
    found = best(EXACT[name], at)
    spent = EXACT[name].downtime(at, found.plan) / at.down
    bound_elsewhere = found.rr <= max(1.0 + 1e-9, found.floor * (1 + 1e-9))
    assert spent <= 1.0 + 1e-3
    assert bound_elsewhere or spent == pytest.approx(1.0, abs=1e-3)


def test_a_bound_on_rr_is_kept_and_costs_more():
    at = params(sla=0.99999)
    free, bound = best(EXACT["aa_periodic"], at), best(EXACT["aa_periodic"], at, rr_max=5.0)
    assert free.rr > 5.0
    assert bound.rr <= 5.0 * (1 + 1e-6)
    assert bound.cost > free.cost
    assert EXACT["aa_periodic"].downtime(at, bound.plan) <= at.down * (1 + 1e-3)

"""Sections 3.5 and 4 of shrink.txt: the printed formulas, by other means than the code's own."""

import numpy as np
import pytest

from holdfast.prescriber import Scenario
from holdfast.prescriber.models import StrategyPlan, catalogue
from holdfast.prescriber.models.aa_periodic import cheapest_interval, recovery_spent
from holdfast.prescriber.optimise import settle

PUBLISHED = catalogue("published")


def params(**changes):
    base = {"sla": 0.99, "input_rate": 1.0, "mtbf": 100.0, "window": 2.0, "checkpoint_size": 5.0}
    return Scenario(**{**base, **changes}).params()


@pytest.mark.parametrize("sla", [0.5, 0.9, 0.99999, 0.999999999])
@pytest.mark.parametrize("window", [1e-3, 2.0, 5e4])
def test_section_3_5_rr_of_replay_has_the_printed_closed_form(sla, window):
    budget = 100.0 * (1.0 - sla)
    found = settle(PUBLISHED["replay"], params(sla=sla, window=window), 1, 1.0)
    assert found.rr - 1.0 == pytest.approx(window / budget, rel=1e-6)
    assert found.cost == pytest.approx((2 * window + 6 * 100) / (6 * 100))


def printed_b1_b2(u, s, c, k):
    """B1 + B2 by brute force on the printed double integrals (§4.1.1, §4.1.2)."""

    def g(t):
        return k * np.exp(-t) * (1.0 - np.exp(-t)) ** (k - 1)

    fixed = u * (s + 2 * u * s / (1 - u))
    top = u * c / (1 - u)
    at, weight = np.polynomial.legendre.leggauss(80)
    at, weight = 0.5 * (at + 1), 0.5 * weight
    t, p = fixed * at, c * at
    spent = u * (s + 2 * u * s / (1 - u) + p[None, :] / (1 - u)) - t[:, None]
    b1 = np.sum(fixed * weight * g(t) * (spent @ weight))
    b2 = 0.0
    for x, w in zip(top * at, top * weight, strict=True):
        tp = (top - x) * at
        b2 += w * x * np.sum((top - x) * weight * g(tp + fixed) * (1 - u) / (u * c))
    return b1 + b2


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("u", [0.02, 0.4, 0.8])
def test_section_4_budget_spent_equals_the_printed_integrals(k, u):
    plan = StrategyPlan(u / (1 - u), k + 2, 0.3)
    assert recovery_spent(params(), plan, k) == pytest.approx(printed_b1_b2(u, 0.05, 0.3, k), rel=1e-9)


def test_section_4_cost_has_the_printed_form():
    n, k, f, s, c = 4, 3, 100.0, 5.0, 20.0
    printed = ((k + 1 + 2 * n) * f + n * 2 * (s + c / 2) + (k + 1) * s * f / c) / ((k + 3) * f)
    assert PUBLISHED["aa_periodic"].cost(params(), StrategyPlan(1.0, n, c / f)) == pytest.approx(printed)


def test_section_4_the_cheapest_interval_is_where_the_printed_cost_is_least():
    at = cheapest_interval(params(), 4)
    cost = PUBLISHED["aa_periodic"].cost
    assert cost(params(), StrategyPlan(1.0, 4, at)) < min(
        cost(params(), StrategyPlan(1.0, 4, at * x)) for x in (0.99, 1.01)
    )


def test_a_node_that_may_miss_output_replays_less_than_one_that_may_not():
    assert PUBLISHED["replay_missing"].cost(params(), StrategyPlan(0.5, 1, 1.0)) < PUBLISHED["replay"].cost(
        params(), StrategyPlan(0.5, 1, 1.0)
    )

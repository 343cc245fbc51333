"""Root finding and searches that end, with a number."""

import math

import numpy as np
import pytest

from holdfast.prescriber.numerics import a_of, all_fail_within, boundary, integrate, largest_a, minimise, rr_of


@pytest.mark.parametrize("budget", [1e-12, 1e-3, 0.5, 7.0])
@pytest.mark.parametrize("power", [1.0, 4.0, 9.0])
def test_the_root_is_exact_over_many_decades(budget, power):
    assert largest_a(lambda a: 3.0 * a**power, budget) == pytest.approx((budget / 3.0) ** (1.0 / power), rel=1e-9)


def test_a_budget_that_is_never_reached_gives_the_largest_a():
    assert rr_of(largest_a(lambda a: 0.1 * a / (1 + a), 0.5)) == pytest.approx(1.0)


def test_a_budget_that_cannot_be_met_gives_none():
    assert largest_a(lambda a: 0.5 + a, 0.1) is None


def test_a_function_with_a_cliff_does_not_hang():
    found = largest_a(lambda a: 0.0 if a < 2.0 else 1.0, 0.5)
    assert found == pytest.approx(2.0, rel=1e-6)


def test_rr_and_a_are_inverses():
    for rr in (1.0001, 2.0, 1e9):
        assert rr_of(a_of(rr)) == pytest.approx(rr)


def test_the_quadrature_is_exact_for_the_probabilities_it_is_used_on():
    exact = 2.0 - 2.0 * (1 - math.exp(-2.0)) + 0.5 * (1 - math.exp(-4.0))  # of (1 - e^-t)^2 over 0..2
    assert integrate(lambda t: all_fail_within(t, 2), 0.0, 2.0) == pytest.approx(exact, rel=1e-13)
    assert float(all_fail_within(np.array(1e-9), 1)) == pytest.approx(1e-9, rel=1e-9)


def test_the_minimum_of_a_valley_is_found_even_with_walls_of_infinity():
    assert minimise(lambda x: math.inf if x < -3 else (x - 1.5) ** 2, -20, 20) == pytest.approx(1.5, abs=1e-3)


def test_the_boundary_is_on_the_good_side():
    edge = boundary(lambda x: x <= 0.7, 0.0, 1.0)
    assert edge <= 0.7
    assert edge == pytest.approx(0.7, abs=1e-5)

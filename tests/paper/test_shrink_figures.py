"""The headline numbers of shrink.txt §7, from the published models.

docs/prescriber/models.md says which reading of the text gives each of them.

K_F = 3, F_T = 30 days; defaults W_T = 1 day, checkpoint = 1 window of input, SLA 90%.
"""

import pytest

from holdfast.prescriber import Scenario
from holdfast.prescriber.models import catalogue
from holdfast.prescriber.models.aa_periodic import FIGURES
from holdfast.prescriber.optimise import best, best_for_copies

DAY = 86400.0
PUBLISHED = catalogue("published")
READ = FIGURES[0]  # active-active periodic checkpoints with k = N_F - 1
LAST = 2.0**-16


def scenario(window=1.0, blow_up=1.0, down=0.1):
    return Scenario(
        sla=1.0 - down, window=window * DAY, checkpoint_size=blow_up * window * DAY, input_rate=1.0, mtbf=30 * DAY,
        durability=0.99999, durability_span=3650 * DAY,
    )  # fmt: skip


def solved(model, at, **bounds):
    found = best(model, at.params(), **bounds)
    assert found is not None
    return found


def test_figure_14_periodic_costs_near_100x_and_needs_over_400x_at_1000_windows():
    found = solved(PUBLISHED["periodic"], scenario(blow_up=1000))
    assert found.cost == pytest.approx(84.8, abs=0.1)  # "nearly 100x"; no reading of the text gives more than 85.5
    assert found.rr == pytest.approx(416.8, abs=0.5)


def test_figure_14_replay_does_not_care_how_large_checkpoints_are():
    assert len({solved(PUBLISHED["replay"], scenario(blow_up=x)).cost for x in (0.001, 1, 1000)}) == 1


def test_figure_15_at_1000_days_replay_costs_12x_and_periodic_3_4x():
    at = scenario(window=1000, blow_up=0.01)
    assert solved(PUBLISHED["replay"], at).cost == pytest.approx(12.1, abs=0.05)
    assert solved(PUBLISHED["periodic"], at).cost == pytest.approx(3.41, abs=0.01)


def test_figure_15_at_1000_days_replay_needs_over_300x_and_periodic_13x():
    at = scenario(window=1000, blow_up=0.01)
    assert solved(PUBLISHED["replay"], at).rr == pytest.approx(334.3, abs=0.1)
    assert solved(PUBLISHED["periodic"], at).rr == pytest.approx(12.77, abs=0.02)


def test_figures_16_and_17_periodic_costs_over_3000x_and_needs_almost_20000x():
    found = solved(PUBLISHED["periodic"], scenario(down=LAST))
    assert found.cost == pytest.approx(3185, abs=1)
    assert found.rr == pytest.approx(19107, abs=2)


def test_figures_16_and_17_replay_needs_over_2000x_at_a_cost_of_about_1():
    found = solved(PUBLISHED["replay"], scenario(down=LAST))
    assert found.rr == pytest.approx(2185.5, abs=0.1)
    assert found.cost == pytest.approx(1.011, abs=0.001)


def test_figures_16_and_17_do_not_come_out_at_five_nines():
    found = solved(PUBLISHED["periodic"], scenario(down=1e-5))
    assert found.rr > 29_000
    assert found.cost > 4_800


def test_figures_18_and_19_two_nodes_are_cheaper_from_one_nine_on_but_not_at_50_percent():
    for down in (0.1, 0.01, LAST):
        at = scenario(down=down)
        assert solved(READ, at, copies=2).cost < solved(PUBLISHED["periodic"], at).cost
    at = scenario(down=0.5)
    assert solved(READ, at, copies=2).cost > solved(PUBLISHED["periodic"], at).cost


def test_figure_18_the_cost_of_two_nodes_does_not_depend_on_the_sla():
    costs = {solved(READ, scenario(down=down), copies=2).cost for down in (0.5, 0.1, 1e-3, LAST)}
    assert len(costs) == 1
    assert costs.pop() == pytest.approx(1.528, abs=0.001)


def test_figure_19_two_nodes_need_more_and_more_bandwidth_as_the_sla_grows():
    rr = [solved(READ, scenario(down=down), copies=2).rr for down in (0.1, 1e-2, 1e-3, LAST)]
    assert rr == sorted(rr)
    assert rr[-1] == pytest.approx(46.9, abs=0.1)


def test_figure_20_cost_and_rr_cross_at_about_five_nodes_near_2_5_with_k_n_minus_1():
    at = scenario(down=1e-5)
    four, five = solved(READ, at, copies=4), solved(READ, at, copies=5)
    assert four.rr > four.cost
    assert five.rr < five.cost
    assert five.rr == pytest.approx(2.48, abs=0.01)
    assert five.cost == pytest.approx(2.66, abs=0.01)


def test_figure_20_as_printed_with_k_n_minus_2_crosses_only_between_five_and_six_nodes():
    at = scenario(down=1e-5)
    five, six = (solved(PUBLISHED["aa_periodic"], at, copies=n) for n in (5, 6))
    assert five.rr > five.cost
    assert six.rr < six.cost
    assert five.rr == pytest.approx(3.69, abs=0.01)


def least_cost(model, at, rr_max):
    found = [best_for_copies(model, at.params(), n, rr_max=rr_max) for n in range(2, 11)]
    return min((choice.cost for choice in found if choice is not None), default=float("inf"))


@pytest.mark.parametrize(("periodic", "before", "after"), [(READ, 1.65, 1.8), (PUBLISHED["aa_periodic"], 2.2, 2.4)])
def test_figure_21_periodic_becomes_cheaper_than_on_demand_at_an_rr_of_about_2(periodic, before, after):
    at, on_demand = scenario(down=1e-5), PUBLISHED["on_demand"]
    assert least_cost(periodic, at, before) > least_cost(on_demand, at, before)
    assert least_cost(periodic, at, after) < least_cost(on_demand, at, after)


def test_the_durability_sla_and_not_uptime_sets_on_demands_reservation_below_six_copies():
    at = scenario(down=1e-5)
    assert solved(PUBLISHED["on_demand"], at, copies=5).rr == pytest.approx(2.93, abs=0.01)
    assert solved(PUBLISHED["on_demand"], at, copies=6).rr == pytest.approx(1.33, abs=0.01)

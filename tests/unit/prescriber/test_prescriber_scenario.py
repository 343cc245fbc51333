"""A scenario is checked once, when it is made."""

import math

import pytest

from holdfast.errors import ConfigError
from holdfast.prescriber import Scenario

GOOD = {"sla": 0.999, "input_rate": 2e6, "mtbf": 2.6e6, "window": 600.0, "checkpoint_size": 3e8}


@pytest.mark.parametrize(
    "change",
    [
        {"sla": 1.0}, {"sla": 0.0}, {"sla": math.nan}, {"window": 0.0}, {"window": -1.0}, {"mtbf": math.inf},
        {"input_rate": math.nan}, {"checkpoint_size": -3.0}, {"replicas": 0}, {"replicas": 2.5}, {"replicas": True},
        {"durability": 1.0}, {"durability_span": 0.0}, {"checkpoint_spread": 1.0}, {"checkpoint_spread": math.nan},
        {"churn": 0.0}, {"window": None, "checkpoint_size": None},
    ],
)  # fmt: skip
def test_a_scenario_that_cannot_be_is_refused(change):
    with pytest.raises(ConfigError):
        Scenario(**{**GOOD, **change})


def test_the_models_see_times_in_units_of_the_mtbf():
    params = Scenario(**GOOD).params()
    assert params.window == pytest.approx(600 / 2.6e6)
    assert params.transfer == pytest.approx(150 / 2.6e6)
    assert params.down == pytest.approx(0.001)


def test_what_if_changes_one_parameter_and_nothing_else():
    changed = Scenario(**GOOD).but(window=60.0)
    assert changed.window == 60.0
    assert changed.but(window=600.0) == Scenario(**GOOD)

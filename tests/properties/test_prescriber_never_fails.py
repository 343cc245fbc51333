"""Any scenario that can be stated gets an answer: finite numbers or a reason, never NaN, never a hang."""

import json
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.prescriber import Scenario, catalogue, prescribe
from holdfast.prescriber.models import StrategyPlan
from holdfast.prescriber.recommend import assess

MODELS = {kind: catalogue(kind, rough=True) for kind in ("exact", "published")}  # rough: the same paths, sooner

log = {"allow_nan": False, "allow_infinity": False}


def powers(low, high):
    return st.floats(low, high, **log).map(lambda power: 10.0**power)


#: SLAs from one half to nine nines, windows from a millisecond to years, checkpoint blow-ups from 1e-6 to 1e6.
scenarios = st.builds(
    lambda down, window, blow_up, rate, mtbf, spread, replicas: Scenario(
        sla=1.0 - down, window=window, checkpoint_size=blow_up * window * rate, input_rate=rate, mtbf=mtbf,
        checkpoint_spread=spread, replicas=replicas,
    ),
    powers(-9, math.log10(0.5)), powers(-3, 8.5), powers(-6, 6), powers(0, 10), powers(0, 9),
    st.floats(0, 0.9, **log), st.integers(1, 20),
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(
    scenarios,
    st.sampled_from(["exact", "published"]),
    st.none() | st.floats(1.0, 1e6, **log),
    st.none() | st.integers(2, 10),
)
def test_every_strategy_answers_with_finite_numbers_or_a_reason(scenario, kind, rr_max, copies):
    for model in MODELS[kind].values():
        found = assess(model, scenario, copies=copies, rr_max=rr_max)
        assert found.why
        if found.feasible:
            assert math.isfinite(found.rr) and found.rr >= 1.0  # noqa: PT018
            assert math.isfinite(found.cost) and found.cost > 0.0  # noqa: PT018
            assert rr_max is None or found.rr <= rr_max * (1 + 1e-6)
            assert found.checkpoint_interval is None or math.isfinite(found.checkpoint_interval)
        json.dumps(found.as_json(), allow_nan=False)


@settings(max_examples=60, deadline=None)
@given(
    scenarios,
    st.sampled_from(["exact", "published"]),
    st.floats(-30, 12, **log),
    st.floats(-8, 4, **log),
    st.integers(2, 10),
)
def test_downtime_is_a_number_from_zero_up_wherever_the_search_may_look(scenario, kind, log_a, log_interval, copies):
    params = scenario.params()
    for model in MODELS[kind].values():
        plan = StrategyPlan(math.exp(log_a), copies if model.multi else model.copies_min, 10.0**log_interval)
        down = model.downtime(params, plan)
        assert down >= 0.0
        assert not math.isnan(model.cost(params, plan))
        if kind == "exact":
            assert down <= 1.0


@settings(max_examples=30, deadline=None)
@given(scenarios, st.floats(1.5, 100, **log))
def test_a_stricter_sla_never_needs_less_bandwidth(scenario, factor):
    stricter = scenario.but(sla=1.0 - (1.0 - scenario.sla) / factor)
    for name in ("replay", "replay_missing", "aa_replay"):
        model = MODELS["exact"][name]
        loose, strict = assess(model, scenario, copies=3), assess(model, stricter, copies=3)
        assert strict.rr >= loose.rr * (1 - 1e-9)


@settings(max_examples=3, deadline=None)
@given(scenarios)
def test_the_whole_ranking_is_json_with_every_strategy_in_it(scenario):
    found = json.loads(json.dumps(prescribe(scenario).as_json(), allow_nan=False))
    assert {s["name"] for s in found["strategies"]} == set(MODELS["exact"])

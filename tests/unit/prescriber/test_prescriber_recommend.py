"""Ranking, resources, sensitivity, composition, the decider and measurement files."""

import json
import subprocess
import sys

import pytest

from holdfast.errors import ConfigError
from holdfast.prescriber import Decider, Prices, Scenario, cache, distribute, prescribe, sensitivity, shard, slowest
from holdfast.prescriber.measure import read_parameters
from holdfast.prescriber.recommend import front_runners

BASE = Scenario(sla=0.9999, window=600.0, checkpoint_size=3e8, input_rate=2e6, mtbf=30 * 86400.0)
SECOND = 1_000_000_000


def by_name(found):
    return {strategy.name: strategy for strategy in found.strategies}


def test_the_cheapest_feasible_strategy_comes_first_and_the_sentence_names_it():
    found = prescribe(BASE, allow_missing=True)
    costs = [strategy.cost for strategy in found.strategies if strategy.feasible]
    assert costs == sorted(costs)
    assert found.winner is found.strategies[0]
    assert found.winner.title in found.sentence
    assert "comes next" in found.sentence


def test_a_strategy_that_may_miss_output_does_not_win_unless_allowed():
    assert prescribe(BASE).winner.name == "replay"
    assert prescribe(BASE, allow_missing=True).winner.name == "replay_missing"


def test_without_a_window_the_strategies_that_need_one_say_so():
    found = by_name(prescribe(BASE.but(window=None)))
    assert not found["replay"].feasible
    assert "window" in found["replay"].why
    assert found["aa_periodic"].feasible


def test_without_a_checkpoint_size_only_replay_is_left():
    found = prescribe(BASE.but(checkpoint_size=None))
    assert {s.name for s in found.strategies if s.feasible} == {"replay", "replay_missing", "aa_replay"}


def test_a_bound_that_nothing_meets_leaves_no_winner_and_no_numbers():
    found = prescribe(BASE.but(sla=0.999999999, window=None), rr_max=1.0, copies=2)
    assert found.winner is None
    assert all(s.rr is None and s.cost is None for s in found.strategies)
    assert "No strategy" in found.sentence
    json.dumps(found.as_json(), allow_nan=False)


def test_fixed_copies_and_interval_are_kept():
    found = by_name(prescribe(BASE, copies=4, checkpoint_interval=3600.0))
    assert found["aa_periodic"].copies == 4
    assert found["aa_periodic"].checkpoint_interval == pytest.approx(3600.0)
    assert found["replay"].copies == 1


def test_one_copy_makes_active_strategies_impossible():
    found = by_name(prescribe(BASE, copies=1))
    assert not found["on_demand"].feasible
    assert "at least 2 copies" in found["on_demand"].why


@pytest.mark.parametrize(
    "bad",
    [
        {"copies": 0},
        {"copies": 11},
        {"rr_max": 0.5},
        {"rr_max": float("nan")},
        {"checkpoint_interval": 0.0},
        {"models": "x"},
    ],
)
def test_choices_that_cannot_be_are_refused(bad):
    with pytest.raises(ConfigError):
        prescribe(BASE, **bad)


def test_money_follows_ones_own_prices():
    cheap = by_name(prescribe(BASE, prices=Prices(network=1.0)))["aa_replay"]
    dear = by_name(prescribe(BASE, prices=Prices(network=1.0, memory=10.0)))["aa_replay"]
    assert cheap.money == pytest.approx(cheap.cost * 6 * 2.0)
    assert dear.money == pytest.approx(cheap.money + 2 * 0.3 * 10.0)
    assert by_name(prescribe(BASE))["aa_replay"].money is None


def test_sensitivity_finds_where_the_winner_changes():
    turns = sensitivity(BASE, rr_max=4.0)
    assert turns
    turn = next(turn for turn in turns if turn.parameter == "window")
    beyond = BASE.but(window=BASE.window * turn.factor**1.1)
    assert prescribe(beyond, rr_max=4.0).winner.name == turn.winner
    assert prescribe(BASE, rr_max=4.0).winner.name != turn.winner


def test_the_front_runners_are_the_first_two_of_the_whole_ranking():
    for bound in (None, 1.5):
        whole = [s.name for s in prescribe(BASE, rr_max=bound).strategies if s.feasible and s.name != "replay_missing"]
        assert [s.name for s in front_runners(BASE, rr_max=bound)] == whole[:2]


def test_shards_share_the_sla_so_that_all_together_meet_it():
    part = shard(BASE, 8)
    assert part.sla**8 == pytest.approx(BASE.sla)
    assert part.transfer_s == pytest.approx(BASE.transfer_s)
    with pytest.raises(ConfigError):
        shard(BASE, 0)


def test_a_pipeline_of_stages_costs_the_mean_of_its_stages_by_traffic():
    found = distribute([BASE, BASE.but(input_rate=1e6, window=60.0)], sla=0.999)
    costs = [stage.winner.cost for stage in found.stages]
    assert found.cost == pytest.approx((2 * costs[0] + costs[1]) / 3)
    assert found.stages[0].scenario.sla ** 2 == pytest.approx(0.999)


def test_caching_shrinks_checkpoints_and_charges_for_the_traffic():
    remote = cache(BASE, kept=0.1, traffic=0.2)
    assert remote.scenario.checkpoint_size == pytest.approx(3e7)
    assert remote.extra_cost == pytest.approx(0.2 * 6 / 6)
    assert cache(BASE, kept=0.1, traffic=0.2, store="local").extra_cost < 1e-3
    for bad in (
        {"kept": 0.0, "traffic": 0.1},
        {"kept": 0.5, "traffic": -1.0},
        {"kept": 0.5, "traffic": 0.1, "store": "moon"},
    ):
        with pytest.raises(ConfigError):
            cache(BASE, **bad)


def test_the_slowest_resource_sets_how_long_a_checkpoint_takes():
    assert slowest(BASE, serialise_rate=1e6).transfer_s == pytest.approx(300.0)
    assert slowest(BASE, serialise_rate=1e9, store_rate=1e9) == BASE


ALLOWED = frozenset({"replay", "periodic", "aa_replay"})


def decider(hold_s=60, gain=0.1):
    return Decider(allowed=ALLOWED, hold_ns=hold_s * SECOND, gain=gain)


LONG = BASE.but(window=40 * 86400.0, sla=0.9, checkpoint_size=1e6)  # periodic is cheaper by far here


def test_the_decider_decides_at_once_when_nothing_runs():
    decision = decider().on_measured(BASE, 0)
    assert decision.strategy.name == "replay"
    assert decision.previous is None
    assert decision.sentence.startswith("Running replay with 1 copy at")
    assert decision.sentence.count(".") >= 1
    assert "\n" not in decision.sentence


def test_a_change_must_last_before_the_decider_acts():
    machine = decider()
    machine.on_measured(BASE, 0)
    assert machine.on_measured(LONG, 10 * SECOND) is None
    assert machine.on_measured(LONG, 69 * SECOND) is None
    decision = machine.on_measured(LONG, 70 * SECOND)
    assert (decision.previous, decision.strategy.name) == ("replay", "periodic")
    assert "less than replay" in decision.sentence


def test_a_change_that_goes_away_starts_the_wait_again():
    machine = decider()
    machine.on_measured(BASE, 0)
    machine.on_measured(LONG, 10 * SECOND)
    machine.on_measured(BASE, 50 * SECOND)
    machine.on_measured(LONG, 60 * SECOND)
    assert machine.on_measured(LONG, 110 * SECOND) is None
    assert machine.on_measured(LONG, 120 * SECOND) is not None


def test_a_gain_too_small_changes_nothing_however_long_it_lasts():
    machine = decider(gain=0.9)
    machine.on_measured(BASE, 0)
    assert all(machine.on_measured(LONG, at * 100 * SECOND) is None for at in range(1, 20))
    assert machine.current == "replay"


def test_a_strategy_that_no_longer_meets_the_sla_is_left_after_the_hold_whatever_it_costs():
    machine = Decider(allowed=ALLOWED, hold_ns=60 * SECOND, gain=0.9, rr_max=4.0)
    machine.on_measured(BASE, 0)
    worse = BASE.but(window=86400.0)
    machine.on_measured(worse, SECOND)
    decision = machine.on_measured(worse, 61 * SECOND)
    assert decision.strategy.name == "aa_replay"
    assert "has not met the SLA" in decision.sentence


def test_a_measurement_file_turns_observations_into_parameters(tmp_path):
    path = tmp_path / "run.json"
    path.write_text(json.dumps({
        "window": "10min", "input_bytes": 1.2e9, "input_seconds": 600, "checkpoint_sizes": [2e8, 4e8],
        "failures": 4, "nodes": 5, "observed": "24d",
    }))  # fmt: skip
    found = read_parameters(path)
    assert found["input_rate"] == pytest.approx(2e6)
    assert found["checkpoint_size"] == pytest.approx(3e8)
    assert found["checkpoint_spread"] == pytest.approx(3**0.5 / 3)
    assert found["mtbf"] == pytest.approx(30 * 86400)


@pytest.mark.parametrize(
    "text",
    [
        "[1]",
        "{",
        '{"windw": 3}',
        '{"failures": 3}',
        '{"checkpoint_sizes": []}',
        '{"input_bytes": "x", "input_seconds": 2}',
    ],
)
def test_a_measurement_file_that_makes_no_sense_is_refused(tmp_path, text):
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(ConfigError):
        read_parameters(path)


def test_the_prescriber_needs_neither_spark_nor_matplotlib():
    heavy = "{'pyspark', 'matplotlib', 'pandas'}"
    code = f"import sys, holdfast.prescriber, holdfast.prescriber.emulator; print({heavy} & set(sys.modules))"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
        == "set()"
    )

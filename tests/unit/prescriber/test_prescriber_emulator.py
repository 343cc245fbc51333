"""The emulator: mechanisms by hand, failures, sizes, and the exact models against it (the bench does the grid)."""

import numpy as np
import pytest

from holdfast.errors import ConfigError
from holdfast.prescriber import Scenario, catalogue
from holdfast.prescriber.emulator import Lifetimes, emulate, kernels
from holdfast.prescriber.emulator.sizes import PANES, Events, grouped_count_sizes
from holdfast.prescriber.models import StrategyPlan
from holdfast.prescriber.models.on_demand import recovery_chain
from holdfast.prescriber.optimise import best

EXACT = catalogue("exact")


def params(nines=2, size=29.3, window=10.0, spread=0.2):
    return Scenario(
        sla=1 - 10.0**-nines, input_rate=1.0, mtbf=100.0, window=window, checkpoint_size=size,
        checkpoint_spread=spread, durability=1e-9, durability_span=1e-9,
    ).params()  # fmt: skip


def test_one_failure_of_replay_by_hand():
    # Fails at 1, reads a window of 0.4 at twice the input rate (0.2 s), then works off the 0.2 of lag: level at 1.4.
    time, down, _ = kernels.replay(np.array([1.0, 5.0, 1.0]), 0.4, 2.0, 1, True)
    assert (time, down) == pytest.approx((6.0, 0.4))


def test_a_failure_during_recovery_carries_its_lag_along():
    # Fails at 1 and again at 1.1 while it reads: 0.1 behind, so 0.2 + (0.1 + 0.2) more.
    time, down, _ = kernels.replay(np.array([1.0, 0.1, 5.0, 1.0]), 0.4, 2.0, 1, True)
    assert (time, down) == pytest.approx((6.1, 0.1 + 0.5))


def test_checkpoints_stop_a_single_node():
    # Due at 1, 2, 3 …; each stops it for 0.1/2 and takes as long again to catch up.
    time, down, _ = kernels.periodic(np.array([3.9, 1.0]), np.array([0.1]), 1.0, 2.0)
    assert (time, down) == pytest.approx((3.9, 3 * 0.1))


def test_two_on_demand_copies_stand_still_while_one_feeds_the_other():
    lives = np.array([1.0, 50.0, 20.0, 1.0])
    time, down, losses = kernels.on_demand(lives, np.array([0.2]), 2.0, 2)
    assert (time, down, losses) == pytest.approx((21.0, 2 * 0.2 - 0.2, 0))


def test_a_donor_that_dies_takes_the_state_with_it_when_it_was_the_last():
    lives = np.array([1.0, 1.05, 20.0, 30.0, 1.0, 1.0])
    assert kernels.on_demand(lives, np.array([0.2]), 2.0, 2)[2] == 1


def test_the_same_seed_gives_the_same_outcome_and_another_does_not():
    plan = best(EXACT["aa_replay"], params(), copies=2).plan
    one, two, three = (emulate("aa_replay", params(), plan, seed=seed, failures_max=1) for seed in (1, 1, 2))
    assert one == two
    assert one.down != three.down


@pytest.mark.parametrize("name", list(EXACT))
@pytest.mark.parametrize("copies", [2, 3])
def test_emulated_downtime_agrees_with_the_exact_model_at_two_nines(name, copies):
    at = params()
    choice = best(EXACT[name], at, copies=copies)
    outcome = emulate(name, at, choice.plan, seed=7, failures_max=3_000_000)
    predicted = EXACT[name].downtime(at, choice.plan)
    assert outcome.half_width < 0.04 * predicted
    assert outcome.agrees(predicted)


def test_the_printed_on_demand_model_misses_its_budget_by_more_than_a_factor_of_two():
    at = params(nines=3)
    plan = best(catalogue("published")["on_demand"], at, copies=3).plan
    assert emulate("on_demand", at, plan, failures_max=2_000_000).down > 2.0 * at.down


def test_the_printed_active_active_periodic_model_buys_twice_the_uptime_asked_for_with_two_nodes():
    at = params(nines=3)
    plan = best(catalogue("published")["aa_periodic"], at, copies=2).plan
    assert emulate("aa_periodic", at, plan, failures_max=1_000_000).down < 0.65 * at.down


def test_losses_of_the_state_come_as_often_as_the_chain_says():
    at = params()
    plan = best(EXACT["on_demand"], at, copies=2).plan
    outcome = emulate("on_demand", at, plan, precision=1e-9, failures_max=2_000_000)
    assert outcome.losses_per_mtbf == pytest.approx(recovery_chain(at, plan)[1], rel=0.08)


@pytest.mark.parametrize("lifetimes", [Lifetimes(), Lifetimes.weibull(0.7), Lifetimes(kind="trace", trace=(0.5, 1.5))])
def test_lifetimes_have_mean_one_whatever_their_kind(lifetimes):
    assert lifetimes.draw(np.random.default_rng(1), 200_000).mean() == pytest.approx(1.0, abs=0.02)


def test_lifetimes_are_read_from_a_file_and_scaled_to_mean_one(tmp_path):
    path = tmp_path / "lives.txt"
    path.write_text("# hours\n10\n\n30\n")
    assert Lifetimes.from_file(path).trace == (0.5, 1.5)
    path.write_text("10\n-3\n")
    with pytest.raises(ConfigError, match="line 2"):
        Lifetimes.from_file(path)
    path.write_text("#\n")
    with pytest.raises(ConfigError, match="no lifetimes"):
        Lifetimes.from_file(path)


def test_a_strategy_that_does_not_exist_is_refused():
    with pytest.raises(ConfigError):
        emulate("prayer", params(), StrategyPlan(1.0, 1, 1.0))


def test_checkpoints_of_a_grouped_count_grow_with_the_groups_and_follow_the_load():
    rng = np.random.default_rng(3)
    times = np.sort(np.concatenate([rng.uniform(0, 5e3, 2000), rng.uniform(5e3, 1e4, 8000)]))
    events = Events(rng.integers(0, 5000, 10_000), times, 20.0)
    few, many = (grouped_count_sizes(events, groups, window_s=1000.0, points=40) for groups in (8, 100_000))
    assert many.transfer_s > 10 * few.transfer_s
    assert few.spread < 0.1 < many.spread
    assert many.sizes[-1] > 2 * many.sizes[0]
    assert many.input_rate == pytest.approx(10_000 * 20 / (times[-1] - times[0]))
    assert many.as_transfers(0.3).mean() == pytest.approx(0.3)
    # The last checkpoint holds exactly the groups of the panes that an open window still needs: 36 bytes each.
    step = int(1000.0 * 1e6) // PANES
    times_us = np.round(events.times * 1e6).astype(np.int64)
    needed = times_us >= ((times_us[-1] - PANES * step) // step + 1) * step
    alive = len(set(zip((times_us[needed] // step).tolist(), events.users[needed].tolist(), strict=True)))
    assert many.sizes[-1] == pytest.approx(36 * alive, abs=600)


def test_a_plan_that_never_catches_up_is_refused_instead_of_divided_by_zero():
    with pytest.raises(ConfigError, match="catches up"):
        emulate("replay", params(), StrategyPlan(1e300, 1, 1.0))

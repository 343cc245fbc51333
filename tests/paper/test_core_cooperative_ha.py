"""What cooperative-ha says of fail-over, against the core in its virtual world."""

from __future__ import annotations

from statistics import median

import pytest

from holdfast.model import notes
from holdfast.model.config import MS, Config
from holdfast.model.ids import name_of
from holdfast.model.protection import Protection
from holdfast.model.topology import layered
from holdfast.sim.costs import Costs
from holdfast.sim.faults import Fault
from holdfast.sim.runner import retrace
from holdfast.sim.simulation import Setup, Simulation

CRASH = Fault(kind="crash", at_ms=1_000, node="n0")


def setup(**changes) -> Setup:
    plan = {"seed": 3, "nodes": 5, "topology": layered(stages=1, shards=20), "faults": (CRASH,), "revive": False}
    return Setup(**{**plan, **changes})


def words(lines: list[str], first: str) -> list[list[str]]:
    return [line.split() for line in lines if line.split()[2] == first]


def test_section_3_2_a_server_never_backs_up_itself():
    run = Simulation(setup())
    assert not run.run().violation
    for place in run.checker.record.places.values():
        names = [name_of(seat) for seat in place.holders]
        assert len(names) == len(set(names))


def test_section_3_5_every_100_ms_and_dead_after_300():
    config = Config()
    assert (config.heartbeat_ns, config.misses_max) == (100_000_000, 3)
    _, trace = retrace(setup())
    suspected = min(float(line[0]) for line in words(trace.lines, "suspects"))
    assert 1_300 <= suspected <= 1_400


def test_section_3_5_all_who_hold_images_recover_together():
    _, trace = retrace(setup())
    promoted = [line for line in words(trace.lines, "promoted") if line[5] == "2"]
    seats = {line[4] for line in promoted}
    assert len(promoted) == 4
    assert len(seats) >= 3
    times = [float(line[0]) for line in promoted]
    assert max(times) - min(times) < 5


def test_section_3_5_the_period_of_instability_ends_and_is_reported():
    outcome, trace = retrace(setup())
    assert len(outcome.instability_ms) >= 1
    assert 0 < max(outcome.instability_ms) < 500
    assert words(trace.lines, "stable-again")


def test_section_3_5_a_server_that_comes_back_joins_as_a_new_member():
    faults = (CRASH, Fault(kind="restart", at_ms=1_700, node="n0"))
    config = Config(load_period_ns=100_000_000, balance_ns=300_000_000)  # a backup may move for balance every 0.3 s
    run = Simulation(setup(faults=faults, safety_ms=4_000, config=config))
    assert not run.run().violation
    assert run.checker.record.members["n0"] == 2
    held = [s for p in run.checker.record.places.values() for s in p.holders if name_of(s) == "n0" and "#" in s]
    assert held
    assert all(seat == "n0#2" for seat in held)


def test_section_3_3_output_is_kept_until_downstream_has_checkpointed_it():
    outcome = Simulation(setup(topology=layered(stages=1, shards=4, tops=2))).run()
    assert not outcome.violation
    assert outcome.promotions > 0


def test_section_7_deltas_send_less_than_whole_captures():
    sent = {}
    for method in ("whole", "delta"):
        outcome = Simulation(
            setup(
                config=Config(protection=Protection(method=method)),
                faults=(),
                window_ms=5_000,
                keys=200,
                safety_ms=3_000,
            )
        ).run()
        assert not outcome.violation
        sent[method] = outcome.bytes
    assert sent["delta"] < sent["whole"]


def recoveries(scheduler: str, kills: int) -> list[notes.Recovered]:
    """A node is killed at some moment of a run whose operators have something to do, again and again."""
    found: list[notes.Recovered] = []
    for seed in range(kills):
        run = Simulation(
            setup(
                seed=seed, nodes=4, topology=layered(stages=1, shards=8), safety_ms=2_500, keys=40, window_ms=1_000,
                config=Config(scheduler=scheduler, protection=Protection(period_ns=200 * MS)),
                costs=Costs(row_ns=200_000, capture_window_ns=20_000, paste_window_ns=30_000),
                faults=(Fault(kind="crash", at_ms=1_500 + 37 * seed, node="n1"),), rows_per_second=400, trigger_ms=100,
            )
        )  # fmt: skip
        run.world.notices.append(
            lambda at_ns, source, noted: found.extend(note for note in noted if isinstance(note, notes.Recovered))
        )
        assert not run.run().violation
    return found


@pytest.mark.parametrize("scheduler", ["period", "min_max"])
def test_section_5_expected_recovery_is_what_recoveries_take(scheduler):
    """In the virtual world, by what operators work: the median is off by less than 30%."""
    found = [note for note in recoveries(scheduler, 12) if note.worked_ns]
    assert len(found) >= 12
    errors = [abs(note.expected_ns - note.worked_ns) / note.worked_ns for note in found]
    assert median(errors) < 0.3
    assert max(errors) < 1

"""The bench of hybrid-ha: its counts and its machine model, at the smallest size."""

from __future__ import annotations

from random import Random

import pytest

from bench.hybrid.chain import MODES, Taps, freezes, homes, setup
from bench.hybrid.detectors import EVERY_NS, SPIKE_NS, Alarmed, Core, judged
from holdfast.model import notes
from holdfast.model.config import MS
from holdfast.model.ids import Name
from holdfast.sim.simulation import Simulation


def test_in_mode_active_four_times_as_many_elements_travel_between_operators():
    elements = {}
    for mode in MODES:
        taps = Taps(Simulation(setup(mode, length=3, nodes=4, rate=50, for_ms=1_000)))
        taps.run.run_safety()
        elements[mode] = taps.elements()
        assert taps.delay_ms() > 0
        assert (taps.captured > 0) == (mode in ("passive", "hybrid"))
    assert elements["active"] == pytest.approx(4 * elements["none"], rel=0.15)
    assert elements["hybrid"] == pytest.approx(elements["none"], rel=0.15)


def test_the_node_that_freezes_has_the_primary_of_the_last_operator_and_is_stood_in_for():
    taps = Taps(
        Simulation(setup("hybrid", length=4, nodes=5, rate=50, for_ms=1_500, faults=freezes(Name("n3"), [(300, 600)])))
    )
    taps.run.run_safety()
    assert homes(taps.run)[0] == "n3"
    assert taps.seen_ns((notes.StandsIn,), 0) > 0
    assert taps.seen_ns((notes.StandsDown,), 0) > 0


def test_a_stop_costs_the_rows_that_its_stand_in_reads_and_no_more():
    """hybrid-ha figure 10: about rate times length of the stop; and nothing goes to a backup that has stood down."""
    rate, stop_ms = 100, 1_500
    size = {"length": 4, "nodes": 5, "rate": rate, "for_ms": 500 + stop_ms + 1_500}
    calm = Taps(Simulation(setup("hybrid", **size)))
    hurt = Taps(Simulation(setup("hybrid", faults=freezes(Name("n3"), [(500, stop_ms)]), **size)))
    after = []
    for taps in (calm, hurt):
        taps.run.run_safety()
        after.append(taps.rows["n2#1", "n4#1"])
    assert after[0] == 0
    assert 0 < after[1] <= 1.5 * rate * stop_ms / 1e3
    assert hurt.elements() - calm.elements() <= 1.5 * rate * stop_ms / 1e3


def test_a_core_is_as_busy_as_it_was_told():
    core = Core(Random(1))
    core.run(100_000 * MS, 0.6)
    assert core.busy_ns / core.now_ns == pytest.approx(0.6, abs=0.03)


def test_alarms_are_judged_against_the_spikes_that_were_there():
    begun = EVERY_NS - SPIKE_NS
    watched = Alarmed()
    for now_ns in (5, begun + 100 * MS, begun + 300 * MS, EVERY_NS + 60 * MS):  # outside, inside, inside, just after
        watched.say(True, now_ns)
        watched.say(True, now_ns + MS)
        watched.say(False, now_ns + 2 * MS)
    found = judged(watched.alarms, 2)
    assert (found["noticed"], found["false"], found["delay ms"]) == (0.5, 1, 100.0)

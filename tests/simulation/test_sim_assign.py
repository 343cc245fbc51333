"""Backups that an assignor moves, racks, and primaries that leave busy nodes: nothing is lost, and little moves."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.model import notes
from holdfast.model.config import MS, Config
from holdfast.model.ids import Name, name_of
from holdfast.model.protection import Protection
from holdfast.model.topology import layered
from holdfast.sim.costs import Costs
from holdfast.sim.faults import Fault
from holdfast.sim.runner import run_all
from holdfast.sim.simulation import Setup, Simulation
from holdfast.sim.swarm import assigned, swarm_setup


def crowded(seed: int) -> Setup:
    """Nine shards and more on three or four nodes, so that a segment has several."""
    return assigned(swarm_setup(seed, nodes=3 + seed % 2, shards=9))


def hold(first: int, last: int) -> None:
    setups = [crowded(seed) for seed in range(first, last)]
    summary = run_all(setup for setup in setups if not setup.unstored)
    assert summary.first is None
    assert summary.excused <= max(3, (last - first) // 5)  # both nodes of a shard died at once
    assert run_all(setup for setup in setups if setup.unstored).first is None


def test_schedules_with_assignors_hold():
    hold(0, 40)


@pytest.mark.long
def test_many_schedules_with_assignors_hold():
    hold(10_000, 10_300)


CONFIG = Config(
    load_period_ns=200 * MS,
    load_window_ns=2_000 * MS,
    balance_ns=1_000 * MS,
    imbalance_ns=50 * MS,
    assignor="dynamic",
    scheduler="min_max",
    protection=Protection(period_ns=400 * MS),
)
#: All shards together are busy for 60% of a core.
COSTS = Costs(row_ns=2 * MS, capture_window_ns=100_000, paste_window_ns=100_000)
#: One node dies and comes back with nothing to do.
REJOINS = (Fault(kind="crash", node=Name("n2"), at_ms=2_000), Fault(kind="restart", node=Name("n2"), at_ms=4_000))


def rejoined(config: Config, safety_ms: int = 20_000, **more: object) -> Simulation:
    """Four nodes with sixteen shards, of which one comes back empty: its shards run where they were backed up."""
    topology = layered(stages=1, shards=16)
    settings = {"keys": 16, "rows_per_second": 300, "safety_ms": safety_ms, "must_recover": False} | more
    setup = Setup(seed=3, nodes=4, topology=topology, config=config, costs=COSTS, faults=REJOINS, **settings)
    return Simulation(setup)


def run_with(run: Simulation, *kinds: type[notes.Note]) -> list[tuple[int, notes.Note]]:
    seen: list[tuple[int, notes.Note]] = []
    run.world.notices.append(
        lambda at_ns, source, noted: seen.extend((at_ns, note) for note in noted if isinstance(note, kinds))
    )
    outcome = run.run()
    assert not outcome.violation
    return seen


def primaries_of(run: Simulation) -> dict[str, int]:
    places = [p for p in run.checker.record.places.values() if p.primary and not p.is_stage]
    return {name: sum(name_of(p.primary or "") == name for p in places) for name in run.world.names}


def test_units_move_to_where_a_recovery_takes_less_time_and_then_they_stay():
    """In epochs of three seconds: shorter ones have few captures each, and their means are noise."""
    run = rejoined(replace(CONFIG, balance_ns=3_000 * MS), safety_ms=30_000)
    moved = run_with(run, notes.Reassigned)
    assert moved
    assert len({note.asset for _, note in moved}) == len(moved) <= 8
    backups = [name_of(p.backup) for p in run.checker.record.places.values() if p.backup]
    assert "n2" in backups


def test_by_lot_nothing_moves_that_has_a_backup():
    assert not run_with(rejoined(replace(CONFIG, assignor="random_static")), notes.Reassigned, notes.Balanced)


def test_busy_primaries_hand_over_to_a_node_with_less_to_do_without_a_pause_and_stay_there():
    """Figure 6 gives the node images; then shards of busy nodes change places with those."""
    config = replace(CONFIG, imbalance_ns=20 * MS, move_primaries=True)
    run = rejoined(config, safety_ms=25_000, pause_max_ms=1_500)
    moved = [note for _, note in run_with(run, notes.Balanced) if note.what == "primary of"]
    assert "n2" in {note.target for note in moved}
    assert len({note.asset for note in moved}) == len(moved) <= 10
    assert primaries_of(run)["n2"] >= 3
    still = rejoined(replace(config, move_primaries=False), safety_ms=12_000)
    assert not [note for _, note in run_with(still, notes.Balanced) if note.what == "primary of"]
    assert primaries_of(still)["n2"] == 0


def test_after_a_node_has_died_and_come_back_copies_are_in_different_racks_again():
    racks = {"n0": "a", "n1": "a", "n2": "b", "n3": "b"}
    config = replace(CONFIG, assignor="load", domains=racks, balance_ns=500 * MS)
    run = rejoined(config, safety_ms=25_000)
    run_with(run, notes.SpreadOut)
    for asset, place in run.checker.record.places.items():
        if place.primary and place.backup:
            assert racks[name_of(place.primary)] != racks[name_of(place.backup)], asset

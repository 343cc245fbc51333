"""Operators that leave footprints in the store, and everything killed at once: no row is lost or doubled."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.model.notes import Restored
from holdfast.sim.simulation import Setup, Simulation
from holdfast.sim.special import eventual
from holdfast.sim.swarm import choking, doubled, fragile, poisoned, rough, standing_in, swarm_setup

#: The same, among all else that may happen to an operator.
AMONG: tuple[Callable[[Setup], Setup], ...] = (
    lambda setup: setup,
    fragile,
    choking,
    lambda setup: rough(poisoned(setup)),
    standing_in,
    doubled,
)


@pytest.mark.parametrize("seed", range(36))
def test_footprints_in_the_store(seed: int):
    outcome = Simulation(AMONG[seed % len(AMONG)](eventual(swarm_setup(seed)))).run()
    assert outcome.violation == ""


@pytest.mark.long
@pytest.mark.parametrize("first", range(36, 1236, 100))
def test_footprints_in_many_schedules(first: int):
    for seed in range(first, first + 100):
        outcome = Simulation(AMONG[seed % len(AMONG)](eventual(swarm_setup(seed)))).run()
        assert outcome.violation == "", seed


def test_shards_do_come_back_from_entries_that_build_on_others():
    """Or what is above would show nothing."""
    assert sum(comes_back(seed) for seed in range(12, 20)) >= 4


def comes_back(seed: int) -> bool:
    run = Simulation(eventual(swarm_setup(seed)))
    found: list[bool] = []

    def look(at_ns, source, notes) -> None:
        found.extend(
            len(run.world.store.traces[n.shard].entries) > 1 for n in notes if isinstance(n, Restored) and n.to
        )

    run.world.notices.append(look)
    run.run()
    return any(found)

"""Two nodes and a store that votes: whatever happens to the three of them, no row is lost or doubled."""

from __future__ import annotations

import pytest

from holdfast.model.notes import Promoted
from holdfast.sim.simulation import Simulation
from holdfast.sim.swarm import paired


@pytest.mark.parametrize("seed", range(40))
def test_two_nodes_and_a_store(seed: int):
    outcome = Simulation(paired(seed)).run()
    assert outcome.violation == ""


def test_they_do_take_over_from_each_other():
    """Or what is above would show nothing: a cluster that stands still loses no row."""
    assert sum(takes_over(seed) for seed in range(20)) >= 5


def takes_over(seed: int) -> bool:
    run = Simulation(paired(seed))
    seen: list[Promoted] = []
    run.world.notices.append(
        lambda at_ns, source, notes: seen.extend(n for n in notes if isinstance(n, Promoted) and n.epoch > 1)
    )
    run.run()
    return bool(seen)

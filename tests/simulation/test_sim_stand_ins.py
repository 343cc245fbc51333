"""Mode hybrid in random schedules: what was wrong once."""

from __future__ import annotations

from holdfast.sim.simulation import Simulation
from holdfast.sim.swarm import standing_in, stored, swarm_setup


def test_a_stand_in_acknowledges_nothing_that_counts_when_it_is_promoted():
    """Its state was not in the store yet. Its producer had its word from before, and let go of what a restore needs."""
    assert not Simulation(standing_in(stored(swarm_setup(41)))).run().violation

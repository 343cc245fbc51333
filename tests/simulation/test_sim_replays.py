"""Mode replay in random schedules: what stood still once."""

from __future__ import annotations

import pytest

from holdfast.sim.simulation import Simulation
from holdfast.sim.swarm import replaying, stored, swarm_setup


@pytest.mark.parametrize("seed", [4, 3401])
def test_what_the_keeper_has_in_its_image_is_not_kept_by_producers(seed):
    """After a restore producers held what earlier lives had not acknowledged, up to the position of the checkpoint.
    Their queues were full of it, so nothing came that the first horizon could have followed from; and since it came
    before that position, it did not count as too much."""
    assert not Simulation(replaying(stored(swarm_setup(seed)))).run().violation

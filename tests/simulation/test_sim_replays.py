"""Mode replay in random schedules: what stood still once."""

from __future__ import annotations

import pytest

from holdfast.sim.simulation import Simulation
from holdfast.sim.special import growing
from holdfast.sim.swarm import replaying, stored, swarm_setup


@pytest.mark.parametrize("seed", [4, 3401])
def test_what_the_keeper_has_in_its_image_is_not_kept_by_producers(seed):
    """After a restore producers held what earlier lives had not acknowledged, up to the position of the checkpoint.
    Their queues were full of it, so nothing came that the first horizon could have followed from; and since it came
    before that position, it did not count as too much."""
    assert not Simulation(replaying(stored(swarm_setup(seed)))).run().violation


def test_a_keeper_that_becomes_an_image_ends_a_hand_over():
    """Of two members that are left one is drained, and its shard needs more input than may be kept."""
    assert not Simulation(replaying(growing(95000057))).run().violation

"""A killed process is missed as soon as the network says that nothing listens there any more."""

from __future__ import annotations

import pytest

from holdfast.model.notes import Promoted
from holdfast.model.topology import layered
from holdfast.sim.faults import Fault
from holdfast.sim.simulation import Setup, Simulation


def promoted_after_ms(victim: str, *, resets: bool, seed: int) -> float:
    """From the crash of a node until the last of its shards runs elsewhere."""
    topology = layered(stages=1, shards=8)
    run = Simulation(
        Setup(
            seed=seed,
            nodes=4,
            topology=topology,
            faults=(Fault(kind="crash", node=victim, at_ms=1_000),),
            resets=resets,
        )
    )
    seen: list[float] = []

    def watch(at_ns: int, source: str, notes: list) -> None:
        seen.extend(at_ns / 1e6 for note in notes if isinstance(note, Promoted) and note.epoch > 1)

    run.world.notices.append(watch)
    outcome = run.run()
    assert outcome.violation == ""
    return max(seen) - 1_000


@pytest.mark.parametrize("victim", ["n0", "n1", "n2", "n3"])  # the coordinator is among them
def test_a_refused_connection_is_acted_on_within_a_tenth_of_a_second(victim):
    told = [promoted_after_ms(victim, resets=True, seed=seed) for seed in range(5)]
    silent = [promoted_after_ms(victim, resets=False, seed=seed) for seed in range(5)]
    assert sorted(told)[2] < 100 < 300 < sorted(silent)[2]

"""A link between two nodes, neither of which is coordinator, stays cut: output goes on, and nobody is removed."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.model.notes import Decided, Detoured
from holdfast.sim.simulation import Simulation
from holdfast.sim.swarm import lasting_cut


@pytest.mark.parametrize("seed", range(24))
def test_output_goes_on_while_a_link_stays_cut(seed: int):
    run = Simulation(lasting_cut(seed))
    assert run.run().violation == ""
    assert len(run.checker.record.members) == run.setup.nodes


def test_a_cut_moves_things_once_and_mending_moves_nothing_back():
    """The link is cut, mended and cut again, each time for less than `mend_ns`: one cut, as far as placement goes."""
    setup = lasting_cut(1)
    cut = setup.faults[0]
    times = (800, 2_300, 3_500, 4_700)
    flaps = tuple(replace(cut, at_ms=at_ms, for_ms=900) for at_ms in times)
    run = Simulation(replace(setup, faults=flaps, safety_ms=6_000, pause_max_ms=0))
    seen: list[tuple[int, str]] = []
    run.world.notices.append(
        lambda at_ns, source, notes: seen.extend((at_ns, n.word) for n in notes if isinstance(n, Detoured))
    )
    assert run.run().violation == ""
    assert seen
    assert max(at_ns for at_ns, _ in seen) < 2_300_000_000


def test_a_node_that_sleeps_is_not_taken_for_one_behind_a_cut():
    setup = lasting_cut(2)
    stalls = tuple(
        replace(setup.faults[0], kind="stall", other="", at_ms=at_ms, for_ms=250) for at_ms in range(800, 4_000, 600)
    )
    run = Simulation(replace(setup, faults=stalls))
    words: list[str] = []
    run.world.notices.append(lambda at_ns, source, notes: words.extend(n.word for n in notes))
    assert run.run().violation == ""
    assert "link-cut" not in words
    assert Decided.word in words

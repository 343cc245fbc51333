"""Nodes that come later than the files of the others, and nodes that leave for good: no row is lost or doubled."""

from __future__ import annotations

import pytest

from holdfast.model.config import MS
from holdfast.model.ids import Name
from holdfast.model.topology import layered
from holdfast.sim.faults import Fault
from holdfast.sim.simulation import Setup, Simulation
from holdfast.sim.special import growing


@pytest.mark.parametrize("seed", range(30))
def test_members_come_and_go_under_faults(seed: int):
    outcome = Simulation(growing(seed)).run()
    assert outcome.violation == ""


def test_they_do_come_and_go():
    """Or what is above would show nothing."""
    came = left = 0
    for seed in range(8):
        run = Simulation(growing(seed))
        run.run()
        record = run.checker.record
        came += len(set(run.world.late) & set(record.members))
        left += sum(record.has_left(name) for name in record.roster)
    assert came >= 4
    assert left >= 4


def cluster(nodes: int, *faults: Fault, late: int = 1, **more) -> Simulation:
    topology = layered(stages=1, shards=3, placed=True)
    return Simulation(Setup(seed=1, nodes=nodes, late=late, topology=topology, faults=faults, **more))


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_a_node_that_no_file_names_becomes_a_member_and_gets_what_there_is_to_do(nodes: int):
    name = Name(f"n{nodes}")
    run = cluster(nodes, Fault(kind="join", node=name, at_ms=500))
    assert run.run().violation == ""
    record = run.checker.record
    assert sorted(record.members) == [f"n{i}" for i in range(nodes + 1)]
    held = [place for place in record.places.values() if any(seat.startswith(name) for seat in place.holders)]
    assert bool(held) is (nodes == 1)  # else nobody lacks a second copy; balance is by load, later


def test_nobody_is_let_in_while_members_are_missing():
    """Four members need three: with one of three cut off, two that are up could not go on without the new one."""
    cuts = [Fault(kind="cut", node=Name("n2"), other=Name(n), at_ms=300, for_ms=60_000) for n in ("n0", "n1", "n3")]
    run = cluster(3, *cuts, Fault(kind="join", node=Name("n3"), at_ms=350), safety_ms=2_500, must_recover=False)
    seen: list[tuple[str, ...]] = []
    run.world.notices.append(lambda at, source, notes: seen.append(tuple(sorted(run.checker.record.members))))
    assert run.run().violation == ""
    steps = list(dict.fromkeys(seen))
    assert steps[:3] == [("n0", "n1", "n2"), ("n0", "n1"), ("n0", "n1", "n3")]  # n2 is voted out first


def test_a_node_that_has_left_for_good_says_hello_in_vain():
    run = cluster(4, Fault(kind="leave", node=Name("n3"), at_ms=500, value=1.0), late=0, safety_ms=3_000)
    assert run.run().violation == ""
    assert sorted(run.checker.record.members) == ["n0", "n1", "n2"]
    assert run.world.node(Name("n3")) is not None  # it was started again, and nobody let it in
    assert run.checker.record.has_left(Name("n3"))


def test_it_may_come_back_when_somebody_lets_it_in():
    leaves = Fault(kind="leave", node=Name("n3"), at_ms=500, value=1.0)
    run = cluster(4, leaves, Fault(kind="join", node=Name("n3"), at_ms=2_500), late=0, safety_ms=4_000)
    assert run.run().violation == ""
    assert "n3" in run.checker.record.members
    assert run.world.now_ns > 2_500 * MS

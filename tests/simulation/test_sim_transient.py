"""Nodes that are unavailable for moments, again and again: spells, and what they do to a cluster in every mode."""

from __future__ import annotations

from random import Random

import pytest

from holdfast.errors import ConfigError
from holdfast.model.config import Config
from holdfast.model.ids import Name
from holdfast.model.notes import StandsIn
from holdfast.model.protection import Protection
from holdfast.model.topology import layered
from holdfast.sim.faults import Fault
from holdfast.sim.simulation import Setup, Simulation
from holdfast.sim.spells import Spell, poisson, regular, share
from holdfast.sim.swarm import transient


def test_regular_spells_are_alike_and_end_in_time():
    assert regular(1.0, 0.25, 3.0) == (Spell(0.75, 0.25), Spell(1.75, 0.25), Spell(2.75, 0.25))
    assert regular(1.0, 0.5, 1.75) == (Spell(0.5, 0.5), Spell(1.5, 0.25))


def test_poisson_spells_never_overlap_and_fill_the_share_that_was_asked_for():
    spells = poisson(1.0, 0.3, 2_000.0, Random(1))
    ends = [s.at_s + s.for_s for s in spells]
    assert all(later.at_s > end for later, end in zip(spells[1:], ends, strict=False))
    assert ends[-1] <= 2_000.0
    assert share(spells, 2_000.0) == pytest.approx(0.3, abs=0.03)
    assert len(spells) == pytest.approx(2_000, rel=0.08)


@pytest.mark.parametrize(("every_s", "for_s"), [(1.0, 1.0), (1.0, 0.0), (0.5, 2.0)])
def test_spells_as_long_as_the_time_between_them_are_refused(every_s: float, for_s: float):
    with pytest.raises(ConfigError, match="shorter than the time between"):
        regular(every_s, for_s, 10.0)


@pytest.mark.parametrize("seed", range(60))
def test_no_row_is_lost_or_doubled_while_nodes_come_and_go(seed: int):
    assert Simulation(transient(seed)).run().violation == ""


def test_a_slow_node_that_says_so_is_stood_in_for_before_any_heartbeat_is_missing():
    """With the benchmark detector. By misses alone nobody notices a node that is only slow."""

    def stands_in(detector: str) -> bool:
        slow = Fault(kind="slow", node=Name("n1"), at_ms=600, for_ms=400, value=2.0)
        setup = Setup(
            seed=5,
            nodes=4,
            topology=layered(stages=1, shards=3, tops=2, placed=True),
            config=Config(detector=detector, misses_max=6, protection=Protection(mode="hybrid")),
            faults=(slow,),
        )
        run, words = Simulation(setup), []
        run.world.notices.append(lambda at_ns, source, notes: words.extend(n.word for n in notes))
        assert run.run().violation == ""
        return StandsIn.word in words

    assert stands_in("benchmark")
    assert not stands_in("misses")

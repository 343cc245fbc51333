"""What any cluster must do, whichever world it is in: bodies that know only `Cluster`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from clusters import CLUSTERS, Cluster


@pytest.fixture(params=["simulator", pytest.param("nodes", marks=pytest.mark.slow)])
def cluster(request) -> Iterator[Cluster]:
    made = CLUSTERS[request.param]()
    yield made
    made.close()


def test_nothing_happens_and_the_result_is_right(cluster: Cluster):
    cluster.run_for(1_500)
    assert cluster.finish() == ""


def test_a_killed_node_is_replaced_and_its_units_run_elsewhere(cluster: Cluster):
    cluster.run_for(800)
    victim, heir = cluster.primary_of("u1"), cluster.backup_of("u1")
    cluster.kill(victim)
    cluster.run_for(700)
    assert cluster.primary_of("u1") == heir
    assert cluster.backup_of("u1") not in ("", heir, victim)
    assert victim not in cluster.members()
    assert cluster.finish() == ""


def test_a_node_that_comes_back_is_a_new_member(cluster: Cluster):
    cluster.run_for(800)
    cluster.kill("n2")
    cluster.run_for(700)
    cluster.start("n2")
    cluster.run_for(700)
    assert cluster.members()["n2"] == 2
    assert cluster.finish() == ""


def test_a_frozen_node_wakes_up_and_does_no_harm(cluster: Cluster):
    cluster.run_for(800)
    victim = cluster.primary_of("v0")
    cluster.freeze(victim, 1_000)
    cluster.run_for(1_500)
    assert cluster.primary_of("v0") != victim
    assert cluster.finish() == ""


def test_two_nodes_die_one_after_the_other(cluster: Cluster):
    cluster.run_for(800)
    cluster.kill("n1")
    cluster.run_for(900)
    cluster.kill("n2")
    cluster.run_for(900)
    assert sorted(cluster.members()) == ["n0", "n3"]
    assert cluster.finish() == ""


def test_driver_and_reader_die_and_every_row_counts_once(cluster: Cluster):
    for _ in range(3):
        cluster.run_for(470)
        cluster.kill_driver("s0")
        cluster.run_for(230)
        cluster.kill_reader("r0")
    assert cluster.finish() == ""


def test_a_drained_node_holds_nothing_and_may_then_die(cluster: Cluster):
    cluster.run_for(800)
    cluster.drain("n0")
    cluster.run_for(800)
    assert "n0" not in [cluster.primary_of(u) for u in ("u0", "u1", "u2", "u3", "v0")]
    assert "n0" not in [cluster.backup_of(u) for u in ("u0", "u1", "u2", "u3", "v0")]
    cluster.kill("n0")
    assert cluster.finish() == ""

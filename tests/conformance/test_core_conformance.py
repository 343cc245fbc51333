"""What any cluster must do, whichever world it is in: bodies that know only `Cluster`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from clusters import CLUSTERS, Cluster

SHARDS = ("u0", "u1", "u2", "u3", "v0")


@pytest.fixture(params=["simulator", pytest.param("nodes", marks=pytest.mark.slow)])
def cluster(request) -> Iterator[Cluster]:
    made = CLUSTERS[request.param]()
    yield made
    made.close()


def until(cluster: Cluster, what: str, holds: Callable[[], bool]) -> None:
    """Let time pass until something holds. How long it takes is for the benches: here the machine may be busy."""
    for _ in range(100):
        cluster.run_for(100)
        if holds():
            return
    raise AssertionError(f"not within 10 s: {what}")


def is_protected(cluster: Cluster) -> bool:
    return all(cluster.primary_of(shard) and cluster.backup_of(shard) for shard in SHARDS)


def test_nothing_happens_and_the_result_is_right(cluster: Cluster):
    cluster.run_for(1_500)
    assert cluster.finish() == ""


def test_a_killed_node_is_replaced_and_its_shards_run_elsewhere(cluster: Cluster):
    cluster.run_for(800)
    victim, heir = cluster.primary_of("u1"), cluster.backup_of("u1")
    cluster.kill(victim)
    until(cluster, "the victim is out", lambda: victim not in cluster.members())
    assert cluster.primary_of("u1") == heir
    until(cluster, "u1 has a new backup", lambda: cluster.backup_of("u1") not in ("", heir, victim))
    assert cluster.finish() == ""


def test_a_node_that_comes_back_is_a_new_member(cluster: Cluster):
    cluster.run_for(800)
    cluster.kill("n2")
    cluster.run_for(700)
    cluster.start("n2")
    until(cluster, "n2 is back in its second life", lambda: cluster.members().get("n2") == 2)
    assert cluster.finish() == ""


def test_a_frozen_node_wakes_up_and_does_no_harm(cluster: Cluster):
    cluster.run_for(800)
    victim = cluster.primary_of("v0")
    cluster.freeze(victim, 1_000)
    until(cluster, "another runs v0", lambda: cluster.primary_of("v0") != victim)
    cluster.run_for(1_000)
    assert cluster.finish() == ""


def test_two_nodes_die_one_after_the_other(cluster: Cluster):
    cluster.run_for(800)
    cluster.kill("n1")
    until(cluster, "all is protected without n1", lambda: "n1" not in cluster.members() and is_protected(cluster))
    cluster.kill("n2")
    until(cluster, "n2 is out", lambda: sorted(cluster.members()) == ["n0", "n3"])
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
    until(cluster, "n0 runs nothing", lambda: "n0" not in [cluster.primary_of(u) for u in SHARDS])
    until(cluster, "n0 backs nothing up", lambda: "n0" not in [cluster.backup_of(u) for u in SHARDS])
    cluster.kill("n0")
    assert cluster.finish() == ""


def test_a_sinks_tasks_fetch_on_through_a_fail_over_and_a_move_of_the_sink(cluster: Cluster):
    """Positions come from the reader, rows from whoever is primary; a sink that was replaced is fenced."""
    cluster.run_for(800)
    victim = cluster.primary_of("v0")
    cluster.kill(victim)
    cluster.kill_reader("r0")
    until(cluster, "another runs v0", lambda: cluster.primary_of("v0") not in ("", victim))
    cluster.run_for(300)
    cluster.kill_reader("r0")
    assert cluster.finish() == ""


def test_a_shard_whose_input_is_kept_instead_of_its_state_is_made_again_when_its_node_dies(cluster: Cluster):
    """One that a stage feeds, and one that others feed; then back to a mode with images."""
    for operator in ("u1", "v0"):
        cluster.protect(operator, "replay")
    until(cluster, "both are in mode replay", lambda: {cluster.mode_of(u) for u in ("u1", "v0")} == {"replay"})
    cluster.run_for(800)
    for shard in ("u1", "v0"):
        victim, heir = cluster.primary_of(shard), cluster.backup_of(shard)
        cluster.kill(victim)
        until(cluster, f"{heir} runs {shard}", lambda shard=shard, heir=heir: cluster.primary_of(shard) == heir)
        until(cluster, "all is protected", lambda: is_protected(cluster))
        cluster.run_for(600)
        cluster.start(victim)
        until(cluster, f"{victim} is back", lambda victim=victim: cluster.members().get(victim, 0) > 1)
    cluster.protect("u1", "passive")
    until(cluster, "u1 is in mode passive", lambda: cluster.mode_of("u1") == "passive")
    assert cluster.finish() == ""


def test_every_copy_tells_how_busy_it_keeps_its_node(cluster: Cluster):
    def loads(holder: Callable[[str], str]) -> list[float | None]:
        return [cluster.load_on(holder(shard), shard) for shard in SHARDS]

    def all_loads() -> list[float | None]:
        return loads(cluster.primary_of) + loads(cluster.backup_of)

    until(cluster, "a load of every copy", lambda: None not in all_loads())
    until(cluster, "work of every primary", lambda: all(load and load < 100 for load in loads(cluster.primary_of)))
    assert all(0 <= load < 100 for load in loads(cluster.backup_of) if load is not None)  # little may be left to paste
    assert cluster.finish() == ""

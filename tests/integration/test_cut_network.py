"""Real nodes, without Spark, on a network that is cut: packets between the living are lost, and nobody is told."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.network import NamespaceNetwork, apart
from support.nodes import Nodes
from support.plans import layered_plan
from support.tls import make_tls

pytestmark = pytest.mark.slow


@contextlib.contextmanager
def running(home: Path, count: int) -> Iterator[tuple[Nodes, NamespaceNetwork]]:
    """Nodes on a network of their own, with rows at the sink."""
    network = NamespaceNetwork([f"n{i}" for i in range(count)])
    ca, cert, key = make_tls(home, [*network.hosts.values(), *network.asked.values()])
    settings = {"tls": {"ca": ca, "cert": cert, "key": key}, "listen": "0.0.0.0"}
    nodes = Nodes(home / "run", layered_plan(), count, settings=settings, scheme="grpc+tls", network=network)
    try:
        nodes.start()
        nodes.wait_up()
        nodes.begin()
        wait_for_output(nodes, 60)
        yield nodes, network
    finally:
        nodes.close()


def commits(nodes: Nodes) -> int:
    return len(list((nodes.dir / "sink").glob("commit-*")))


def wait_for_output(nodes: Nodes, seconds: float) -> float:
    """Wait until more rows than a window's reach the sink; how long that took."""
    began, before = time.monotonic(), commits(nodes)
    nodes.until("more output", lambda: commits(nodes) > before + 3, seconds)
    return time.monotonic() - began


def wait_for_calm(nodes: Nodes) -> None:
    """Until the nodes have agreed on the same for two seconds: who takes a node out and in again never does."""
    seen: list[Any] = [None, 0.0]

    def is_calm() -> bool:
        newest = nodes.status()["version"]
        if newest != seen[0]:
            seen[:] = newest, time.monotonic()
        return time.monotonic() - seen[1] > 2

    nodes.until("calm", is_calm, 30)


def wait_for_all(nodes: Nodes) -> None:
    """Until every node is in, knows it, and everything has a second copy."""

    def is_whole() -> bool:
        found = [nodes.status(name) for name in nodes.names]
        whole = all(sorted(s["members"]) == nodes.names and not s["degraded"] for s in found)
        return whole and len({s["version"] for s in found}) == 1

    nodes.until("all nodes to be in", is_whole, 30)


def held_by(nodes: Nodes, name: str, *seats: str) -> list[str]:
    """What a node has such a part in, by the newest record."""
    places = nodes.status()["places"].items()
    return [asset for asset, p in places if any((p[seat] or "").partition("#")[0] == name for seat in seats)]


def _across(nodes: Nodes, one: str, other: str) -> list[str]:
    """What has both its copies on these two."""
    both = [set(held_by(nodes, name, "primary", "backup", "joining")) for name in (one, other)]
    stages = set(nodes.status()["stages"])
    return sorted(both[0] & both[1] - stages)


@apart
def test_a_node_that_is_cut_off_for_a_while_doubles_nothing_and_comes_back(tmp_path: Path):
    with running(tmp_path, 4) as (nodes, network):
        # One that runs shards only; the coordinator, which runs the source too; and one that could not be voted out by
        # three of four if those two did not take part again.
        for name in ("n2", "n0", "n1"):
            held = held_by(nodes, name, "primary")
            network.cut(name)
            began = time.monotonic()
            nodes.until("it to be out", lambda name=name: name not in nodes.status()["members"])
            wait_for_output(nodes, 30)
            assert held_by(nodes, name, "primary", "backup") == []
            time.sleep(max(0.0, began + 3 - time.monotonic()))
            # it does not know, and goes on: that is what fences are for
            unaware = nodes.status(name)
            assert name in unaware["members"]
            assert [a for a, p in unaware["places"].items() if p["primary"].partition("#")[0] == name] == held
            network.heal()
            wait_for_all(nodes)
            assert nodes.status()["members"][name] == 1  # the same life
            wait_for_output(nodes, 30)
        nodes.finish()
        assert nodes.difference() == ""


@apart
def test_nodes_that_were_split_in_halves_go_on_soon_after(tmp_path: Path):
    """A shard has both its copies on the far side, so nobody can go on. What is on its way is sent again after 0.2 s,
    0.4 s, 0.8 s, …: on the old connections nothing would come before 11 s after the heal."""
    with running(tmp_path, 4) as (nodes, network):
        network.cut("n2", "n3")
        time.sleep(2)
        stuck = commits(nodes)
        time.sleep(12)
        assert commits(nodes) == stuck
        network.heal()
        print(f"\noutput again {wait_for_output(nodes, 10):.1f} s after the heal")  # about one
        wait_for_all(nodes)
        nodes.finish()
        assert nodes.difference() == ""


@apart
def test_output_goes_on_around_a_link_that_stays_cut_and_nothing_flaps(tmp_path: Path):
    with running(tmp_path, 3) as (nodes, network):
        coordinator = nodes.status()["coordinator"]
        one, other = (name for name in nodes.names if name != coordinator)
        network.sever(one, other)  # the coordinator hears both: neither is gone, and what needs both goes around
        network.sever(other, one)
        nodes.until("the cut to be found", lambda: nodes.status(coordinator)["cuts"] == [[one, other]], 20)
        wait_for_calm(nodes)
        print(f"\noutput again {wait_for_output(nodes, 30):.1f} s after things had moved, with the link still cut")
        assert sorted(nodes.status()["members"]) == nodes.names
        assert not _across(nodes, one, other)
        version = nodes.status()["version"]
        network.heal()
        wait_for_output(nodes, 30)
        assert nodes.status()["version"] == version  # a mended link is no reason to move
        wait_for_all(nodes)
        coordinator = nodes.status()["coordinator"]
        other = "n2" if coordinator != "n2" else "n1"
        network.sever(coordinator, other)  # one way only; whoever is coordinator then, the other one is out
        wait_for_calm(nodes)
        wait_for_output(nodes, 30)
        assert len(nodes.status()["members"]) == 2
        network.heal()
        wait_for_all(nodes)
        nodes.finish()
        assert nodes.difference() == ""

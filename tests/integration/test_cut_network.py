"""Real nodes, without Spark, on a network that is cut: packets between the living are lost, and nobody is told."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.network import Network, apart
from support.nodes import Nodes
from support.plans import layered_plan
from support.tls import make_tls

pytestmark = pytest.mark.slow


@contextlib.contextmanager
def running(home: Path, count: int) -> Iterator[tuple[Nodes, Network]]:
    """Nodes on a network of their own, with rows at the sink."""
    network = Network([f"n{i}" for i in range(count)])
    ca, cert, key = make_tls(home, [*network.hosts.values(), *network.asked.values()])
    settings = {"tls": {"ca": ca, "cert": cert, "key": key}, "listen": "0.0.0.0"}
    nodes = Nodes(home / "run", layered_plan(), count, settings=settings, scheme="grpc+tls", network=network)
    try:
        nodes.start()
        nodes.wait_up()
        nodes.begin()
        nodes.until("the first rows", (nodes.dir / "sink" / "commit-0").exists, 60)
        yield nodes, network
    finally:
        nodes.close()


def commits(nodes: Nodes) -> int:
    return len(list((nodes.dir / "sink").glob("commit-*")))


def wait_for_output(nodes: Nodes, seconds: float) -> float:
    """Wait for more at the sink than there is; how long that took."""
    began, before = time.monotonic(), commits(nodes)
    nodes.until("more output", lambda: commits(nodes) > before + 3, seconds)
    return time.monotonic() - began


def primaries(nodes: Nodes, name: str) -> list[str]:
    """What a node runs, by the newest record."""
    return [a for a, p in nodes.status()["places"].items() if (p["primary"] or "").partition("#")[0] == name]


@apart
def test_a_node_that_is_cut_off_for_a_while_doubles_nothing_and_comes_back(tmp_path: Path):
    with running(tmp_path, 4) as (nodes, network):
        print({k: (v["primary"], v["backup"]) for k, v in nodes.status()["places"].items()}, nodes.status()["coordinator"])
        for name in ("n2", "n0"):
            t = time.monotonic()
            network.cut(name)
            nodes.until("it to be out", lambda: name not in nodes.status()["members"])
            print("out", time.monotonic() - t)
            print("output", wait_for_output(nodes, 20), time.monotonic() - t)
            time.sleep(max(0, 3 - (time.monotonic() - t)))
            print("cut sees", nodes.status(name)["members"], nodes.status(name)["stages"], nodes.status(name)["version"], nodes.status()["version"])
            network.heal()
            t = time.monotonic()
            nodes.until("it to be back", lambda: nodes.status()["members"].get(name) == 1)
            print("back", time.monotonic() - t)
            nodes.until("degraded", lambda: not nodes.status()["degraded"])
            print("settled", time.monotonic() - t)
            print({k: (v["primary"], v["backup"]) for k, v in nodes.status()["places"].items()}, nodes.status()["coordinator"])
            print("output", wait_for_output(nodes, 20), time.monotonic() - t)
        t = time.monotonic()
        nodes.finish()
        print("finish", time.monotonic() - t)
        assert nodes.difference() == ""
        print(nodes.tail())

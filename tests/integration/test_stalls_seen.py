"""Real nodes that are slow or stopped for a moment notice it themselves, and say so."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.nodes import Nodes
from support.plans import layered_plan
from support.transient import Frozen, Squeezed, can_squeeze

pytestmark = pytest.mark.slow

#: Nobody is taken for dead here, however slow this machine is.
PATIENT = 1_200


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    plan = layered_plan(shards=2, tops=2)
    plan = replace(plan, operators=tuple(replace(o, mode="hybrid") for o in plan.operators))
    made = Nodes(tmp_path / "run", plan, 5, settings={"misses": PATIENT, "detector": "benchmark"})
    made.start()
    made.wait_up()
    made.begin()
    yield made
    made.close()


def stalls(nodes: Nodes, name: str) -> dict[str, Any]:
    return nodes.caller.call(name, "stalls", timeout=5)


def test_nodes_tell_their_stalls_run_the_standard_set_when_squeezed_and_lose_no_row(nodes: Nodes):
    """Which alarm is counted by which cause is for the detector's unit tests: here a node may find itself slow at any
    moment, also just before it is stopped."""
    pid = nodes.processes["n1"].pid
    frozen = Frozen(pid)
    frozen.begin()
    time.sleep(1.5)
    frozen.end()
    nodes.until("n1 to know it", lambda: stalls(nodes, "n1")["node"]["lengths"]["longest_s"] >= 1.0, 20)
    found = stalls(nodes, "n1")
    assert found["own_share"] < 0.02
    assert found["benchmark"]["benchmark_ms"] > 0
    json.dumps(found)
    if can_squeeze():
        squeezed = Squeezed(pid, 1.0)
        squeezed.begin()
        try:
            nodes.until("n1 to run its standard set", lambda: stalls(nodes, "n1")["benchmark"]["runs"] >= 3, 60)
        finally:
            squeezed.end()
    others = [name for name in nodes.names if name != "n1"]

    def said() -> list[dict[str, Any]]:
        return [nodes.status(name)["false_by"] for name in others]

    assert all(one["detector"] == "benchmark" for one in said())
    print(found, said())
    nodes.until("rows", lambda: (nodes.dir / "sink" / "commit-3").exists(), 60)
    nodes.finish()
    assert nodes.difference() == ""

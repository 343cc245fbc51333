"""Mode active on real node processes: one of the two that run a shard is stopped or killed, and output goes on."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.child import read_sink
from support.nodes import Nodes
from support.plans import layered_plan

pytestmark = pytest.mark.slow

#: Heartbeats that a node may miss before it is taken for dead: nobody that is only stopped shall be, however slow this
#: machine is. So whatever comes out meanwhile comes without a record that says so.
PATIENT = 1_200


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    """Two operators over rows, and two over their results, in mode active. Nobody who runs v1 holds what stages hand
    over."""
    plan = layered_plan(shards=2, tops=2)
    plan = replace(plan, operators=tuple(replace(o, mode="active") for o in plan.operators))
    made = Nodes(tmp_path / "run", plan, 5, settings={"misses": PATIENT})
    yield made
    made.close()


def rows_of(nodes: Nodes, shard: str) -> int:
    return sum(b.num_rows for b in read_sink(nodes.dir / "sink").get(f"{shard}.0", []))


def begin(nodes: Nodes) -> dict:
    """Wait for the first rows; where v1 is."""
    nodes.start()
    nodes.wait_up()
    nodes.begin()
    nodes.until("the first rows of v1", lambda: rows_of(nodes, "v1"), 60)
    return nodes.status()["places"]["v1"]


def name(place: dict, role: str) -> str:
    return place[role].partition("#")[0]


def test_output_goes_on_while_either_copy_is_stopped_and_no_row_is_lost_or_doubled(nodes: Nodes):
    place = begin(nodes)
    for role in ("primary", "backup"):
        nodes.signal(name(place, role), signal.SIGSTOP)
        held = rows_of(nodes, "v1")
        nodes.until(f"rows of v1 while its {role} is stopped", lambda held=held: rows_of(nodes, "v1") > held + 50, 60)
        nodes.signal(name(place, role), signal.SIGCONT)
        held = rows_of(nodes, "v1")
        nodes.until("rows of v1 from both", lambda held=held: rows_of(nodes, "v1") > held, 60)
    assert nodes.status()["places"]["v1"]["epoch"] == place["epoch"]
    nodes.finish()
    assert nodes.difference() == ""


def test_a_twin_goes_on_when_its_primary_is_killed_and_another_joins(nodes: Nodes):
    place = begin(nodes)
    primary, twin = name(place, "primary"), name(place, "backup")
    nodes.kill(primary)
    held = rows_of(nodes, "v1")
    nodes.until("rows of v1 without its primary", lambda: rows_of(nodes, "v1") > held + 50, 60)

    def again() -> bool:
        now = nodes.status()["places"]["v1"]
        return name(now, "primary") == twin and now["backup"] is not None and now["mode"] == "active"

    nodes.until("another twin of v1", again, 60)
    assert any(e["event"] == "runs-beside" and " v1 " in e["text"] for n in nodes.alive() for e in nodes.events(n))
    nodes.finish()
    assert nodes.difference() == ""


def test_a_live_switch_through_the_modes_loses_and_doubles_no_row(nodes: Nodes):
    begin(nodes)
    for mode in ("passive", "active", "hybrid", "active", "none", "active"):
        nodes.caller.call("n0", "protect", {"operator": "v1", "mode": mode}, timeout=15)
        nodes.until(f"mode {mode}", lambda mode=mode: nodes.status()["places"]["v1"]["mode"] == mode, 60)
        held = rows_of(nodes, "v1")
        nodes.until(f"rows of v1 in mode {mode}", lambda held=held: rows_of(nodes, "v1") > held, 60)
    nodes.finish()
    assert nodes.difference() == ""

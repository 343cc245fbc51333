"""Real nodes under every scheduler of captures and pastes: a node is killed, and no row is lost or doubled."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.nodes import Nodes
from support.plans import layered_plan

from holdfast.model.config import SCHEDULERS


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", [name for name in SCHEDULERS if name != "period"])
def test_a_killed_node_is_recovered_and_what_was_expected_is_told(tmp_path: Path, scheduler: str):
    settings = {"scheduler": scheduler, "capture_period": "100 ms", "replay": "0 ms"}
    settings |= {"load_period": "1 s", "load_window": "3 s", "balance": "3 s"}  # soon enough for units
    nodes = Nodes(tmp_path / "run", layered_plan(shards=6, tops=1), 3, settings=settings)
    try:
        nodes.start()
        nodes.wait_up()
        nodes.begin()
        nodes.until("the first rows at the sink", (nodes.dir / "sink" / "commit-0").exists, 60)
        told = nodes.until("captures of every shard of n1", lambda: _costs(nodes, "n1"), 60)
        assert all(each["measured"] > 0 for each in told)
        recovery = nodes.status("n1")["recovery"]
        assert recovery["scheduler"] == scheduler
        assert recovery["expected_ms"] == max(each["expected_ms"] for each in recovery["segments"].values())
        nodes.kill("n1")
        others = [name for name in nodes.names if name != "n1"]
        found = nodes.until("the event", lambda: _recovered(nodes, others, set(recovery["segments"])), 60)
        assert sum(event["shards"] for event in found) == sum(len(s["shards"]) for s in recovery["segments"].values())
        nodes.finish(120)
        assert nodes.difference() == ""
    finally:
        nodes.close()


def _costs(nodes: Nodes, name: str) -> list[dict[str, float]]:
    """What captures of its shards took, once every one of them has been taken and pasted."""
    running = [shard for shard in nodes.status(name).get("shards", {}).values() if shard["role"] == "primary"]
    found = [shard.get("capture_ms", {"measured": 0}) for shard in running]
    pasted = [shard.get("paste_ms", {"measured": 0})["measured"] for shard in running]
    return found if found and all(pasted) and all(each["measured"] for each in found) else []


def _recovered(nodes: Nodes, names: list[str], backups: set[str]) -> list[dict]:
    """From every node that had a part in it."""
    found = [event for name in names for event in nodes.events(name) if event["event"] == "recovered"]
    return found if {event["node"] for event in found} == backups else []


@pytest.mark.slow
def test_backups_that_an_assignor_moves_racks_and_an_objective_lose_no_row_when_a_node_dies_and_comes_back(tmp_path):
    """Four nodes in two racks, figure 6, primaries that may move and recoveries of at most 300 ms; one dies."""
    racks = {"n0": "a", "n1": "a", "n2": "b", "n3": "b"}
    settings = {"assignor": "dynamic", "domains": racks, "move_primaries": True, "recover_in": "300 ms"}
    settings |= {
        "scheduler": "min_max",
        "load_period": "500 ms",
        "load_window": "2 s",
        "balance": "2 s",
        "imbalance": 1,
    }
    nodes = Nodes(tmp_path / "run", layered_plan(shards=8, tops=1), 4, settings=settings)

    def places() -> list[dict]:
        return [p for p in nodes.status("n0")["places"].values() if not p["stage"]]

    def apart() -> bool:
        """Has everything a second copy in the other rack?"""
        pairs = [(p["primary"] or "", p["backup"] or "") for p in places()]
        return all(b and racks[a[:2]] != racks[b[:2]] for a, b in pairs)

    try:
        nodes.start()
        nodes.wait_up()
        nodes.begin()
        nodes.until("the first rows at the sink", (nodes.dir / "sink" / "commit-0").exists, 60)
        assert apart()
        nodes.kill("n2")
        nodes.until("n2 to be out", lambda: "n2" not in nodes.status("n0")["members"], 60)
        nodes.start("n2")
        nodes.until("n2 to be a member", lambda: "n2" in nodes.status("n0")["members"], 60)
        nodes.until("everything to be apart again", apart, 120)
        nodes.finish(120)
        assert nodes.difference() == ""
    finally:
        nodes.close()

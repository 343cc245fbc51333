"""Mode replay on real node processes: no state is kept, nodes are killed, and every row is there once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.child import read_sink
from support.nodes import Nodes
from support.plans import layered_plan

from holdfast.errors import HoldfastError

pytestmark = pytest.mark.slow

LIMIT_S = 180.0


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    """Two operators over rows, and two over their results, in mode replay."""
    plan = layered_plan(shards=2, tops=2)
    plan = replace(plan, operators=tuple(replace(o, mode="replay") for o in plan.operators))
    made = Nodes(tmp_path / "run", plan, 5)
    yield made
    made.close()


def rows_of(nodes: Nodes, shard: str) -> int:
    return sum(b.num_rows for b in read_sink(nodes.dir / "sink").get(f"{shard}.0", []))


def name(place: dict, role: str) -> str:
    return place[role].partition("#")[0]


def runs(nodes: Nodes, shard: str) -> str:
    return name(nodes.status()["places"][shard], "primary")


def more_rows(nodes: Nodes, shard: str) -> None:
    held = rows_of(nodes, shard)
    nodes.until(f"rows of {shard}", lambda: rows_of(nodes, shard) > held + 50, LIMIT_S)


def is_whole(nodes: Nodes, shard: str) -> bool:
    place = nodes.status()["places"][shard]
    return bool(place["primary"] and place["backup"]) and place["mode"] == "replay"


def test_nodes_are_killed_one_after_the_other_and_no_row_is_lost_or_doubled(nodes: Nodes):
    nodes.start()
    nodes.wait_up()
    nodes.begin()
    more_rows(nodes, "v1")
    for shard in ("v1", "u0"):
        place = nodes.status()["places"][shard]
        victim, keeper = name(place, "primary"), name(place, "backup")
        nodes.kill(victim)
        nodes.until(f"{keeper} runs {shard}", lambda s=shard, k=keeper: runs(nodes, s) == k, LIMIT_S)
        more_rows(nodes, "v1")
        nodes.until("keepers of all", lambda: all(is_whole(nodes, s) for s in ("u0", "u1", "v0", "v1")), LIMIT_S)
        more_rows(nodes, "v1")
    nodes.finish()
    assert nodes.difference() == ""


def test_an_operator_that_is_switched_there_and_back_while_rows_come_loses_none(nodes: Nodes):
    nodes.start()
    nodes.wait_up()
    nodes.begin()
    more_rows(nodes, "v1")
    for mode in ("passive", "replay", "active", "replay", "none", "replay", "hybrid"):
        nodes.caller.call(nodes.alive()[0], "protect", {"operator": "v1", "mode": mode}, timeout=15)
        nodes.until(f"v1 in mode {mode}", lambda m=mode: nodes.status()["places"]["v1"]["mode"] == m, LIMIT_S)
        more_rows(nodes, "v1")
    nodes.finish()
    assert nodes.difference() == ""


def test_an_operator_whose_state_no_stretch_of_input_has_is_refused_in_one_line(tmp_path: Path):
    plan = layered_plan(shards=1, tops=0)
    plan = replace(plan, topology=replace(plan.topology, timeless=("u0",)))
    made = Nodes(tmp_path / "run", plan, 2)
    try:
        made.start()
        made.wait_up()
        made.begin()
        with pytest.raises(HoldfastError, match="u0 cannot be in mode 'replay'"):
            made.caller.call(made.alive()[0], "protect", {"operator": "u0", "mode": "replay"}, timeout=15)
        assert made.status()["places"]["u0"]["mode"] == "passive"
    finally:
        made.close()

"""Mode hybrid on real node processes: a primary is stopped for a while, and its backup stands in for it."""

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

#: Heartbeats that a node may miss here before it is taken for dead: nobody shall be, however slow this machine is.
PATIENT = 1_200


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    """Two operators over rows, and two over their results, in mode hybrid. The primary of v1 is no holder."""
    plan = layered_plan(shards=2, tops=2)
    plan = replace(plan, operators=tuple(replace(o, mode="hybrid") for o in plan.operators))
    made = Nodes(tmp_path / "run", plan, 5, settings={"misses": PATIENT})
    yield made
    made.close()


def rows_of(nodes: Nodes, shard: str) -> int:
    return sum(b.num_rows for b in read_sink(nodes.dir / "sink").get(f"{shard}.0", []))


def told(nodes: Nodes, name: str, event: str, part: str) -> bool:
    return any(part in e["text"] for e in nodes.events(name) if e["event"] == event)


def test_output_goes_on_while_a_primary_is_stopped_and_no_row_is_lost_or_doubled(nodes: Nodes):
    nodes.start()
    nodes.wait_up()
    nodes.begin()
    nodes.until("the first rows of v1", lambda: rows_of(nodes, "v1"), 60)
    place = nodes.status()["places"]["v1"]
    primary, backup = (place[role].partition("#")[0] for role in ("primary", "backup"))
    nodes.signal(primary, signal.SIGSTOP)
    nodes.until(f"{backup} to stand in", lambda: told(nodes, backup, "stands-in", "primary of v1"))
    held = rows_of(nodes, "v1")
    nodes.until("rows of v1 while its primary is stopped", lambda: rows_of(nodes, "v1") > held + 50, 60)
    nodes.signal(primary, signal.SIGCONT)
    nodes.until(f"{backup} to stand down", lambda: told(nodes, backup, "stands-down", "of v1: it is back"))
    held = rows_of(nodes, "v1")
    nodes.until("rows of v1 from its primary", lambda: rows_of(nodes, "v1") > held, 60)
    assert nodes.status()["places"]["v1"]["epoch"] == place["epoch"]
    nodes.finish()
    assert nodes.difference() == ""

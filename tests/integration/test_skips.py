"""A batch that its shard cannot take, on real nodes: skipped once, kept as dead letters, the same after a kill."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.nodes import Nodes
from support.plans import layered_plan

from holdfast.model.ids import name_of

pytestmark = pytest.mark.slow

ODD_BATCH = 20


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path / "run", layered_plan(shards=2, tops=0), 4, source={"odd_batch": ODD_BATCH})
    yield made
    made.close()


def letters(nodes: Nodes) -> list[dict]:
    files = sorted((nodes.dir / "dead" / "u1").glob("*.jsonl"))
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def test_a_skipped_batch_is_kept_once_over_a_kill_and_the_rest_is_exact(nodes: Nodes):
    nodes.start()
    nodes.wait_up()
    nodes.begin()

    def home() -> str:
        return name_of(nodes.status()["places"]["u1"]["primary"] or "")

    def ask(source: str = "s0", number: int = ODD_BATCH) -> dict:
        return nodes.caller.call(home(), "skip", {"shard": "u1", "source": source, "number": number}, timeout=5)

    stands = nodes.until("the shard to stand still", lambda: nodes.status(home())["shards"]["u1"]["stands"], 60)
    assert stands["command"] == f"holdfast skip u1 s0 {ODD_BATCH}"
    first = home()
    told = [event["text"] for event in nodes.events(first) if event["event"] == "shard-failed"]
    assert f"`holdfast skip u1 s0 {ODD_BATCH}` passes over it" in told[0]
    assert "has taken batch 3 of s0" in ask(number=3)["refused"]
    assert "has not come to u1" in ask(number=10**6)["refused"]
    assert "reads nothing from 's9'" in ask(source="s9")["refused"]
    assert nodes.status(first)["places"]["u1"]["epoch"] == 1
    nodes.until("the shard to pass over it", lambda: ask().get("passed"))
    assert ask() == {"passed": True}
    assert nodes.status()["places"]["u1"]["epoch"] == 2
    nodes.kill(first)
    nodes.until("another node to go on", lambda: home() != first)
    nodes.finish()
    found = letters(nodes)
    assert found
    assert {letter["what"] for letter in found} == {"input row"}
    assert all(letter["reason"].startswith("skipped by hand: ") for letter in found)
    assert len({letter["position"] for letter in found}) == len(found)
    assert nodes.difference(without=[letter["row"] for letter in found]) == ""

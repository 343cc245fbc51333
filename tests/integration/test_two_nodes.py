"""Two nodes and a store that votes: either of them may die, and the other one goes on by itself."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from support.nodes import Nodes
from support.plans import layered_plan

pytestmark = pytest.mark.slow


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    """With rows at the sink already."""
    store = tmp_path / "store"
    store.mkdir()
    plan = layered_plan()  # the drivers of these tests keep nothing in a store: it votes, and keeps nothing else
    operators = tuple(msgspec.structs.replace(operator, checkpoint="none") for operator in plan.operators)
    plan = msgspec.structs.replace(plan, operators=operators)
    made = Nodes(tmp_path / "run", plan, 2, settings={"store": f"file://{store}"})
    made.start()
    made.wait_up()
    made.begin()
    made.until("the first rows", (made.dir / "sink" / "commit-0").exists, 60)
    yield made
    made.close()


def coordinator(nodes: Nodes) -> str:
    return nodes.until("a coordinator", lambda: nodes.status()["coordinator"])


def lose(nodes: Nodes, name: str, sign: signal.Signals) -> str:
    """One of the two, and wait until the other has gone on without it. Who that is."""
    (other,) = set(nodes.names) - {name}
    before = nodes.available()
    nodes.signal(name, sign)
    nodes.until(f"{name} to be out", lambda: list(nodes.status(other)["members"]) == [other])
    nodes.until("more rows", lambda: nodes.available() > before + 100)
    return other


@pytest.mark.parametrize("which", ["coordinator", "other"])
def test_one_of_two_is_killed_and_comes_back_and_then_the_other(nodes: Nodes, which: str):
    first = coordinator(nodes) if which == "coordinator" else next(n for n in nodes.names if n != coordinator(nodes))
    other = lose(nodes, first, signal.SIGKILL)
    nodes.processes[first].wait(10)
    nodes.start(first)
    _wait_until_whole(nodes, other)
    lose(nodes, other, signal.SIGKILL)
    nodes.processes[other].wait(10)
    nodes.start(other)
    _wait_until_whole(nodes, first)
    nodes.finish()
    assert nodes.difference() == ""


def test_one_that_sleeps_is_out_when_it_wakes_up_and_joins_again(nodes: Nodes):
    sleeper = coordinator(nodes)
    other = lose(nodes, sleeper, signal.SIGSTOP)
    time.sleep(2)
    nodes.signal(sleeper, signal.SIGCONT)
    _wait_until_whole(nodes, other)
    nodes.finish()
    assert nodes.difference() == ""


def test_without_its_store_the_one_that_is_left_waits_and_says_so(nodes: Nodes, tmp_path: Path):
    first = coordinator(nodes)
    (other,) = set(nodes.names) - {first}
    store, away = tmp_path / "store", tmp_path / "away"
    store.rename(away)
    store.write_text("not a folder")
    nodes.kill(first)
    nodes.until("it to say so", lambda: any(event["event"] == "no-quorum" for event in nodes.events(other)))
    assert sorted(nodes.status(other)["members"]) == sorted(nodes.names)
    store.unlink()
    away.rename(store)
    nodes.until(f"{first} to be out", lambda: list(nodes.status(other)["members"]) == [other], 60)
    nodes.start(first)
    _wait_until_whole(nodes, other)
    nodes.finish()
    assert nodes.difference() == ""


def _wait_until_whole(nodes: Nodes, where: str) -> None:
    def is_whole() -> bool:
        status = nodes.status(where)
        return len(status["members"]) == 2 and all(
            place["backup"] for asset, place in status["places"].items() if not place.get("stage")
        )

    nodes.until("both nodes with a copy of everything", is_whole, 60)

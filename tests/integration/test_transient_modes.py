"""What the modes promise while real nodes are unavailable for a moment, replaced, or changed from mode to mode."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from msgspec.structs import replace
from support.child import read_sink
from support.nodes import Nodes
from support.plans import layered_plan
from support.transient import Frozen

from holdfast.model.ids import asset_id, shard_edge
from holdfast.model.protection import MODES

pytestmark = pytest.mark.slow

#: Nobody that is only stopped is taken for dead, however slow this machine is.
PATIENT = 1_200
#: And here nobody but one that is stopped for seconds.
SLUGGISH = 30
#: So long a machine that does much else beside may take for anything.
LIMIT_S = 180.0
#: Two operators over rows, and two over their results.
OPERATORS = ("u0", "u1", "v0", "v1")
EDGE = shard_edge(asset_id("v1"))

Make = Callable[..., Nodes]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Nodes] = []

    def started(mode: str, **settings: Any) -> Nodes:
        plan = layered_plan(shards=2, tops=2)
        plan = replace(plan, operators=tuple(replace(o, mode=mode) for o in plan.operators))
        nodes = Nodes(tmp_path / f"run{len(made)}", plan, 5, settings=settings)
        made.append(nodes)
        nodes.start()
        nodes.wait_up()
        nodes.begin()
        nodes.until("the first rows of v1", lambda: rows_of(nodes, "v1"), LIMIT_S)
        return nodes

    yield started
    for nodes in made:
        nodes.close()


def rows_of(nodes: Nodes, shard: str) -> int:
    return sum(b.num_rows for b in read_sink(nodes.dir / "sink").get(f"{shard}.0", []))


def name(place: dict[str, Any], role: str) -> str:
    return place[role].partition("#")[0]


def all_of(nodes: Nodes, node: str) -> list[Frozen]:
    """The node and the driver processes that it has started."""
    process = psutil.Process(nodes.processes[node].pid)
    return [Frozen(one.pid) for one in (process, *process.children(recursive=True))]


def pause(nodes: Nodes, since: float, until: float) -> float:
    """The longest time between two batches with rows of v1 that the sink has written, of those that touch this time."""
    files = (nodes.dir / "sink").glob("batch-*[0-9]")
    times = sorted(file.stat().st_mtime for file in files if EDGE.encode() in file.read_bytes())
    spans = [later - sooner for sooner, later in itertools.pairwise(times) if later >= since and sooner <= until]
    return max(spans)


def usual(nodes: Nodes) -> float:
    """The longest pause without anything being done to anybody."""
    since = time.time()
    wait_for_rows(nodes, more=500)
    return pause(nodes, since, time.time())


def wait_for_rows(nodes: Nodes, shard: str = "v1", more: int = 1) -> None:
    held = rows_of(nodes, shard)
    nodes.until(f"rows of {shard}", lambda: rows_of(nodes, shard) > held + more, LIMIT_S)


@pytest.mark.parametrize("mode", ["passive", "hybrid", "active"])
def test_a_stalled_node_that_wakes_up_after_it_was_replaced_writes_nothing_anywhere(make: Make, mode: str):
    """Once the one that runs most, once the one that holds a ledger: with rows, captures, batches and sink files under
    way when it stops, all of which it tries to go on with."""
    nodes = make(mode, misses=SLUGGISH)
    for find in (runs_most, holds_a_ledger):
        places = nodes.status()["places"]
        node = find(places)
        frozen = all_of(nodes, node)
        for one in frozen:
            one.begin()
        survivors = [n for n in nodes.names if n != node]

        def replaced(node: str = node, survivors: list[str] = survivors) -> bool:
            told = [nodes.status(survivor) for survivor in survivors]
            found = max(told, key=lambda status: status["version"])
            return node not in found["members"] and not any(
                node == name(place, "primary") for place in found["places"].values() if place["primary"]
            )

        nodes.until(f"{node} to be replaced", replaced, LIMIT_S)
        before = {a: p["epoch"] for a, p in places.items() if p["primary"] and name(p, "primary") == node}
        for one in frozen:
            one.end()
        witness = survivors[0]
        nodes.until(
            f"{node} to be a member again",
            lambda node=node, witness=witness: node in nodes.status(witness)["members"],
            LIMIT_S,
        )
        now = nodes.status(witness)["places"]
        assert all(now[asset]["epoch"] > epoch for asset, epoch in before.items() if asset in OPERATORS)
        nodes.until("two copies of everything", lambda: not nodes.status()["degraded"], LIMIT_S)
        wait_for_rows(nodes)
    nodes.finish(LIMIT_S)
    assert nodes.difference() == ""


def runs_most(places: dict[str, Any]) -> str:
    homes = [name(p, "primary") for a, p in places.items() if p["primary"] and a in OPERATORS]
    return max(homes, key=homes.count)


def holds_a_ledger(places: dict[str, Any]) -> str:
    return next(name(p, "primary") for a, p in sorted(places.items()) if a not in OPERATORS and not p["stage"])


@pytest.mark.parametrize(
    "seconds", [0.3, 1.0, 3.0, pytest.param(10.0, marks=pytest.mark.long)], ids=lambda s: f"{s:g} s"
)
def test_a_stop_of_a_primary_in_mode_hybrid_costs_no_row_and_output_does_not_wait_for_its_end(
    make: Make, seconds: float
):
    nodes = make("hybrid", misses=PATIENT)
    place = nodes.status()["places"]["v1"]
    usual_s = usual(nodes)
    frozen = Frozen(nodes.processes[name(place, "primary")].pid)
    began = time.time()
    frozen.begin()
    time.sleep(seconds)
    frozen.end()
    ended = time.time()
    wait_for_rows(nodes, more=100)
    pause_s = pause(nodes, began, ended)
    print(f"stop of {seconds:g} s: pause {pause_s:.3f} s, usual {usual_s:.3f} s")
    assert nodes.status()["places"]["v1"]["epoch"] == place["epoch"]
    assert pause_s < max(seconds, usual_s) + 0.5  # never longer, whatever the machine does
    if seconds >= 3.0:
        assert pause_s < 0.7 * seconds
    nodes.finish(LIMIT_S)
    assert nodes.difference() == ""


@pytest.mark.long
def test_one_copy_stopped_for_half_a_minute_in_mode_active_does_not_pause_output(make: Make):
    nodes = make("active", misses=PATIENT)
    place = nodes.status()["places"]["v1"]
    usual_s = usual(nodes)
    frozen = Frozen(nodes.processes[name(place, "primary")].pid)
    began = time.time()
    frozen.begin()
    time.sleep(30)
    pause_s = pause(nodes, began, time.time())
    frozen.end()
    print(f"stop of 30 s: pause {pause_s:.3f} s, usual {usual_s:.3f} s")
    assert pause_s < 2 * usual_s + 1.0  # the machine is shared
    wait_for_rows(nodes)
    nodes.finish(LIMIT_S)
    assert nodes.difference() == ""


def walk() -> list[str]:
    """Through all modes, so that each pair of them is a step once."""
    steps = set(itertools.permutations(sorted(MODES), 2))
    path = ["passive"]

    def go_on() -> bool:
        if not steps:
            return True
        for step in sorted(s for s in steps if s[0] == path[-1]):
            steps.remove(step)
            path.append(step[1])
            if go_on():
                return True
            path.pop()
            steps.add(step)
        return False

    assert go_on()
    return path


def test_the_walk_has_every_pair_once():
    path = walk()
    assert len(set(itertools.pairwise(path))) == len(path) - 1 == len(MODES) * (len(MODES) - 1)


@pytest.mark.parametrize("operator", ["u0", "v1"], ids=["fed by a stage", "fed by units"])
def test_a_live_switch_between_any_two_modes_under_load_loses_and_doubles_no_row(make: Make, operator: str):
    nodes = make("passive", misses=SLUGGISH)
    for mode in walk()[1:]:
        nodes.caller.call("n0", "protect", {"operator": operator, "mode": mode}, timeout=15)
        nodes.until(f"mode {mode}", lambda mode=mode: is_in(nodes, operator, mode), LIMIT_S)
        wait_for_rows(nodes, operator)
    nodes.finish(LIMIT_S)
    assert nodes.difference() == ""


def is_in(nodes: Nodes, operator: str, mode: str) -> bool:
    place = nodes.status()["places"][operator]
    settled = bool(place["backup"]) == MODES[mode].has_backup
    return place["mode"] == mode and settled and not place["joining"]

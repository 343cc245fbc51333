"""A node that the system gives no more: descriptors, disk, memory, threads. It says so, loses nothing, and goes on when
there is room again; or it ends, and the others go on. Afterwards the sink holds exactly what a recomputation gives.
"""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.nodes import PATHS, TESTS, Nodes
from support.plans import layered_plan

from holdfast.errors import HoldfastError

pytestmark = pytest.mark.slow

VICTIM = "n1"
Make = Callable[..., Nodes]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Nodes] = []

    def make_nodes(**how: Any) -> Nodes:
        made.append(Nodes(tmp_path / "cluster", layered_plan(3, 1), 4, **how))
        return made[-1]

    yield make_nodes
    for nodes in made:
        nodes.close()


def run(nodes: Nodes) -> None:
    nodes.start()
    nodes.wait_up()
    nodes.begin()
    nodes.until("rows to flow", lambda: any(s.get("rows_out") for s in nodes.status()["shards"].values()))
    nodes.until("everything to have a backup", lambda: is_whole(nodes), 60)


def end(nodes: Nodes) -> None:
    nodes.until("everything to have a backup", lambda: is_whole(nodes), 90)
    nodes.finish(120)
    assert nodes.difference() == ""


def is_whole(nodes: Nodes) -> bool:
    found = nodes.status()
    return len(found["members"]) == len(nodes.names) and not any(
        place["joining"] or (place["wants_backup"] and not place["backup"]) for place in found["places"].values()
    )


def told(nodes: Nodes, event: str) -> list[str]:
    """What the node itself still knows: its disk may take no more."""
    with contextlib.suppress(HoldfastError):
        found = nodes.caller.call(VICTIM, "events", timeout=5)["events"]
        return [one["text"] for one in found if one["event"] == event]
    return []


def is_alive(nodes: Nodes) -> bool:
    return nodes.processes[VICTIM].poll() is None


def test_a_node_without_descriptors_says_so_and_goes_on(make: Make):
    nodes = make()
    run(nodes)
    process = psutil.Process(nodes.processes[VICTIM].pid)
    before = process.rlimit(resource.RLIMIT_NOFILE)
    process.rlimit(resource.RLIMIT_NOFILE, (process.num_fds(), before[1]))
    nodes.until("a word about it", lambda: "descriptors" in "".join(e["event"] for e in nodes.events(VICTIM)))
    other = next(name for name in nodes.names if name != VICTIM)
    nodes.kill(other)  # a new connection in either direction
    nodes.start(other)
    nodes.wait_up(other)
    nodes.until("it to be a member again", lambda: other in nodes.status()["members"], 60)
    assert is_alive(nodes)
    process.rlimit(resource.RLIMIT_NOFILE, before)
    end(nodes)
    assert is_alive(nodes)


def test_a_node_whose_whole_disk_is_full_says_so_and_comes_back(make: Make):
    """Journal, event log and spill at once."""
    nodes = make()
    home = nodes.dir / "nodes" / VICTIM
    home.mkdir(parents=True)
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", home]).returncode:
        pytest.skip("a small file system can only be mounted by root")
    try:
        run(nodes)
        filler = home / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        nodes.until("a word about it", lambda: told(nodes, "disk-full"), 60)
        assert "No space left" in told(nodes, "disk-full")[0]
        nodes.until("the others to go on without it", lambda: VICTIM not in nodes.status()["members"], 60)
        filler.unlink()
        end(nodes)
        assert is_alive(nodes)
    finally:
        nodes.close()
        subprocess.run(["umount", "-l", home], check=True)


def test_a_node_that_gets_no_memory_from_the_system_loses_nothing(make: Make):
    """Libraries in C may end the process where Python would raise: then the others have what it held."""
    nodes = make()
    run(nodes)
    process = psutil.Process(nodes.processes[VICTIM].pid)
    before = process.rlimit(resource.RLIMIT_AS)
    process.rlimit(resource.RLIMIT_AS, (process.memory_info().vms, before[1]))
    had = rows_out(nodes)
    nodes.until("rows, or its end", lambda: not is_alive(nodes) or rows_out(nodes) > had + 3_000, 60)
    if is_alive(nodes):
        process.rlimit(resource.RLIMIT_AS, before)
    else:
        assert nodes.processes[VICTIM].returncode not in (0, 70), nodes.tail()  # nothing was wrong but the memory
        nodes.start(VICTIM)
        nodes.wait_up(VICTIM)
    end(nodes)


def rows_out(nodes: Nodes) -> int:
    found = 0
    for name in nodes.alive():
        with contextlib.suppress(HoldfastError):  # one without memory cannot even say so
            found += sum(shard.get("rows_out", 0) for shard in nodes.status(name)["shards"].values())
    return found


def test_a_shard_without_room_for_its_state_waits_and_goes_on_after_its_node_got_more(make: Make):
    """As docs/running.md tells it: drain, stop, start with more, one node after the other."""
    nodes = make(rate=30_000, keys=60_000, settings={"state_limit": "256 KB", "page": "4 KB"})
    nodes.start()
    nodes.wait_up()
    nodes.begin()
    full = nodes.until("a shard to be full", lambda: [n for n in nodes.names if "memory-full" in kinds(nodes, n)], 60)
    assert any("memory limit" in e["text"] for e in nodes.events(full[0]) if e["event"] == "memory-full")
    nodes.settings["state_limit"] = "256 MB"
    for name in nodes.names:
        nodes.until("everything to have a backup", lambda: is_whole(nodes), 90)
        nodes.kill(name)
        nodes.start(name)
        nodes.wait_up(name)
    end(nodes)


def kinds(nodes: Nodes, name: str) -> set[str]:
    return {event["event"] for event in nodes.events(name)}


def test_a_node_that_can_start_no_thread_keeps_its_stages_and_links(make: Make):
    nodes = make()
    none = nodes.dir / "no-threads"
    path = os.pathsep.join((str(TESTS / "support" / "no_threads"), PATHS))
    nodes.env = {"PYTHONPATH": path, "HOLDFAST_TEST_NO_THREADS": str(none)}
    run(nodes)
    places = nodes.status()["places"]
    staged = next(place["primary"] for asset, place in places.items() if asset == "s0").partition("#")[0]
    drivers = nodes.status(staged)["drivers"]
    none.touch()
    psutil.Process(drivers["s0"]["pid"]).kill()  # it must be started again, which takes threads
    nodes.until(
        "a word about it",
        lambda: any("can't start new thread" in e["text"] for n in nodes.names for e in nodes.events(n)),
        60,
    )
    assert len(nodes.alive()) == len(nodes.names)
    none.unlink()
    end(nodes)
    assert len(nodes.alive()) == len(nodes.names)

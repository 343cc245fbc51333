"""Real nodes whose output goes to disk, and disks that are full, hang or lose files: no row is lost or doubled."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.nodes import PATHS, TESTS, Nodes
from support.plans import layered_plan

from holdfast.runtime.disk.log_reader import LogReader
from holdfast.runtime.node.process import BROKEN

#: Little memory for output, much disk.
SETTINGS = {"queue_memory": 200, "queue_spill": 1_000_000, "retained_hard": 3_000, "retained_soft": 500}
#: More than the output of one step.
STEP = 2_000

Make = Callable[[], Nodes]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Nodes] = []

    def one() -> Nodes:
        made.append(Nodes(tmp_path / "run", layered_plan(shards=2, tops=0), 3, settings=SETTINGS, rate=4_000))
        return made[-1]

    yield one
    for nodes in made:
        nodes.close()


def run(nodes: Nodes) -> None:
    """Start, and wait for the first rows at the sink; then the sink stands still."""
    nodes.start()
    nodes.wait_up()
    nodes.begin()
    nodes.until("the first rows", (nodes.dir / "sink" / "commit-0").exists, 60)
    (nodes.dir / "hold").touch()


def end(nodes: Nodes) -> None:
    """The sink goes on, and in the end it has every row once."""
    (nodes.dir / "hold").unlink()
    nodes.finish(120)
    assert nodes.difference() == ""
    assert not told(nodes, "broken")


def told(nodes: Nodes, event: str, name: str = "n0") -> list[str]:
    return [e["text"] for e in nodes.events(name) if e["event"] == event]


def output(nodes: Nodes) -> dict[str, Any]:
    return nodes.status("n0")["shards"]["u0"]["outputs"]["u0.0"]


def outputs(nodes: Nodes) -> list[dict[str, Any]]:
    """Of both shards, where they run."""
    places = nodes.status("n0")["places"]
    found = ((shard, nodes.status(places[shard]["primary"].partition("#")[0])) for shard in ("u0", "u1"))
    return [status["shards"][shard]["outputs"][f"{shard}.0"] for shard, status in found]


def wait_for_the_stage(nodes: Nodes) -> None:
    """Until what waits has filled the input of a shard too, and the stage is told to wait."""

    def is_full() -> bool:  # others are turned away, too, and a batch for other reasons
        return any(text.endswith(": full.") for name in nodes.names for text in told(nodes, "turned-away", name))

    nodes.until("the stage to be turned away", is_full, 60)


def in_memory(nodes: Nodes) -> int:
    found = output(nodes)
    return found["next"] - found["trimmed"] - found["spilled"]


def test_a_full_disk_slows_the_stage_down_and_loses_nothing(make: Make):
    nodes = make()
    spill = nodes.dir / "nodes" / "n0" / "spill"
    spill.mkdir(parents=True)
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", spill]).returncode:
        pytest.skip("a tiny file system can only be mounted by root")
    try:
        run(nodes)
        nodes.until("the disk to be full", lambda: told(nodes, "disk-full"), 60)
        assert "No space left" in told(nodes, "disk-full")[0]
        assert nodes.status("n0")["disk_full"]
        before = output(nodes)
        wait_for_the_stage(nodes)
        assert output(nodes)["next"] - before["next"] < STEP  # it waits
        assert in_memory(nodes) < 2 * SETTINGS["queue_memory"] + STEP
        subprocess.run(["mount", "-o", "remount,size=64m", spill], check=True)
        nodes.until("the disk to take it again", lambda: told(nodes, "disk-again"))
        nodes.until("more to be spilled", lambda: output(nodes)["spilled"] > before["spilled"])
        assert not nodes.status("n0")["disk_full"]
        end(nodes)
    finally:
        nodes.close()
        subprocess.run(["umount", "-l", spill], check=True)


def test_a_disk_that_hangs_makes_the_shard_wait_and_nobody_takes_its_node_for_dead(make: Make):
    nodes = make()
    slow = nodes.dir / "slow"
    slow.touch()
    path = os.pathsep.join((str(TESTS / "support" / "slow_disk"), PATHS))
    nodes.env = {"PYTHONPATH": path, "HOLDFAST_TEST_SLOW": str(slow)}
    run(nodes)

    def is_full() -> bool:
        return max(o["next"] - o["trimmed"] for o in outputs(nodes)) >= 2 * SETTINGS["queue_memory"]

    nodes.until("a queue to be full", is_full, 60)  # before that, a slow node may turn the stage away for its backlog
    wait_for_the_stage(nodes)
    held = outputs(nodes)
    assert max(o["next"] - o["trimmed"] for o in held) < 2 * SETTINGS["queue_memory"] + STEP
    assert [o["spilled"] for o in held] == [0, 0]  # nothing counts before it is there
    record = nodes.status("n1")
    assert (len(record["members"]), record["places"]["u0"]["epoch"], record["places"]["u1"]["epoch"]) == (3, 1, 1)
    slow.unlink()
    nodes.until("rows to be spilled", lambda: max(o["spilled"] for o in outputs(nodes)) > SETTINGS["queue_memory"])
    end(nodes)


@pytest.mark.parametrize("hurt", ["cut", "changed"])
def test_spill_files_that_are_damaged_end_their_node_and_lose_nothing(make: Make, hurt: str):
    nodes = make()
    run(nodes)
    spill = nodes.dir / "nodes" / "n0" / "spill"
    nodes.until("rows to be spilled", lambda: output(nodes)["spilled"] > 5 * SETTINGS["queue_memory"], 60)
    for file in spill.rglob("*.log"):
        if hurt == "cut":
            os.truncate(file, file.stat().st_size // 2)
        else:
            file.write_bytes(bytes(file.stat().st_size))
    (nodes.dir / "hold").unlink()
    assert nodes.processes["n0"].wait(60) == BROKEN
    assert "does not hold what was written to it" in told(nodes, "spill-damaged")[0]
    nodes.finish(120)
    assert nodes.difference() == ""


def test_spill_files_that_vanish_lose_nothing(make: Make):
    nodes = make()
    run(nodes)
    spill = nodes.dir / "nodes" / "n0" / "spill"
    nodes.until("rows to be spilled", lambda: output(nodes)["spilled"] > 5 * SETTINGS["queue_memory"], 60)
    shutil.rmtree(spill)
    before = output(nodes)["spilled"]
    nodes.until("more to be spilled", lambda: output(nodes)["spilled"] > 2 * before, 60)
    end(nodes)


def test_the_logs_of_a_node_that_runs_and_of_one_that_was_killed_are_whole(make: Make):
    nodes = make()
    run(nodes)
    log = nodes.dir / "nodes" / "n0" / "spill" / "u0.0"
    nodes.until("rows to be spilled", lambda: output(nodes)["spilled"] > 5 * SETTINGS["queue_memory"], 60)

    def positions() -> tuple[int, int]:
        """Where the log begins and ends: every block of it is read, and continues the one before."""
        reader = LogReader(log, all_of_it=True)
        blocks = list(reader.blocks())
        assert [block.start for block in blocks[1:]] == [block.end for block in blocks[:-1]]
        assert reader.log.damage == ""
        reader.close()
        return blocks[0].start, blocks[-1].end

    before = positions()
    assert before[1] - before[0] > 5 * SETTINGS["queue_memory"]
    nodes.until("the log to grow under a reader", lambda: positions()[1] > before[1], 60)
    nodes.kill("n0")
    assert positions()[1] > before[1]
    end(nodes)

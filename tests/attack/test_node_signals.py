"""A node's own signals: it stops in good order and says so with its exit code, and the results are the same."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest
from support.nodes import Nodes
from support.plans import layered_plan

pytestmark = pytest.mark.slow

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def end(nodes: Nodes, name: str, *signs: signal.Signals) -> None:
    """It ends of these with exit code 0, and leaves no process and no lock behind."""
    process = nodes.processes[name]
    started = psutil.Process(process.pid).children(recursive=True)
    for sign in signs:
        nodes.signal(name, sign)
    assert process.wait(30) == 0, nodes.tail()
    assert not psutil.wait_procs(started, timeout=20)[1]
    assert not (nodes.dir / "nodes" / name / "lock").exists()
    assert nodes.events(name)[-1]["event"] == "stopped"


def is_whole(nodes: Nodes) -> bool:
    found = nodes.status()
    return len(found["members"]) == len(nodes.names) and not any(
        place["joining"] or (place["wants_backup"] and not place["backup"]) for place in found["places"].values()
    )


def test_nodes_that_end_of_signals_one_after_the_other_change_no_result(tmp_path: Path):
    nodes = Nodes(tmp_path / "cluster", layered_plan(3, 1), 4)
    try:
        nodes.start()
        nodes.wait_up()
        nodes.begin()
        for name, sign in zip(nodes.names, SIGNALS, strict=True):
            nodes.until("everything to have a backup", lambda: is_whole(nodes), 60)
            end(nodes, name, sign)
            nodes.start(name)
            nodes.wait_up(name)
        nodes.until("everything to have a backup", lambda: is_whole(nodes), 60)
        end(nodes, "n2", signal.SIGTERM, signal.SIGINT, signal.SIGTERM)
        nodes.finish(90)
        assert nodes.difference() == ""
    finally:
        nodes.close()


@pytest.mark.parametrize("sign", SIGNALS, ids=str)
def test_a_node_ends_of_a_signal_while_it_starts(sign, tmp_path: Path):
    nodes = Nodes(tmp_path / "cluster", layered_plan(1, 0), 1)
    try:
        nodes.start()
        log = nodes.dir / "nodes" / "n0" / "events.jsonl"
        nodes.until("its first words", lambda: log.exists() and log.stat().st_size, 60)
        end(nodes, "n0", sign)
    finally:
        nodes.close()

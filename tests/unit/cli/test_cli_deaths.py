"""`holdfast run` into a file: a node that died, its return and take-overs are a line each."""

from __future__ import annotations

import io
import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rich.console import Console

from holdfast.cli import run as run_module
from holdfast.cli.deaths import Deaths, how
from holdfast.cli.story import EventLogs


def a_process(pid: int, code: int | None = None) -> Any:
    return SimpleNamespace(pid=pid, poll=lambda: code)


def some_nodes(restart_s: float | None = 3.0) -> Any:
    return SimpleNamespace(processes={"n0": a_process(1), "n1": a_process(2)}, retired=set(), restart_s=restart_s)


def told(home: Path, node: str, kind: str, text: str, **more: Any) -> None:
    path = home / "nodes" / node / "events.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps({"time": "2026-01-01", "node": node, "event": kind, "text": text, **more}) + "\n")


def test_a_node_that_died_and_came_back_and_what_was_taken_over_are_a_line_each(tmp_path):
    told(tmp_path, "n0", "promotion", "n0#1 takes over u9 at epoch 2.", shard="u9")  # before
    nodes = some_nodes()
    deaths = Deaths(nodes, EventLogs(tmp_path))
    both = {"nodes": {"n0": {}, "n1": {}}}
    assert deaths.look(both) == []
    nodes.processes["n1"] = a_process(2, -9)
    for shard in ("u1", "u0", "u4", "u3", "u2"):
        told(tmp_path, "n0", "promotion", f"n0#1 takes over {shard} at epoch 2.", shard=shard)
    told(tmp_path, "n0", "promotion", "n0#1 goes on with u7 at epoch 2.", shard="u7")
    told(tmp_path, "n0", "stage-start", "The standby of out_0 takes over.", stage="out_0", epoch=2)
    told(tmp_path, "n0", "stage-start", "A standby of in is wanted here; it is cold for now.", stage="in", epoch=0)
    assert deaths.look(both) == [
        "node n1 has died (SIGKILL); it is started again after 3 s",
        "node n0 takes over stage out_0: its standby goes on",
        "node n0 takes over u0, u1, u2, u3 and 1 more",
    ]
    assert deaths.look({"nodes": {"n0": {}}}) == []
    nodes.processes["n1"] = a_process(3)
    assert deaths.look({"nodes": {"n0": {}}}) == []  # it does not answer yet
    assert deaths.look(both) == ["node n1 is back"]
    assert deaths.look(both) == []


def test_a_node_that_stays_dead_is_said_to(tmp_path):
    nodes = some_nodes(restart_s=None)
    deaths = Deaths(nodes, EventLogs(tmp_path))
    nodes.processes["n0"] = a_process(1, 65)
    assert deaths.look({"nodes": {}}) == ["node n0 has died (exit code 65); it is not started again"]
    nodes.processes |= {"n0": a_process(3, 0), "n1": a_process(4, 66)}  # stopped, and sent away
    assert deaths.look({"nodes": {}}) == ["node n1 has left the cluster for good"]
    assert how(-1000) == "exit code -1000"


def test_run_tells_them_where_there_is_no_live_table(tmp_path, monkeypatch):
    nodes, looks = some_nodes(), iter(range(10))
    record = {"places": {}}

    def status(run: Any) -> dict[str, Any]:
        nodes.processes["n1"] = a_process(2, -9)
        return {"nodes": {"n0": {}}, "record": record}

    monkeypatch.setattr(run_module, "cluster_status", status)
    monkeypatch.setattr(run_module, "LOOK_S", 0.0)
    monkeypatch.setattr(run_module, "tell_finished", lambda run: None)
    started: Any = SimpleNamespace(
        run=SimpleNamespace(path=tmp_path, pipeline="p"), nodes=nodes, is_finished=lambda: next(looks) > 0
    )
    console = Console(file=io.StringIO(), width=80)
    assert run_module._watch(started, threading.Event(), console, False, None)
    text = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    assert text == "node n1 has died (SIGKILL); it is started again after 3 s\n"

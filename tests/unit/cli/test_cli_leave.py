"""`holdfast leave`: it drains, ends the node for good, waits until it is out, and refuses what could not work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from test_cli_runs import a_run, call

from holdfast.model.record import Record


def a_cluster(members: list[str], asked: list[tuple[str, dict]]) -> dict[str, Any]:
    """Answers of n0 in a cluster whose other nodes do as they are told."""
    here = dict.fromkeys(members, 1)
    places = {"u-0": {"primary": "n1#1", "backup": "n0#1", "joining": None, "epoch": 1, "stage": False,
                      "wants_backup": True, "mode": "passive"}}  # fmt: skip

    def status(body: dict) -> dict:
        return {"version": 1, "members": dict(here), "places": places, "draining": [], "coordinator": "n0"}

    def drain(body: dict) -> dict:
        asked.append(("drain", body))
        places["u-0"]["primary"] = "n2#1"
        return {}

    def stop(body: dict) -> dict:
        asked.append(("stop", body))
        here.pop("n0", None)
        return {}

    def send_away(body: dict) -> dict:
        asked.append(("send_away", body))
        return {}

    return {"status": status, "drain": drain, "stop": stop, "send_away": send_away}


def run_of(tmp_path: Path, node: Any, members: list[str], asked: list[tuple[str, dict]]) -> str:
    """Only n0 is there, and it is the one that leaves: its place goes elsewhere when it is drained."""
    answers = a_cluster(members, asked)
    status = answers["status"]

    def told(body: dict) -> dict:
        found = status(body)
        drained = any(what == "drain" for what, _ in asked)
        places = {a: {**p, "backup": "n1#1" if drained else p["backup"]} for a, p in found["places"].items()}
        return {**found, "places": places}

    endpoints = node(tmp_path, **{**answers, "status": told})
    return str(a_run(tmp_path, endpoints=endpoints))


def test_a_node_is_drained_then_ended_for_good_then_out(capsys, tmp_path, node):
    asked: list[tuple[str, dict]] = []
    code, out, _ = call(capsys, "leave", "n0", run_of(tmp_path, node, ["n0", "n1", "n2", "n3"], asked))
    assert (code, asked) == (0, [("drain", {"name": "n0"}), ("send_away", {"name": "n0"}), ("stop", {"left": True})])
    assert "n0" not in json.loads((tmp_path / "run.json").read_text())["endpoints"]
    assert out.startswith("n0 has left (")
    assert "members are n1, n2, n3." in out
    assert "warning" not in out


def test_two_that_are_left_are_warned_of_and_one_that_would_be_left_is_refused(capsys, tmp_path, node):
    asked: list[tuple[str, dict]] = []
    code, out, _ = call(capsys, "leave", "n0", run_of(tmp_path / "a", node, ["n0", "n1", "n2"], asked))
    assert code == 0
    assert "warning: two members cannot decide without each other" in out
    asked.clear()
    code, _, err = call(capsys, "leave", "n0", run_of(tmp_path / "b", node, ["n0", "n1"], asked))
    assert (code, asked) == (2, [])
    assert "too few" in err


def test_what_an_interrupted_command_has_left_over_is_made_up_for(capsys, tmp_path, node):
    """The record says that it has left, and run.json does not: a run that goes on would start it for ever."""
    asked: list[tuple[str, dict]] = []
    answers = a_cluster(["n1", "n2", "n3"], asked)
    known = Record(version=9, term=2, members={"n1": 1, "n2": 1, "n3": 1}, places={}, roster={"n7": ""})
    endpoints = node(tmp_path, ping={"name": "n0"}, record=msgspec.msgpack.encode(known), **answers)
    run = str(a_run(tmp_path, endpoints={**endpoints, "n7": "grpc://127.0.0.1:9"}))
    code, out, err = call(capsys, "leave", "n7", run, "--json")
    assert (code, asked) == (0, []), err
    assert json.loads(out) == {"node": "n7", "members": ["n1", "n2", "n3"], "seconds": 0.0}
    assert "n7" not in json.loads((tmp_path / "run.json").read_text())["endpoints"]


@pytest.mark.parametrize(("name", "members", "why"), [("n7", ["n0", "n1", "n2"], "no node"),
                                                      ("n0", ["n1", "n2", "n3"], "is not a member")])  # fmt: skip
def test_who_is_not_there_cannot_leave(name, members, why, capsys, tmp_path, node):
    asked: list[tuple[str, dict]] = []
    code, _, err = call(capsys, "leave", name, run_of(tmp_path, node, members, asked))
    assert (code, asked) == (2, [])
    assert why in err

"""`holdfast skip`: what it says when it is done, and one line for every mistake; status and finish name the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.plans import layered_plan
from test_cli_runs import a_run, call

from holdfast.cli.control import finish_run
from holdfast.cli.runs import read_run
from holdfast.cli.watch import skip_lines, standing_still
from holdfast.errors import HoldfastError

PLACE = {"primary": "n0#1", "backup": None, "joining": None, "epoch": 1, "mode": "passive", "wants_backup": True}
STANDS = {
    "failed": "u1 cannot take [40, 52) of s0>u1, batch 20: another schema",
    "role": "primary",
    "stands": {
        "source": "s0",
        "number": 20,
        "seconds": 75.0,
        "tries_again": False,
        "command": "holdfast skip u1 s0 20",
        "way_on": "`holdfast skip u1 s0 20` passes over it and keeps its rows in dead/u1.",
    },
}


def a_node(answers: list[dict], asked: list[dict], **place: Any) -> dict[str, Any]:
    """A node that runs u1, and answers these to `skip`, one after the other."""

    def status(body: dict) -> dict:
        places = {"u1": {**PLACE, "stage": False, **place}}
        return {"version": 1, "members": {"n0": 1}, "places": places, "draining": [], "coordinator": "n0"}

    def skip(body: dict) -> dict:
        asked.append(body)
        return answers.pop(0) if len(answers) > 1 else answers[0]

    return {"status": status, "skip": skip}


def test_it_asks_until_the_shard_has_passed_over_the_batch(capsys, tmp_path, node):
    asked: list[dict] = []
    answers = [{"waits": "not yet"}, {"granted": True}, {"passed": True}]
    a_run(tmp_path, endpoints=node(tmp_path, **a_node(answers, asked)))
    code, out, _ = call(capsys, "skip", "u1", "s0", "20", str(tmp_path))
    assert (code, asked) == (0, [{"shard": "u1", "source": "s0", "number": 20}] * 3)
    assert out.startswith("u1 has passed over 20 of s0 (")
    assert "dead/u1 has its rows" in out
    code, out, _ = call(capsys, "skip", "u1", "s0", "20", str(tmp_path), "--json")  # said twice
    assert (code, json.loads(out)["number"]) == (0, 20)


def test_a_shard_that_passed_over_it_and_moved_has_passed_over_it(capsys, tmp_path, node):
    answers = [{"granted": True}, {"refused": "u1 has taken batch 20 of s0: it cannot be skipped any more"}]
    a_run(tmp_path, endpoints=node(tmp_path, **a_node(answers, [])))
    assert call(capsys, "skip", "u1", "s0", "20", str(tmp_path))[0] == 0


TAKEN = "u1 has taken batch 3 of s0: it cannot be skipped any more"


@pytest.mark.parametrize(
    ("arguments", "answer", "says"),
    [
        (("u9", "s0", "20"), {}, "error: no shard is named 'u9' · There are u1."),
        (("u1", "s0", "3"), {"refused": TAKEN, "hint": ""}, f"error: {TAKEN}"),
        (
            ("u1", "s9", "3"),
            {"refused": "u1 reads nothing from 's9'", "hint": "It reads s0."},
            "error: u1 reads nothing from 's9' · It reads s0.",
        ),
    ],
)
def test_a_mistake_is_one_line(capsys, tmp_path, node, arguments, answer, says):
    a_run(tmp_path, endpoints=node(tmp_path, **a_node([answer], [])))
    code, _, err = call(capsys, "skip", *arguments, str(tmp_path))
    assert (code, err.strip()) == (2, says)


@pytest.mark.parametrize("number", ["-1", "x", "1.5"])
def test_a_batch_has_a_number(capsys, tmp_path, number):
    code, _, err = call(capsys, "skip", "u1", "s0", number, str(tmp_path))
    assert (code, len(err.strip().splitlines())) == (2, 1)


def test_a_lost_shard_cannot_pass_over_anything(capsys, tmp_path, node):
    a_run(tmp_path, endpoints=node(tmp_path, **a_node([{}], [], primary=None)))
    code, _, err = call(capsys, "skip", "u1", "s0", "20", str(tmp_path))
    assert (code, "every copy of u1 is gone" in err) == (2, True)


def test_what_is_not_granted_in_time_is_an_error_that_says_what_it_waits_for(capsys, tmp_path, node):
    a_run(tmp_path, endpoints=node(tmp_path, **a_node([{"waits": "The record does not say so yet."}], [])))
    code, _, err = call(capsys, "skip", "u1", "s0", "20", str(tmp_path), "--limit", "0.3")
    assert code == 1
    assert "The record does not say so yet." in err


def test_status_says_why_a_shard_stands_still_for_how_long_and_what_to_type():
    line = standing_still("u1", "n0", STANDS)
    assert line.startswith("u1 on n0 has stood still for 75 s: u1 cannot take [40, 52) of s0>u1, batch 20")
    assert "`holdfast skip u1 s0 20`" in line
    skips = {"u1": {"skips": [{"source": "s0", "number": 20}]}, "u2": {"skips": []}}
    assert skip_lines(skips) == ["u1 passes over 20 of s0: dead/u1 has its rows"]


def test_finish_ends_with_what_status_knows_of_a_shard_that_stands_still(tmp_path: Path, node: Any):
    def status(body: dict) -> dict:
        places = {"s0": {**PLACE, "stage": True}}
        return {"name": "n0", "version": 1, "places": places, "finished": [], "shards": {"u1": STANDS}}

    a_run(tmp_path, endpoints=node(tmp_path, status=status, finish={"told": ["n0"]}))
    (tmp_path / "plan.json").write_bytes(msgspec.json.encode(layered_plan(shards=1, tops=0)))
    with pytest.raises(HoldfastError) as end:
        finish_run(read_run(tmp_path), limit_s=60.0)
    assert "u1 on n0 stands still" in end.value.what
    assert "another schema" in end.value.detail
    assert "`holdfast skip u1 s0 20`" in end.value.hint

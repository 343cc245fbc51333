"""`stop --finish` while a stage fails: it says what `status` knows, and does not wait for what cannot come."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.plans import layered_plan

from holdfast.cli.control import FAILURES_MAX, finish_run
from holdfast.cli.runs import read_run
from holdfast.errors import HoldfastError, exit_code

PLACE = {"primary": "n0#1", "backup": None, "joining": None, "epoch": 1, "stage": True}


@pytest.fixture
def finish(tmp_path: Path, node: Any) -> Any:
    """Finish a run whose node says at each question that stage `s0` has failed so often; at the last it has ended."""

    def one(*asked: int, waiting: str = "s0") -> list[str]:
        left, said = list(asked), []

        def status(body: dict) -> dict:
            times = left.pop(0) if left else 0
            failures = {"s0": {"text": "no such file", "times": times}} if times else {}
            places = {"s0": PLACE, waiting: PLACE}
            finished = [stage for stage in places if not left or stage != waiting]
            return {"name": "n0", "version": 1, "places": places, "finished": finished, "failures": failures}

        described = {"pipeline": "p", "source": "p.py", "cwd": str(tmp_path), "secret_file": str(tmp_path / "secret")}
        described["deployment"] = "p-1"
        endpoints = node(tmp_path, status=status, finish={"told": ["n0"]})
        (tmp_path / "run.json").write_text(json.dumps({**described, "endpoints": endpoints}))
        (tmp_path / "plan.json").write_bytes(msgspec.json.encode(layered_plan(shards=1, tops=0)))
        finish_run(read_run(tmp_path), limit_s=60.0, tell=said.append)
        return said

    return one


def test_a_stage_that_fails_is_told_once_and_may_recover(finish):
    assert finish(1, 1, 2, 2, 0) == ["s0 failed on n0: no such file", "waiting for s0 to finish"]


def test_a_stage_that_fails_again_and_again_ends_it_with_the_reason(finish):
    with pytest.raises(HoldfastError) as end:
        finish(1, 1, *[FAILURES_MAX] * 9)
    assert exit_code(end.value) == 1
    assert "s0 fails again and again" in end.value.what
    assert f"{FAILURES_MAX} times in a row: no such file" in end.value.detail


def test_failures_from_before_do_not_end_it_since_their_cause_may_be_mended(finish):
    """Nor does one more, of a start from before."""
    before = FAILURES_MAX + 2
    told = [f"s0 failed on n0, {before} times in a row: no such file", "waiting for s0 to finish"]
    assert finish(*[before] * 4, before + 1, before + 1, 0) == told
    assert finish(*[before] * 3, 0, 1, 1, 2, 0) == told


def test_a_cause_that_is_not_mended_ends_it_with_the_second_failure_more(finish):
    before = FAILURES_MAX + 2
    with pytest.raises(HoldfastError) as end:
        finish(before, before, before + 1, *[before + 2] * 9)
    assert f"{before + 2} times in a row" in end.value.detail


def test_a_stage_that_nobody_waits_for_may_fail(finish):
    assert finish(*[FAILURES_MAX] * 3, waiting="s1") == ["waiting for s1 to finish"]

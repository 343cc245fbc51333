"""Which sources go on while others pause, and how long those wait for them; from what nodes say, without a node."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from support.plans import layered_plan

from holdfast.cli.clean import STANDS_S, SourcesPaused, Trailing, reach_clean_point
from holdfast.cli.runs import RunFile
from holdfast.errors import HoldfastError
from holdfast.model.plan import to_micros

PLAN = layered_plan(stages=2, shards=1, tops=0)
#: In the core's terms, so that it is a time that can be shown.
NOON = 1 << 61


def nodes(first: tuple[int, int], second: tuple[int, int], *, batch: int = 3, at: int = NOON) -> dict[str, Any]:
    """One node with everything: of each source the watermark that the shard has consumed, and what waits. `batch` and
    `at` are those of the second source."""
    inputs = {
        edge: {"position": 0, "watermark": mark, "before_last": mark + 5_000_000 * (waiting > 0), "waiting": waiting}
        for edge, (mark, waiting) in (("s0>u0", first), ("s1>u0", second))
    }
    told = {"epoch": 1, "paused": True}
    ledgers = {
        "s0": {"primary": True, "batch": 9, "watermark_us": to_micros(NOON + 6_000_000)},
        "s1": {"primary": True, "batch": batch, "watermark_us": to_micros(at)},
    }
    shards = {"u0": {"role": "primary", "lag": 0, "inputs": inputs}}
    return {"n0": {"drivers": {"s0": told, "s1": told}, "shards": shards, "ledgers": ledgers}}


UNEVEN = nodes((NOON, 51), (NOON, 0))


def test_a_source_for_which_rows_of_another_wait_goes_on_until_they_can_be_consumed():
    """All sources paused: the output stood still until the limit, ten minutes, and no clean point came."""
    found = Trailing(PLAN).look(UNEVEN, 0.0)
    assert {source: one.mark for source, one in found.items()} == {"s1": NOON + 5_000_000}
    assert Trailing(PLAN).look(nodes((NOON, 51), (NOON, 0), at=NOON + 5_000_000), 0.0) == {}  # its batch is on its way
    assert Trailing(PLAN).look(nodes((NOON, 0), (NOON, 0)), 0.0) == {}


def test_a_source_that_brings_nothing_is_named_with_what_waits_for_it():
    trailing = Trailing(PLAN)
    for now in (0.0, STANDS_S - 0.1):
        assert trailing.stuck(trailing.look(UNEVEN, now), now) == ""
    why = trailing.stuck(trailing.look(UNEVEN, STANDS_S), STANDS_S)
    assert "what it has of s0 waits until s1 has come to" in why
    assert "s1 has brought nothing for 30 s" in why


def test_a_source_that_brings_batches_may_yet_come_there():
    trailing = Trailing(PLAN)
    for batch in range(4):
        now = STANDS_S * batch
        assert trailing.stuck(trailing.look(nodes((NOON, 51), (NOON, 0), batch=batch), now), now) == ""


def test_a_source_with_a_trigger_or_an_idle_time_may_take_that_time_as_well():
    stages = tuple(replace(s, trigger_ms=20_000, idle_ns=60 * 10**9) if s.id == "s1" else s for s in PLAN.stages)
    trailing = Trailing(replace(PLAN, stages=stages))
    trailing.look(UNEVEN, 0.0)
    assert trailing.stuck(trailing.look(UNEVEN, STANDS_S + 99), STANDS_S + 99) == ""
    assert trailing.stuck(trailing.look(UNEVEN, STANDS_S + 100), STANDS_S + 100)


class ToldRun(RunFile):
    """Whose nodes say what a test wants."""

    answers: dict[str, Any]
    asked: list[tuple[str, dict[str, Any] | None]] = msgspec.field(default_factory=list)

    def statuses(self) -> tuple[dict[str, Any], list[str]]:
        return self.answers, []

    def ask_all(self, action: str, body: dict[str, Any] | None = None, *, timeout_s: float = 5.0) -> dict[str, Any]:
        self.asked.append((action, body))
        return self.answers


def test_marks_are_told_at_once_and_never_lowered():
    run = ToldRun(pipeline="p", source="", cwd="", endpoints={}, answers=UNEVEN)
    paused = SourcesPaused(run)
    paused.let_on({"s1": 7})  # pyright: ignore[reportArgumentType]
    paused.let_on({"s1": 5})  # pyright: ignore[reportArgumentType]
    paused.let_on({"s0": 9})  # pyright: ignore[reportArgumentType]
    assert [body["marks"] for _, body in run.asked if body] == [{"s1": 7}, {"s1": 7, "s0": 9}]


def test_at_the_limit_is_said_who_waits_for_whom(tmp_path, monkeypatch):
    monkeypatch.setattr("holdfast.cli.clean.read_plan", lambda path: PLAN)
    run = ToldRun(pipeline="p", source="", cwd="", endpoints={}, answers=UNEVEN, dir=str(tmp_path))
    with pytest.raises(HoldfastError, match=r"s1 to come to .* for what u0 has of s0"):
        reach_clean_point(run, None, paused=SourcesPaused(run), limit_s=0.0, tell=None)  # pyright: ignore[reportArgumentType]

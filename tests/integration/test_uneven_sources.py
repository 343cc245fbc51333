"""Two sources of which one is always seconds behind the other in event time: nothing waits after a pause, and rows flow
again behind it. Real nodes, without Spark."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.nodes import Nodes
from support.plans import layered_plan

from holdfast.cli.clean import SourcesPaused, Trailing, _busy, unpaused
from holdfast.cli.runs import RunFile
from holdfast.model.plan import Plan

pytestmark = pytest.mark.slow

LIMIT_S = 120.0
BEHIND_S = 3.0


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    plan = layered_plan(stages=2, shards=2, tops=2)
    made = Nodes(
        tmp_path / "run", plan, 3, rate=500, settings={"standby": False}, source={"behind_s": {"s1": BEHIND_S}}
    )
    made.start()
    made.wait_up()
    made.begin()
    yield made
    made.close()


def consumed(run: RunFile, plan: Plan, paused: SourcesPaused) -> set[str]:
    """Until nothing waits; who had to go on for that."""
    trailing, went, until = Trailing(plan), set[str](), time.monotonic() + LIMIT_S
    while True:
        told = run.statuses()[0]
        behind = trailing.look(told, time.monotonic())
        paused.let_on({source: one.mark for source, one in behind.items()})
        went |= set(behind)
        busy = _busy(told, plan)
        if not behind and not busy:
            return went
        assert time.monotonic() < until, f"{busy}, {behind}"
        time.sleep(0.1)


def test_what_waits_for_a_source_that_is_behind_is_consumed_in_a_pause(nodes: Nodes):
    run = RunFile(
        pipeline="layered", source="", cwd="", endpoints=nodes.caller.endpoints, deployment=nodes.plan.query,
        secret_file=str(nodes.dir / "secret"), dir=str(nodes.dir),
    )  # fmt: skip

    def positions() -> dict[str, int]:
        found = {}
        for answer in run.statuses()[0].values():
            for told in answer.get("shards", {}).values():
                if told["role"] == "primary":
                    found |= {edge: one["position"] for edge, one in told["inputs"].items()}
        return found

    nodes.until(
        "rows of both", lambda: all(positions().get(f"s{s}>u{u}", 0) > 2_000 for s in (0, 1) for u in (0, 1)), 120
    )
    for _ in range(3):
        with SourcesPaused(run) as paused:
            nodes.until("the pause", lambda: not unpaused(run.statuses()[0], nodes.plan))
            went = consumed(run, nodes.plan, paused)
            assert went == {"s1"}, "s0 is ahead: it never has to go on"
            stood = positions()
            time.sleep(1.0)
            assert positions() == stood
        nodes.until("rows again", lambda at=stood: all(now > at[edge] for edge, now in positions().items()), 60)

"""Whether a pause of the sources can end in a clean point, from what the nodes say; without a node."""

from __future__ import annotations

from typing import Any

from support.plans import layered_plan

from holdfast.cli.clean import STANDS_S, _HeldBack

PLAN = layered_plan(stages=2, shards=1, tops=0)


def nodes(first: tuple[int, int], second: tuple[int, int], *, paused: bool = True) -> dict[str, Any]:
    """One node that has the shard, and both sources: the position of each of its inputs, and what waits there."""
    told = {"epoch": 1, "paused": paused}
    inputs = {
        "s0>u0": {"position": first[0], "waiting": first[1]},
        "s1>u0": {"position": second[0], "waiting": second[1]},
    }
    return {"n0": {"drivers": {"s0": told, "s1": told}, "shards": {"u0": {"role": "primary", "inputs": inputs}}}}


def test_rows_that_wait_for_a_source_that_pauses_end_the_pause():
    """A shard takes its inputs in order of event time: the output stood still until the limit, ten minutes."""
    held = _HeldBack(PLAN)
    assert held.check(nodes((10, 51), (20, 0)), 0.0) == ""
    assert held.check(nodes((10, 51), (20, 0)), STANDS_S - 0.1) == ""
    why = held.check(nodes((10, 51), (20, 0)), STANDS_S)
    assert "what it has of s0 waits for rows of s1" in why


def test_a_shard_that_takes_something_may_yet_come_to_the_end():
    held = _HeldBack(PLAN)
    assert held.check(nodes((10, 51), (20, 0)), 0.0) == ""
    assert held.check(nodes((11, 50), (20, 0)), STANDS_S) == ""
    assert held.check(nodes((61, 0), (20, 0)), 3 * STANDS_S) == ""


def test_rows_on_all_inputs_wait_for_nobody_and_a_source_that_does_not_pause_may_bring_more():
    held = _HeldBack(PLAN)
    for now in (0.0, STANDS_S, 2 * STANDS_S):
        assert held.check(nodes((10, 51), (20, 3)), now) == ""
        assert held.check(nodes((10, 51), (20, 0), paused=False), now) == ""

"""Footprints as a setting of an operator: what they are refused for, and what goes without saying."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from support.plans import layered_plan

from holdfast.errors import ConfigError
from holdfast.model.config import MS
from holdfast.model.protection import Protection
from holdfast.pipeline.arguments import check_checkpoint


def test_joins_leave_no_footprints():
    assert check_checkpoint("eventual", "talkers") == "eventual"
    with pytest.raises(ConfigError, match="joins leave no footprints"):
        check_checkpoint("eventual", "pairs", joins=True)


def test_they_need_a_store_and_are_due_every_second_or_as_the_nodes_say():
    plan = layered_plan(shards=1, tops=0)
    operator = replace(plan.operators[0], checkpoint="eventual")
    every = [operator.protection(Protection(checkpoint_ns=ns * MS)).checkpoint_ns for ns in (10_000, 200)]
    assert every == [1_000 * MS, 200 * MS]
    assert replace(operator, checkpoint_ns=50 * MS).protection(Protection()).checkpoint_ns == 50 * MS
    with pytest.raises(ConfigError, match='checkpoint="eventual" needs a store'):
        replace(plan, operators=(operator,)).check_store(has_store=False)

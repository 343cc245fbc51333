"""The two tables of a copy: what the record makes of it, and what its state is good for."""

from __future__ import annotations

import pytest
from support.core import copy_of

from holdfast.core.roles import CHANGES, RISING, Change, Condition
from holdfast.errors import InvariantError

PAIRS = [(condition, change) for condition in Condition for change in Change]


@pytest.mark.parametrize(("condition", "change"), PAIRS, ids=lambda x: x.name)
def test_a_copy_does_what_the_table_says_and_stops_the_node_at_anything_else(condition, change):
    made = copy_of()
    made.condition = condition
    if (condition, change) in CHANGES:
        made.change(change)
        assert made.condition is CHANGES[condition, change]
    else:
        with pytest.raises(InvariantError, match=f"u0 is {condition.value}: {change.value}"):
            made.change(change)


def test_every_condition_can_be_reached_from_an_empty_copy_and_every_change_happens():
    reached = {Condition.EMPTY}
    while more := {to for (a, _), to in CHANGES.items() if a in reached} - reached:
        reached |= more
    assert reached == set(Condition)
    assert {change for _, change in CHANGES} == set(Change)


def test_only_a_complete_image_runs_and_what_is_being_brought_up_is_not_even_named():
    assert [a for a, change in CHANGES if change is Change.RUNS] == [Condition.COMPLETE]
    assert not RISING & {a for a, change in CHANGES if change is Change.NAMED}
    assert not RISING & {to for (a, _), to in CHANGES.items() if a not in RISING and to is not Condition.FILLING}

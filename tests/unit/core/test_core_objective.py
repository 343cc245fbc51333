"""A recovery-time objective: captures come early enough, and what is in the way is said."""

from __future__ import annotations

from types import MappingProxyType

import pytest
from support.core import host, place

from holdfast.core.agenda import images_of
from holdfast.core.objective import Objective, share_out, why_not
from holdfast.core.protect import Images
from holdfast.core.protect.tally import Cost
from holdfast.core.ready import Ready
from holdfast.errors import ConfigError
from holdfast.model import notes
from holdfast.model.config import MS, SECOND
from holdfast.model.protection import Protection


def guard(*, objective_ns: int = 0):
    """A host that runs u0, its guard, and the objective in the record."""
    made = host("a#1")
    if objective_ns:
        protections = {"u0": Protection(recover_ns=objective_ns)}
        record = made.fence.record
        made.fence.record = type(record)(**{f: getattr(record, f) for f in record.__struct_fields__} | {
            "protection": protections})  # fmt: skip
    found = images_of(made.runners["u0"])
    assert isinstance(found, Images)
    return made, found


def work(images: Images, ns: int, *, elements: int = 1) -> None:
    images.copy.op.busy_ns += ns
    images.copy.consumed_since += elements


def test_the_shards_of_a_segment_come_to_the_end_of_their_budgets_after_the_same_time():
    (_, one), (_, other) = guard(), guard()
    one.tally.load, other.tally.load = SECOND // 10, 3 * SECOND // 10
    one.tally.paste = other.tally.paste = Cost(10 * MS, 10 * MS)
    share_out({"u0": one, "u1": other}, 100 * MS)
    assert (one.budget_ns, other.budget_ns) == (10 * MS, 30 * MS)  # half of 100 less 20 to paste
    assert one.budget_ns / one.tally.load == other.budget_ns / other.tally.load


def test_without_an_objective_a_capture_waits_for_its_period_as_it_always_has():
    _, images = guard()
    share_out({"u0": images}, 0)
    work(images, SECOND)
    assert images.budget_ns == 0
    assert not images.due(100 * MS, frozen=False)
    assert images.due(250 * MS, frozen=False)


def test_a_capture_is_due_and_pressing_before_its_period_when_the_budget_is_used_up():
    _, images = guard()
    share_out({"u0": images}, 100 * MS)
    work(images, 40 * MS)
    assert not images.due(100 * MS, frozen=False)
    work(images, 20 * MS)
    assert images.due(100 * MS, frozen=False)
    assert images.is_pressing(100 * MS, frozen=False)


def test_captures_do_not_follow_each_other_faster_than_lets_them_take_a_quarter_of_the_time():
    _, images = guard()
    images.tally.capture = Cost(50 * MS, 50 * MS)
    share_out({"u0": images}, 100 * MS)
    work(images, 90 * MS)
    assert not images.due(150 * MS, frozen=False)
    assert images.due(200 * MS, frozen=False)


def test_who_would_be_late_for_some_looks_in_a_row_says_so_with_the_reason_and_says_when_it_is_over():
    made, images = guard(objective_ns=100 * MS)
    objective, ready = Objective(made), Ready()
    work(images, 150 * MS)
    for i in range(4):
        assert not ready.notes
        objective.look(i * 100 * MS, ready)
    assert ready.notes[0].__class__ is notes.NotInTime
    assert (ready.notes[0].expected_ns, ready.notes[0].wanted_ns) == (150 * MS, 100 * MS)
    assert objective.missed == {"b": 150 * MS}
    images.kept_ns = images.copy.op.busy_ns
    for i in range(40):
        objective.look(SECOND + i * 100 * MS, ready)
    assert [type(note) for note in ready.notes] == [notes.NotInTime, notes.InTimeAgain]
    assert objective.missed == {}


def test_a_single_late_look_is_a_burst_and_no_operator_without_an_objective_is_looked_at():
    made, images = guard(objective_ns=100 * MS)
    objective, ready = Objective(made), Ready()
    work(images, 150 * MS)
    objective.look(0, ready)
    images.kept_ns = images.copy.op.busy_ns
    objective.look(100 * MS, ready)
    assert not ready.notes
    made, images = guard()
    work(images, 60 * SECOND)
    for i in range(10):
        Objective(made).look(i * 100 * MS, ready)
    assert not ready.notes


@pytest.mark.parametrize("mode", ["replay", "active", "none"])
def test_a_shard_that_is_not_captured_any_more_is_not_looked_at(mode: str):
    """It was in mode passive before, and its guard for images is still there: no capture would ever make it shorter."""
    made, images = guard(objective_ns=100 * MS)
    made.fence.record.places["u0"] = place(2, mode=mode, backup=None if mode == "none" else "b#1")
    objective, ready = Objective(made), Ready()
    work(images, SECOND)
    for i in range(10):
        objective.look(i * 100 * MS, ready)
    assert not [note for note in ready.notes if isinstance(note, notes.NotInTime)]
    assert not objective.missed


@pytest.mark.parametrize("mode", ["replay", "none"])
def test_an_objective_without_effect_is_told_once_whenever_an_operator_comes_into_such_a_mode(mode: str):
    made, _ = guard(objective_ns=100 * MS)
    places, objective, ready = made.fence.record.places, Objective(made), Ready()
    for now, each in enumerate(("passive", mode, mode, "passive", mode, mode)):
        places["u0"] = place(2, mode=each, backup=None if each == "none" else "b#1")
        objective.look(now * 100 * MS, ready)
    assert ready.notes == 2 * [notes.NoObjective("u0", mode)]
    assert notes.NoObjective.told.event == notes.NotInTime.told.event == "recover-in"


def test_without_an_objective_nothing_is_told_about_a_mode_that_keeps_no_state():
    made, _ = guard()
    made.fence.record.places["u0"] = place(2, mode="replay")
    ready = Ready()
    Objective(made).look(0, ready)
    assert not ready.notes


def test_the_reason_is_what_is_in_the_way():
    _, images = guard()
    guards = {"u0": images}
    assert "no backup" in why_not(guards, "", 100 * MS, 0)
    images.tally.load = 80 * SECOND // 100
    share_out(guards, 100 * MS)
    assert "busy for 80% of a core" in why_not(guards, "b", 100 * MS, 0)
    images.tally.capture = Cost(90 * MS, 90 * MS)
    share_out(guards, 100 * MS)
    assert "a capture of u0 takes 90 ms" in why_not(guards, "b", 100 * MS, 0)
    images.waiting = MappingProxyType({"b#1": ()})
    assert "b has not pasted" in why_not(guards, "b", 100 * MS, SECOND)
    images.tally.paste = Cost(120 * MS, 120 * MS)
    assert "pasting their captures alone takes 120 ms" in why_not(guards, "b", 100 * MS, 0)
    images.scans = {"b#1": 0}
    assert "being brought up" in why_not(guards, "b", 100 * MS, 0)


@pytest.mark.parametrize("value", [1, 9 * MS, 3_601 * SECOND, -5])
def test_an_objective_out_of_range_is_refused(value):
    with pytest.raises(ConfigError, match="between 10 ms and an hour"):
        Protection(recover_ns=value)

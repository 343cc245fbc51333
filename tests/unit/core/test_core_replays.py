"""Mode replay: what the primary names, what its keeper keeps, and what is acknowledged."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from msgspec.structs import replace
from support.core import CONFIG, ONE, feed, host, op, place, record, run

from holdfast.core.copy import DEAD_LETTERS
from holdfast.core.host import Host
from holdfast.core.invariants import Invariants
from holdfast.core.protect import Horizons
from holdfast.core.protect.horizon import ROUNDS_MAX
from holdfast.core.ready import Ready
from holdfast.core.roles import Condition
from holdfast.errors import WrongMessageError
from holdfast.model import messages as m
from holdfast.model import notes
from holdfast.model.block import base_of
from holdfast.model.config import Config
from holdfast.model.parts import OutputPart
from holdfast.model.protection import Protection

EDGE = "s0>u0"
REPLAY = place(mode="replay")
PERIOD_NS = Protection().period_ns


def guard_of(made: Host) -> Horizons:
    return next(guard for guard in made.runners["u0"].guards if isinstance(guard, Horizons))


def batch(made: Host, number: int, time: int, watermark: int) -> None:
    """One row; two elements beside it. What it says about the highest time is true."""
    copy = made.copies["u0"]
    block = feed(copy, EDGE, 3 * number, [(1, time, 1)], watermark, number)
    inbox = copy.inboxes[EDGE]
    inbox.sealed[-1] = replace(block, highest=time)


def read_all(made: Host) -> None:
    for queue in made.copies["u0"].queues:
        queue.ack(DEAD_LETTERS if queue is made.copies["u0"].dead else "r0", queue.next)


def tick(made: Host, number: int) -> list[m.Horizon]:
    ready = Ready()
    guard_of(made).on_tick(number * PERIOD_NS, ready)
    return [x for _, x in ready.send if isinstance(x, m.Horizon)]


def primary(batches: int, config: Config = CONFIG, *, reads: bool = True) -> tuple[Host, list[m.Horizon]]:
    """A primary that has taken batches whose rows are 10 apart, each with the watermark of its row; windows are 10
    long. A tick of its guard after each."""
    made = host("a#1", REPLAY, config)
    named = tick(made, 0)
    for number in range(batches):
        batch(made, number, 10 * number + 5, 10 * number + 5)
        made.runners["u0"].pump(0, Ready())
        if reads:
            read_all(made)
        named += tick(made, number + 1)
    return made, named


def test_a_horizon_lies_before_the_rows_of_windows_that_are_open():
    _, named = primary(5)
    last = named[-1]
    assert last.to == {EDGE: 15}
    assert last.start == {EDGE: 12}  # the row at 45 is in the window up to 50; all before it are closed
    assert last.watermarks == {EDGE: 35}


def test_a_horizon_waits_for_the_slowest_consumer_and_for_dead_letters():
    made, named = primary(5, reads=False)
    assert {(x.start[EDGE], x.to[EDGE]) for x in named} == {(0, 0)}  # before any result
    made.copies["u0"].outputs[0].ack("r0", made.copies["u0"].outputs[0].next)
    assert tick(made, 9)[-1].to == {EDGE: 15}


def test_a_sink_that_stands_still_does_not_make_every_tick_look_at_all_points(monkeypatch):
    made, _ = primary(200, reads=False)
    looked, right = [], Horizons._is_read
    monkeypatch.setattr(Horizons, "_is_read", lambda self, point: looked.append(point) or right(self, point))
    tick(made, 300)
    assert len(guard_of(made).points) > 190
    assert len(looked) <= 8  # log2 of 200
    read_all(made)
    assert tick(made, 301)[-1].to == made.copies["u0"].positions()


def test_nothing_new_is_acknowledged_until_the_keeper_has_said_that_it_keeps():
    made, named = primary(5)
    guard = guard_of(made)
    assert guard.safe() == {EDGE: 0}
    made.replays.on_horizon_kept("c#1", m.HorizonKept(shard="u0", since=1, round=named[-1].round), 0, Ready())
    made.replays.on_horizon_kept("b#1", m.HorizonKept(shard="u0", since=1, round=named[-1].round + 1), 0, Ready())
    assert guard.safe() == {EDGE: 0}
    made.replays.on_horizon_kept("b#1", m.HorizonKept(shard="u0", since=1, round=named[-1].round), 0, Ready())
    assert guard.safe() == {EDGE: 12}
    assert guard.is_settled()


def test_what_is_not_answered_is_named_again():
    made, named = primary(1)
    assert tick(made, 2) == named[-1:]
    made.replays.on_horizon_kept("b#1", m.HorizonKept(shard="u0", since=1, round=named[-1].round), 0, Ready())
    assert tick(made, 3) == []


def test_a_keeper_that_answers_more_slowly_than_horizons_are_named_is_heard_all_the_same():
    """Or nothing is ever acknowledged, however well it keeps what it was told, and the mode ends."""
    made, named = primary(3)
    for number in range(3, 9):
        batch(made, number, 10 * number + 5, 10 * number + 5)
        made.runners["u0"].pump(0, Ready())
        read_all(made)
        late = named[-1]
        named += tick(made, number + 1)
        assert named[-1].round > late.round
        made.replays.on_horizon_kept("b#1", m.HorizonKept(shard="u0", since=1, round=late.round), 0, Ready())
        assert guard_of(made).safe() == late.start
        assert guard_of(made).waiting
    made.replays.on_horizon_kept("b#1", m.HorizonKept(shard="u0", since=1, round=named[0].round), 0, Ready())
    assert guard_of(made).safe() == late.start  # it never goes back
    made.replays.on_horizon_kept("b#1", m.HorizonKept(shard="u0", since=1, round=named[-1].round), 0, Ready())
    assert (guard_of(made).safe(), guard_of(made).waiting) == (named[-1].start, False)
    assert guard_of(made).named == {}


def test_a_keeper_that_never_answers_costs_no_memory():
    made, _ = primary(1)
    guard = guard_of(made)
    for number in range(2, 3 * ROUNDS_MAX):
        guard.start = None
        tick(made, number)
    assert guard.number >= 2 * ROUNDS_MAX
    assert len(guard.named) == ROUNDS_MAX


def test_another_keeper_begins_at_the_image_by_which_it_was_brought_up():
    made, named = primary(5)
    made.replays.on_horizon_kept("b#1", m.HorizonKept(shard="u0", since=1, round=named[-1].round), 0, Ready())
    runner, protection = made.runners["u0"], Protection(mode="replay")
    runner.on_place(place(2, mode="replay", backup=None, joining="c#1"), protection, 0, Ready())
    runner.protect(0, Ready())
    batch(made, 5, 55, 55)
    runner.pump(0, Ready())
    runner.on_place(place(3, mode="replay", backup="c#1"), protection, 0, Ready())
    assert guard_of(made).safe() == {EDGE: 15}
    assert all(point.to[EDGE] >= 15 for point in guard_of(made).points)


def test_what_was_not_captured_when_a_backup_became_the_keeper_counts_as_kept():
    made = host("a#1", place())
    for number in range(5):
        batch(made, number, 10 * number + 5, 10 * number + 5)
    runner = made.runners["u0"]
    runner.pump(0, Ready())
    runner.on_place(place(2, mode="replay"), Protection(mode="replay"), 0, Ready())
    assert guard_of(made).safe() == {EDGE: 0}


def keeper(batches: int) -> Host:
    made = host("b#1", REPLAY)
    for number in range(batches):
        batch(made, number, 10 * number + 5, 10 * number + 5)
    return made


def test_a_keeper_lets_go_of_input_before_the_horizon_and_makes_the_rest_again_when_it_is_promoted():
    first, named = primary(7)
    horizon = next(x for x in named if x.to == {EDGE: 15})
    made, ready = keeper(7), Ready()
    made.replays.on_horizon("a#1", horizon, 0, ready)
    assert ready.send == [("a#1", m.HorizonKept(shard="u0", since=1, round=horizon.round))]
    copy = made.copies["u0"]
    assert (copy.positions(), copy.retained()) == ({EDGE: 12}, 9)
    ready = Ready()
    made.on_record(record(2, place(2, primary="b#1", backup=None, epoch=2, mode="replay")), 0, ready)
    emitted = [note.block for note in ready.notes if isinstance(note, notes.Emitted)]
    assert copy.quiet_to is None
    assert [block.start for block in emitted] == [horizon.outputs["u0.0"].next, emitted[1].start]
    assert [(row[1], row[2]) for block in emitted for row in block.rows] == [(49, 1), (59, 1)]
    assert copy.outputs[0].next == first.copies["u0"].outputs[0].next


def test_a_keeper_never_begins_before_the_image_that_it_has():
    _, named = primary(7)
    made, ready = keeper(7), Ready()
    made.copies["u0"].inputs[0].position = named[4].start[EDGE] + 1
    made.replays.on_horizon("a#1", named[4], 0, ready)
    assert not ready.send
    assert made.copies["u0"].quiet_to is None


def test_a_keeper_whose_last_image_was_spoilt_begins_anew():
    _, named = primary(7)
    made = keeper(7)
    made.copies["u0"].condition = Condition.HOLLOW
    made.replays.on_horizon("a#1", named[4], 0, Ready())
    assert made.copies["u0"].condition is Condition.COMPLETE


def test_a_keeper_that_had_begun_to_make_its_state_again_forgets_it():
    """It ran, and handed over before it was there: what it had taken would be in windows twice."""
    _, named = primary(9)
    made = keeper(7)
    made.replays.on_horizon("a#1", next(x for x in named if x.to == {EDGE: 15}), 0, Ready())
    copy = made.copies["u0"]
    copy.quiet_to = {EDGE: 100}
    run(copy)
    copy.demote()
    assert copy.quiet_to is not None
    batch(made, 7, 75, 75)
    later = next(x for x in named if x.start[EDGE] >= copy.positions()[EDGE])
    made.replays.on_horizon("a#1", later, 0, Ready())
    assert not copy.op.windows


def test_a_copy_that_makes_its_state_again_notes_no_points_and_is_not_captured():
    made = host("a#1", REPLAY)
    made.copies["u0"].quiet_to = {EDGE: 100}
    batch(made, 0, 5, 5)
    ready = Ready()
    made.runners["u0"].pump(0, ready)
    assert not [note for note in ready.notes if isinstance(note, notes.Emitted)]
    assert tick(made, 1) == []
    assert guard_of(made).points == []
    joins = place(2, mode="replay", backup=None, joining="c#1")
    made.on_record(record(2, joins), 0, Ready())
    assert not made.runners["u0"].wants_protection(PERIOD_NS)


def test_input_that_is_lost_is_not_asked_for_again():
    """A gap came past: what came before it cannot be taken a second time."""
    made, _ = primary(5)
    made.copies["u0"].gap = 40
    batch(made, 5, 55, 55)
    made.runners["u0"].pump(0, Ready())
    tick(made, 9)
    assert [point.to for point in guard_of(made).points] == [{EDGE: 18}]


def test_windows_that_need_more_than_may_be_kept_end_the_mode():
    made, _ = primary(5, Config(retained_soft_max=10, retained_hard_max=20))
    runner = made.runners["u0"]
    runner.on_protection(Protection(mode="replay"), 0)
    found = Ready()
    for number in range(10, 16):
        guard_of(made).on_tick(number * PERIOD_NS, found)
    assert [type(note) for note in found.notes] == [notes.ReplayOver]
    assert runner.reports() == [m.SetProtection(operator="u0", protection=Protection(mode="passive"))]
    runner.on_protection(Protection(mode="passive"), 0)
    assert runner.reports() == []
    tick(made, 16)
    runner.on_protection(Protection(mode="replay"), 0)  # somebody wants it again, before another node has an image
    assert runner.reports() == []
    for number in range(17, 23):
        guard_of(made).on_tick(number * PERIOD_NS, found)
    assert [type(note) for note in found.notes] == 2 * [notes.ReplayOver]


def test_what_is_not_windows_over_event_time_cannot_be_protected_so():
    joins = replace(ONE, timeless=("u0",))
    made = Host("a#1", joins, CONFIG, op)
    made.on_record(record(1, place()), 0, Ready())

    class View:
        topology = joins

    wanted = m.SetProtection(operator="u0", protection=Protection(mode="replay"))
    assert wanted.objection("a#1", View()) == "the state of u0 cannot be made again from a stretch of its input"
    assert replace(wanted, protection=Protection()).objection("a#1", View()) == ""


def test_a_hand_over_does_not_wait_for_a_keeper_that_cannot_begin_where_it_was_told():
    """It was the primary a moment ago, and stands further than what the new one has named. That one is drained, too."""
    made, named = primary(5)
    assert named
    assert guard_of(made).waiting
    made.on_record(record(2, place(2, mode="replay", moving=True)), 0, Ready())
    assert made.runners["u0"].has_yielded()


def test_a_block_that_was_taken_once_is_not_skipped_the_second_time():
    """The first primary took it, and its results were read; only this node cannot."""
    made = host("a#1", REPLAY)
    copy = made.copies["u0"]
    copy.quiet_to = {EDGE: 100}
    assert made.runners["u0"].skips.was_read() == "another node has taken it, and what came of it was read"
    copy.quiet_to = None
    assert made.runners["u0"].skips.was_read() == ""


# --- what a hostile or broken primary says


def misled(batches: int, **wrong: object) -> tuple[Host, m.Horizon]:
    """A keeper that has these batches, and what a primary says to it that has taken seven."""
    _, named = primary(7)
    return keeper(batches), replace(next(x for x in named if x.to == {EDGE: 15}), **wrong)


def promote(made: Host) -> Ready:
    ready = Ready()
    made.on_record(record(2, place(2, primary="b#1", backup=None, epoch=2, mode="replay")), 0, ready)
    return ready


@pytest.mark.parametrize("wrong", [{"start": {EDGE: 13}}, {"to": {EDGE: 16}}])
def test_a_horizon_inside_a_batch_that_is_here_is_refused(wrong):
    made, said = misled(7, **wrong)
    before = made.copies["u0"].positions()
    with pytest.raises(WrongMessageError, match="a horizon that cannot be"):
        made.replays.on_horizon("a#1", said, 0, Ready())
    assert (made.copies["u0"].positions(), made.copies["u0"].quiet_to) == (before, None)


def test_a_horizon_with_output_beyond_the_epoch_of_its_primary_is_refused():
    made, said = misled(7)
    part = OutputPart(*3 * (base_of(2) + 1,), (), {})
    with pytest.raises(WrongMessageError):
        made.replays.on_horizon("a#1", replace(said, outputs=dict.fromkeys(said.outputs, part)), 0, Ready())


@pytest.mark.parametrize(
    "wrong",
    [
        {"start": {EDGE: 13}, "to": {EDGE: 15}},
        {"start": {EDGE: 13}, "to": {EDGE: 13}},
        {"start": {EDGE: 12}, "to": {EDGE: 16}},
        {"start": {EDGE: 9}, "to": {EDGE: 13}},
    ],
)
@pytest.mark.parametrize("promoted_first", [False, True])
def test_a_horizon_that_later_batches_show_to_be_wrong_ends_in_an_empty_start_and_never_in_a_check(
    wrong, promoted_first
):
    made, said = misled(3, **wrong)
    copy, ready = made.copies["u0"], Ready()
    made.replays.on_horizon("a#1", said, 0, ready)
    assert ready.send
    noted = list(promote(made).notes) if promoted_first else []
    for number in range(3, 7):
        batch(made, number, 10 * number + 5, 10 * number + 5)
        copy.inboxes[EDGE].drop(copy.stands_at(EDGE))
    ready = promote(made) if not promoted_first else Ready()
    runner = made.runners["u0"]
    runner.pump(0, ready)
    noted += ready.notes
    assert [note for note in noted if isinstance(note, notes.CutOff)]
    assert (copy.condition, copy.quiet_to) == (Condition.LANDING, None)
    runner.on_heard(EDGE, None, 0, ready)
    noted += [note for note in ready.notes if note not in noted]
    assert copy.condition is Condition.RUNNING
    Invariants().on_notes(noted)


def test_a_horizon_that_is_ahead_of_what_was_handed_over_here_is_exact_when_it_is_true():
    made, said = misled(3)
    copy = made.copies["u0"]
    made.replays.on_horizon("a#1", said, 0, Ready())
    for number in range(3, 7):
        batch(made, number, 10 * number + 5, 10 * number + 5)
        copy.inboxes[EDGE].drop(copy.stands_at(EDGE))
    emitted = [note.block for note in promote(made).notes if isinstance(note, notes.Emitted)]
    assert [(row[1], row[2]) for block in emitted for row in block.rows] == [(49, 1), (59, 1)]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"start": {}}, "every input"),
        ({"to": {EDGE: 15, "s0>u9": 15}}, "every input"),
        ({"watermarks": {"u9.0": 3}}, "every input"),
        ({"start": {EDGE: 18}}, "begins after its end"),
        ({"to": {EDGE: 1 << 61}}, "beyond every epoch"),
        ({"outputs": {}}, "every output"),
    ],
)
def test_a_horizon_that_does_not_agree_with_itself_or_with_the_shard_is_refused_at_the_gate(wrong, why):
    _, named = primary(7)
    view = SimpleNamespace(topology=ONE, record=record(1, REPLAY))
    said = next(x for x in named if x.to == {EDGE: 15})
    assert said.objection("a#1", view) == ""
    assert why in replace(said, **wrong).objection("a#1", view)

"""A node's copies: roles by the record, fences at the border, captures that come in pieces and are pasted in pieces."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from support.core import (
    CONFIG,
    SMALL,
    copy_of,
    feed,
    fill,
    held,
    host,
    images,
    paste_all,
    pasted,
    place,
    receive,
    record,
    take,
    uncosted,
)

from holdfast.core.hand_over import HandOver
from holdfast.core.host import Host
from holdfast.core.ready import Ready
from holdfast.core.roles import TRANSITIONS, Action, Role, State
from holdfast.errors import InvariantError, MemoryLimitError
from holdfast.model import messages as m
from holdfast.model import notes
from holdfast.model.config import Config
from holdfast.model.record import Place
from holdfast.sim.costs import Costs
from holdfast.sim.operators import Meter, WindowSum


def test_every_transition_that_can_happen_is_in_the_table_and_others_are_refused():
    made = host("b#1")
    made.states["u0"] = State.PRIMARY
    with pytest.raises(InvariantError, match="cannot have it"):
        made.on_record(record(2, place(2)), 0, Ready())
    assert (State.ABSENT, Role.MOVING) not in TRANSITIONS
    assert {action for _, action in TRANSITIONS.values()} == set(Action)


def test_a_shard_starts_empty_only_under_the_first_record():
    with pytest.raises(InvariantError, match="start empty"):
        host("a#1", place(3))


def test_a_copy_without_an_image_is_never_promoted():
    made = host("c#1", place(1, joining="c#1"))
    with pytest.raises(InvariantError, match="is empty: the record names it"):
        made.on_record(record(2, place(2, primary="c#1", epoch=2)), 0, Ready())


def test_a_primary_that_missed_an_epoch_of_its_own_says_so():
    made = host()
    with pytest.raises(InvariantError, match="missed an epoch"):
        made.on_record(record(2, place(2, epoch=3)), 0, Ready())


def test_one_that_handed_over_and_missed_it_is_primary_again():
    made = host()
    made.on_record(record(2, place(2, moving=True)), 0, Ready())
    assert made.reports() == [m.Yielded(asset="u0", since=2)]
    ready = Ready()
    made.on_record(record(4, place(4, epoch=3)), 0, ready)
    assert made.runners["u0"].epoch == 3
    assert notes.Promoted("u0", "a#1", 3, (0,)) in ready.notes


# --- captures


def sent(
    seat: str = "b#1",
    since: int = 1,
    epoch: int = 1,
    number: int = 1,
    keys: int = 3,
    config: Config = CONFIG,
    whole: bool = False,
) -> list[m.Message]:
    """What a primary with some state sends to this seat in its first round, as round `number`."""
    made = copy_of(config=config)
    where = Place(primary="a#1", backup=None if whole else seat, joining=seat if whole else None, since=since)
    guard = images(made, where, config)
    guard.epoch, guard.number = epoch, number - 1
    fill(made, range(keys))
    return take(guard)[seat]


def test_an_image_takes_captures_only_from_the_primary_of_its_place():
    made = host("b#1")
    assert receive(made, sent(), "x#1") == []
    assert receive(made, sent(epoch=9)) == []
    made = host("b#1")
    assert receive(made, sent()) == [held(1), pasted(1)]
    assert receive(made, sent()) == [pasted(1)]
    assert receive(made, sent(number=0)) == []


def test_a_capture_that_does_not_fit_says_so_and_changes_nothing():
    made, ready = host("c#1", place(1, backup=None, joining="c#1")), Ready()
    for message in sent():
        made.on_capture("a#1", message, 0, ready)
    assert [message for _, message in ready.send] == [held(1, fits=False)]
    assert isinstance(ready.notes[-1], notes.Misfit)
    assert made.copies["u0"].pasting is None
    assert receive(made, sent("c#1", whole=True)) == [held(1), pasted(1)]


class Full(WindowSum):
    """Has no room for a paste, while it is told so."""

    full = True

    def paste(self, piece):
        if self.full:
            raise MemoryLimitError("no room")
        super().paste(piece)


def full_host(full: bool = True) -> tuple[Host, list[WindowSum]]:
    made: list[WindowSum] = []

    def factory(spec):
        shard = type("Shard", (Full,), {"full": full, "__slots__": ()})(spec, 10, Costs(), Meter())
        made.append(shard)
        return shard

    return host("b#1", factory=factory), made


def test_an_image_that_a_failed_paste_has_emptied_never_runs():
    """The state engine forgets everything when a paste fails; positions of the copy stay where they were."""
    made, _ = full_host()
    ready = Ready()
    assert receive(made, sent()) == [held(1), held(1, fits=False)]
    made.on_record(record(2, place(2, joining="c#1")), 0, ready)  # it may be dropped before it matters
    with pytest.raises(InvariantError, match="is hollow: it runs"):
        made.on_record(record(3, place(3, primary="b#1", backup=None, epoch=2)), 0, ready)


def test_an_image_that_a_failed_paste_has_emptied_is_made_good_by_a_new_scan():
    made, operators = full_host()
    assert receive(made, sent())[-1] == held(1, fits=False)
    made.on_record(record(2, place(2, backup=None, joining="b#1")), 0, Ready())
    type(operators[-1]).full = False
    assert receive(made, sent(since=2, number=2, whole=True)) == [held(2), pasted(2)]
    ready = Ready()
    made.on_record(record(3, place(3, backup="b#1")), 0, ready)
    made.on_record(record(4, place(4, primary="b#1", backup=None, epoch=2)), 0, ready)
    assert made.runners["u0"].epoch == 2


def test_that_a_paste_failed_is_said_again_to_whoever_asks():
    """The first word may be lost; the primary, which was told that the capture is held, sends its state no more."""
    made, _ = full_host()
    messages = sent()
    receive(made, messages)
    poke = replace(messages[0], pieces=0, state=None, outputs={}, handed={})
    assert receive(made, [poke]) == [held(1, fits=False)]


def test_a_capture_that_comes_before_its_record_waits_for_it():
    made = host("b#1")
    assert receive(made, sent(since=2)) == []
    ready = Ready()
    made.on_record(record(2, place(2, joining="c#1")), 0, ready)
    paste_all(made, ready)
    assert uncosted(message for _, message in ready.send) == [held(1), pasted(1)]


def test_pieces_come_before_their_record_too():
    made = host("b#1", config=SMALL)
    messages = sent(since=2, keys=10, config=SMALL)
    assert len(messages) == 3
    assert receive(made, messages[1:]) == []
    ready = Ready()
    made.on_record(record(2, place(2, joining="c#1")), 0, ready)
    assert ready.send == []
    assert receive(made, messages[:1]) == [held(1), pasted(1)]
    assert len(made.copies["u0"].op.windows) == 10


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (2, 2, 0, 0, 1), (0, 2, 0, 2, 1)])
def test_pieces_come_in_any_order_and_doubled(order):
    made = host("b#1", config=SMALL)
    messages = sent(keys=10, config=SMALL)
    answers = []
    for index in order[:-1]:
        answers += receive(made, [messages[index]])
    assert answers == []
    assert receive(made, [messages[order[-1]]]) == [held(1), pasted(1)]
    assert made.copies["u0"].op.windows == {(10, key): 1 for key in range(10)}
    assert receive(made, messages) == [pasted(1)]


def test_pieces_of_an_older_round_or_place_are_not_mixed_into_a_newer_one():
    made = host("b#1", config=SMALL)
    old, new = sent(keys=10, config=SMALL), sent(keys=10, config=SMALL, number=2)
    assert receive(made, [old[0], old[1], new[0], new[1], old[2]]) == []
    assert receive(made, [new[2]]) == [held(2), pasted(2)]
    made = host("b#1", config=SMALL)
    under_next = sent(keys=10, config=SMALL, since=2)
    assert receive(made, [under_next[0], old[0], old[1], old[2]]) == []
    made.on_record(record(2, place(2, joining="c#1")), 0, Ready())
    assert receive(made, under_next[1:]) == [held(1), pasted(1)]


def test_pieces_of_a_place_that_is_over_are_let_go():
    made = host("b#1", config=SMALL)
    receive(made, sent(keys=10, config=SMALL)[:2])
    assert ("u0", "a#1") in made.arriving
    made.on_record(record(2, place(2, backup="c#1")), 0, Ready())
    assert made.arriving == {}


def test_held_is_said_only_when_all_pieces_are_there():
    made = host("b#1", config=SMALL)
    messages = sent(keys=10, config=SMALL)
    for message in messages[:-1]:
        assert receive(made, [message], paste=False) == []
    assert receive(made, messages[-1:], paste=False) == [held(1)]
    assert made.copies["u0"].holds_to("s0>u0") == 12


def test_while_one_capture_is_pasted_no_other_is_taken():
    made = host("b#1", config=SMALL)
    receive(made, sent(keys=10, config=SMALL), paste=False)
    pasting = made.copies["u0"].pasting
    assert receive(made, sent(keys=10, config=SMALL, number=2), paste=False) == []
    assert made.copies["u0"].pasting is pasting


def test_a_held_capture_is_pasted_before_its_copy_runs():
    """The primary was told that it is safe here, has acknowledged it, and died between Held and Pasted."""
    made = host("b#1", config=SMALL)
    assert receive(made, sent(keys=10, config=SMALL), paste=False) == [held(1)]
    made.copies["u0"].paste_piece()
    ready = Ready()
    made.on_record(record(2, place(2, primary="b#1", backup=None, epoch=2)), 0, ready)
    assert notes.Promoted("u0", "b#1", 2, (12,)) in ready.notes
    assert made.copies["u0"].op.windows == {(10, key): 1 for key in range(10)}


def test_a_joining_image_whose_last_capture_is_held_may_be_named_and_is_complete_before_it_runs():
    made = host("c#1", place(1, backup=None, joining="c#1"))
    receive(made, sent("c#1", whole=True), paste=False)
    made.on_record(record(2, place(2, backup="c#1")), 0, Ready())
    made.on_record(record(3, place(3, primary="c#1", backup=None, epoch=2)), 0, Ready())
    assert made.copies["u0"].based
    assert len(made.copies["u0"].op.windows) == 3


def test_a_held_capture_survives_changes_of_the_place():
    made = host("b#1", config=SMALL)
    receive(made, sent(keys=10, config=SMALL), paste=False)
    made.on_record(record(2, place(2, joining="c#1")), 0, Ready())
    assert receive(made, []) == [pasted(1)]


def test_a_primary_takes_no_captures_and_answers_to_old_epochs_are_ignored():
    made, ready = host(), Ready()
    assert receive(made, sent("a#1")) == []
    for message in (m.Held(shard="u0", epoch=7, round=1, fits=True), m.Pasted(shard="u0", epoch=7, round=1)):
        made.on_held("b#1", message, 0, ready)
        host("b#1").on_held("b#1", message, 0, ready)
    assert ready.send == []


def test_a_backup_that_does_not_fit_is_reported_and_joins_anew():
    made = host()
    feed(made.copies["u0"], "s0>u0", 0, [(1, 1, 1)], 0, 0)
    runner = made.runners["u0"]
    runner.pump(0, Ready())
    runner.place = place(moving=True)
    runner.protect(0, Ready())
    made.on_held("b#1", held(1, fits=False), 0, Ready())
    assert made.reports() == [m.Unfit(asset="u0", since=1, seat="b#1")]
    made.on_record(record(2, place(2, backup=None, joining="b#1")), 0, Ready())
    assert made.reports() == []
    image = host("b#1")
    ready = Ready()
    image.on_record(record(2, place(2, backup=None, joining="b#1")), 0, ready)
    assert notes.Joining("u0", "b#1", 2) in ready.notes
    assert not image.copies["u0"].based


# --- tasks


def test_captures_and_pastes_are_tasks_and_rows_are_not():
    made = host("b#1", config=SMALL)
    assert made.agenda(0).tasks == []
    receive(made, sent(keys=10, config=SMALL), paste=False)
    assert [(t.kind, t.shard) for t in made.agenda(0).tasks] == [("paste", "u0")]
    assert [made.agenda(0).tasks[0].run(0, Ready()) for _ in range(3)] == [False, False, True]
    assert made.agenda(0).tasks == []
    primary = host()
    feed(primary.copies["u0"], "s0>u0", 0, [(1, 1, 1)], 0, 0)
    primary.runners["u0"].pump(0, Ready())
    assert primary.agenda(0).tasks == []
    later_ns = CONFIG.protection.period_ns
    assert [(t.kind, t.shard) for t in primary.agenda(later_ns).tasks] == [("capture", "u0")]
    assert primary.agenda(later_ns).tasks[0].run(later_ns, Ready())
    assert primary.agenda(later_ns).tasks == []


# --- disks and stages


def test_a_full_holder_turns_a_stage_away():
    made = host()
    hand = HandOver(made)
    feed(made.copies["u0"], "s0>u0", 0, [(1, 1, 1)] * CONFIG.retained_hard_max, 1, 0)
    ready = Ready()
    deliver = m.Deliver(stage="s0", epoch=1, batch=1, attempt=1, shards={"u0": 1}, parts={}, last=None)
    hand.on_deliver("s0@1", deliver, 0, ready)
    assert ready.send[0][1].reason == "full"

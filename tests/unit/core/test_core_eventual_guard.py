"""Footprints as a guard: what an entry has and builds on, what it makes safe, and what is kept for it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from support.core import copy_of, fill, place

from holdfast.core.copy import Copy
from holdfast.core.protect import Eventual, Paged, guard_names
from holdfast.core.protect.eventual import ENTRIES_MAX
from holdfast.core.ready import Done, PutFootprints, Ready
from holdfast.core.tickets import Tickets
from holdfast.errors import MemoryLimitError
from holdfast.logs.inbox import Inbox
from holdfast.model import notes
from holdfast.model.block import batch_block, digest_of
from holdfast.model.config import MS, SECOND
from holdfast.model.parts import CommitRecord, TakenRows
from holdfast.model.protection import Protection
from holdfast.sim.operators import WindowSum

EDGE = "s0>u0"
LIMIT_NS = 5 * SECOND
EVENTUAL = Protection(checkpoint="eventual", checkpoint_ns=100 * MS)


class Guarded:
    def __init__(self, made: Copy | None = None) -> None:
        self.copy = made or copy_of()
        self.tickets = Tickets(LIMIT_NS)
        self.guard = Eventual(self.copy, place(), self.tickets, 0)
        self.guard.protection = EVENTUAL
        self.ready = Ready()

    def batch(self, batch: int, keys: list[int], time: int, watermark: int = 0) -> None:
        self.copy.inboxes[EDGE].last = batch
        fill(self.copy, keys, batch, time, watermark)

    def take(self) -> PutFootprints:
        ready = Ready()
        self.guard.take(0, ready)
        (effect,) = ready.apply
        assert isinstance(effect, PutFootprints)
        return effect

    def end(self, effect: PutFootprints, *, ok: bool = True, passed_over: bool = False) -> None:
        done = Done(ticket=effect.ticket, ok=ok, why="" if ok else "full", passed_over=passed_over)
        self.tickets.on_done(done, 0, self.ready)

    def written(self) -> PutFootprints:
        effect = self.take()
        self.end(effect)
        return effect


def test_an_entry_builds_on_those_that_are_in_the_store_and_says_what_was_taken_since():
    one = Guarded()
    one.batch(0, [1, 2], 1)
    first = one.written()
    assert (first.trace.number, first.trace.since, first.trace.needs, first.trace.taken) == (1, 1, (), ())
    one.batch(1, [1, 3], 1)
    second = one.written()
    assert (second.trace.since, second.trace.needs) == (1, (1,))
    rows = tuple((key, 1, 1) for key in (1, 3))
    assert second.trace.taken == (TakenRows(EDGE, 1, digest_of(rows), ()),)
    assert {at for at, _ in second.image.slots.values()} == {(10, 3), (10, 1)}  # one that opened, and the oldest
    assert one.guard.safe() == second.head.to


def test_nothing_is_safe_before_the_entry_is_in_the_store():
    one = Guarded()
    one.batch(0, [1], 1)
    effect = one.take()
    assert one.guard.safe() == {EDGE: 0}
    assert not one.guard.due(SECOND, frozen=False)  # one at a time
    one.end(effect)
    assert one.guard.safe() == {EDGE: 3}
    assert one.ready.notes == [notes.Stored("u0", 1, ((EDGE, 3),))]


@pytest.mark.parametrize("fate", ["refused", "missed", "passed over"])
def test_after_an_entry_that_may_not_be_there_the_next_one_has_everything_itself(fate: str):
    one = Guarded()
    one.batch(0, [1, 2], 1)
    one.written()
    one.batch(1, [3], 1)
    lost = one.take()
    if fate == "missed":
        one.tickets.on_tick(0, one.ready)
        one.tickets.on_tick(LIMIT_NS, one.ready)
    one.end(lost, ok=fate == "passed over", passed_over=True)
    assert one.guard.safe() == ({EDGE: 7} if fate == "passed over" else {EDGE: 4})
    one.batch(2, [4], 1)
    whole = one.written()
    assert (whole.trace.since, whole.trace.needs, whole.trace.taken) == (3, (), ())
    assert len(whole.image.slots) == whole.image.count == 4


def test_output_that_nobody_has_acknowledged_is_in_one_entry_and_kept_until_it_is():
    one = Guarded()
    one.batch(0, [1], 1, watermark=20)
    first = one.written()
    out = one.copy.outputs[0]
    assert [len(block.rows) for block in first.head.outputs[out.edge].blocks] == [1]
    one.batch(1, [1], 25, watermark=30)
    second = one.written()
    assert [block.start for block in second.head.outputs[out.edge].blocks] == [2]
    assert second.trace.needs == (1,)  # for its output: every window of it has closed
    for consumer in list(out.acks):
        out.ack(consumer, out.next)
    one.batch(2, [1], 35, watermark=40)
    assert one.written().trace.needs == ()


def test_a_restore_never_reads_more_than_so_many_entries():
    """Nobody takes the output: each entry has some, and is needed for that."""
    one, needs = Guarded(), []
    for batch in range(ENTRIES_MAX + 20):
        one.batch(batch, [1], 10 * batch, watermark=10 * batch)
        needs.append(len(one.written().trace.needs))
    assert max(needs) == ENTRIES_MAX - 1
    assert needs.count(0) == 2


def test_a_window_that_stays_open_leaves_a_new_footprint_before_its_entry_is_too_far_back():
    one = Guarded()
    one.batch(0, list(range(ENTRIES_MAX)), 1)
    for batch in range(1, ENTRIES_MAX):
        one.batch(batch, [1], 1)
        effect = one.written()
        assert effect.trace.number - effect.trace.since <= ENTRIES_MAX // 2


def test_what_was_not_noted_is_never_said_to_be_all_that_was_taken():
    """The setting was another one for a while."""
    one = Guarded()
    one.batch(0, [1], 1)
    one.written()
    one.copy.taken = None
    one.batch(1, [2], 1)
    assert one.take().trace.needs == ()


def test_batches_are_kept_for_a_backup_that_does_not_stand_behind_the_entry():
    one = Guarded()
    beside = Paged(one.copy, place(), one.tickets, 0)
    beside.protection = replace(EVENTUAL, checkpoint="paged")
    one.guard.others = (beside, one.guard)
    one.batch(0, [1], 1)
    assert one.written().trace.batches == {EDGE: -1}
    one.batch(1, [2], 1)
    beside.safe_at = {EDGE: 3}
    assert one.written().trace.batches == {EDGE: 0}
    one.batch(2, [], 1, watermark=20)
    beside.safe_at = one.copy.positions()
    assert one.written().trace.batches == {EDGE: 2}


def test_an_operator_that_cannot_leave_footprints_now_is_told_and_the_next_entry_is_whole(monkeypatch):
    one = Guarded()
    one.batch(0, [1], 1)
    one.written()
    one.batch(1, [2], 1)

    def full(self: WindowSum, *given: object) -> object:
        raise MemoryLimitError("u0: no page is left")

    with monkeypatch.context() as patch:
        patch.setattr(WindowSum, "footprints", full)
        ready = Ready()
        one.guard.take(0, ready)
        assert [note.word for note in ready.notes] == ["store-refused"]
        assert ready.apply == []
    assert one.take().trace.needs == ()


def test_a_shard_has_one_guard_in_the_store_by_its_setting():
    assert guard_names(EVENTUAL, place()) == ("images", "eventual")
    assert guard_names(replace(EVENTUAL, mode="none"), place(backup=None)) == ("eventual",)
    made = copy_of()
    for kind, name in ((Paged, "paged"), (Eventual, "eventual")):
        guard = kind(made, place(), Tickets(LIMIT_NS), 0)
        guard.protection = EVENTUAL
        assert (guard.safe() is not None) == (name == "eventual")


# --- batches that no log has any more


def commit(batch: int, end: int) -> CommitRecord:
    return CommitRecord(
        query="q", batch=batch, epoch=1, attempt=1, watermark=0, offsets=(0, 1), ends={EDGE: end},
        digests={EDGE: digest_of(((1, 1, 1),))},
    )  # fmt: skip


def test_an_image_passes_over_batches_that_it_has_taken_by_captures_and_that_are_gone():
    inbox = Inbox(EDGE, True)
    inbox.logged = True
    for batch in range(3):
        assert inbox.seal(commit(batch, 3 * batch + 3)) is None
    assert inbox.owed == (0, 2)
    assert (inbox.pass_over(2), inbox.owed) == ([], (0, 2))
    assert (inbox.pass_over(6), inbox.owed, inbox.last, inbox.next) == ([], (2, 2), 1, 6)
    inbox.hold(2, 1, 1, ((1, 1, 1),))
    assert inbox.fill(()) == [batch_block(6, ((1, 1, 1),), 0, 2)]

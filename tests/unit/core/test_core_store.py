"""The stable store in the core: what counts as stored, how a shard starts from there, and what it looks up."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from support.core import CONFIG, ONE, copy_of, feed, fill, op, place, record, run
from test_core_gate import FIRST, hear, node, refused

from holdfast.core.host import Host
from holdfast.core.load import LoadView
from holdfast.core.placement import Reports, plan
from holdfast.core.protect import Paged
from holdfast.core.ready import Done, LoadBatches, LoadCheckpoint, PutCheckpoint, Ready
from holdfast.core.roles import Condition
from holdfast.core.tickets import Tickets
from holdfast.errors import ConfigError, InputError, MemoryLimitError, WrongMessageError
from holdfast.logs.inbox import Inbox
from holdfast.model import messages as m
from holdfast.model import notes
from holdfast.model.block import Rows, batch_length, digest_of
from holdfast.model.config import MS, SECOND
from holdfast.model.parts import CommitRecord, HeldBatch, LoggedBatch
from holdfast.model.protection import Protection
from holdfast.model.record import Record
from holdfast.sim.costs import Costs
from holdfast.sim.operators import Meter, WindowSum

EDGE = "s0>u0"
STORED = Protection(checkpoint="paged", checkpoint_ns=100 * MS)
LIMIT_NS = 5 * SECOND


def paged(made, now_ns: int = 0) -> tuple[Paged, Tickets]:
    tickets = Tickets(LIMIT_NS)
    guard = Paged(made, place(), tickets, now_ns)
    guard.protection = STORED
    return guard, tickets


def put(guard: Paged, now_ns: int = 100 * MS) -> PutCheckpoint:
    ready = Ready()
    guard.take(now_ns, ready)
    (effect,) = ready.apply
    assert isinstance(effect, PutCheckpoint)
    return effect


# --- the guard


def test_a_checkpoint_is_due_after_its_interval_if_something_was_consumed_and_none_is_under_way():
    made = copy_of()
    guard, _ = paged(made)
    assert not guard.due(10_000 * MS, frozen=False)
    fill(made, [1])
    assert not guard.due(99 * MS, frozen=False)
    assert guard.due(100 * MS, frozen=False)
    put(guard)
    assert not guard.due(10_000 * MS, frozen=False)
    guard.protection = Protection()
    assert guard.safe() is None


def test_a_state_that_cannot_be_marked_now_is_told_and_tried_again_after_the_interval(monkeypatch):
    """At the limit of its memory: that once ended the node."""
    made = copy_of()
    guard, tickets = paged(made)
    fill(made, [1])

    def full(self: WindowSum) -> object:
        raise MemoryLimitError("u0: no page is left")

    monkeypatch.setattr(WindowSum, "image", full)
    ready = Ready()
    guard.take(100 * MS, ready)
    assert (ready.apply, len(tickets)) == ([], 0)
    assert [note.word for note in ready.notes] == ["store-refused"]
    assert not guard.due(199 * MS, frozen=False)
    assert guard.due(200 * MS, frozen=False)


def test_what_was_consumed_is_safe_when_the_store_has_it_and_not_before():
    made = copy_of()
    guard, tickets = paged(made)
    fill(made, [1])
    effect = put(guard)
    fill(made, [2], 1)
    assert guard.safe() == {EDGE: 0}
    ready = Ready()
    tickets.on_done(Done(ticket=effect.ticket, ok=True), 0, ready)
    assert guard.safe() == {EDGE: 3} == effect.head.to
    assert ready.notes == [notes.Stored("u0", 1, ((EDGE, 3),))]


def test_a_store_that_refuses_is_told_of_once_and_tried_again_after_the_interval():
    made = copy_of()
    guard, tickets = paged(made)
    fill(made, [1])
    ready = Ready()
    for now_ns in (100 * MS, 300 * MS):
        assert guard.due(now_ns, frozen=False)
        tickets.on_done(Done(ticket=put(guard, now_ns).ticket, ok=False, why="full"), now_ns, ready)
    assert ready.notes == [notes.StoreRefused("u0", 1, "full")]
    assert guard.safe() == {EDGE: 0}
    put(guard, 500 * MS)
    tickets.on_tick(500 * MS, ready)
    tickets.on_tick(500 * MS + LIMIT_NS, ready)
    assert (guard.ticket, len(tickets)) == (0, 0)


def test_the_head_names_the_last_batch_that_was_consumed_and_the_output_that_nobody_has():
    made = copy_of()
    fill(made, [1], 0, time=1, watermark=20)
    feed(made, EDGE, 3, [(2, 21, 1)], 30, 1)  # sealed, and not consumed
    made.inboxes[EDGE].last = 1
    head = made.checkpoint_head()
    assert (head.to, head.batches) == ({EDGE: 3}, {EDGE: 0})
    assert [len(block.rows) for block in head.outputs["u0.0"].blocks] == [1]


def test_bad_settings_are_refused():
    with pytest.raises(ConfigError, match="unknown checkpoint"):
        Protection(checkpoint="often")
    with pytest.raises(ConfigError, match="between 10 ms and an hour"):
        Protection(checkpoint_ns=1)


# --- batches out of the log


def commit_of(batch: int, rows: Rows, end: int, attempt: int = 1) -> CommitRecord:
    return CommitRecord(
        query="q", batch=batch, epoch=1, attempt=attempt, watermark=0, offsets=(batch, batch + 1),
        digests={EDGE: digest_of(rows)}, ends={EDGE: end},
    )  # fmt: skip


def history(count: int) -> list[tuple[CommitRecord, LoggedBatch]]:
    """Batches as they were handed over, each second one at the second try."""
    made, end, last = [], 0, None
    for batch in range(count):
        rows, attempt = ((batch, 1, 1),), 1 + batch % 2
        end += batch_length(1)
        commit = commit_of(batch, rows, end, attempt)
        made.append((commit, LoggedBatch(HeldBatch(batch, 1, attempt, rows, digest_of(rows)), last)))
        last = commit
    return made


def test_a_copy_that_never_got_some_batches_seals_them_out_of_the_log():
    past = history(5)
    inbox = Inbox(EDGE, based=True)
    inbox.logged = True
    assert inbox.seal(past[4][0]) is None
    assert inbox.owed == (0, 4)
    other = LoggedBatch(HeldBatch(1, 1, 1, ((9, 9, 9),), digest_of(((9, 9, 9),))), past[0][0])
    found = (*(logged for _, logged in past[:4]), other)
    assert [block.batch for block in inbox.fill(found)] == [0, 1, 2]  # the commit of 3 comes with batch 4
    assert inbox.owed == (3, 4)
    assert [block.rows for block in inbox.fill((past[3][1], past[4][1]))] == [((3, 1, 1),), ((4, 1, 1),)]
    assert (inbox.owed, inbox.commits, inbox.next) == (None, {}, past[4][0].ends[EDGE])


def test_without_a_log_a_missing_batch_is_refused():
    inbox = Inbox(EDGE, based=True)
    with pytest.raises(WrongMessageError, match="a batch is missing"):
        inbox.seal(history(2)[1][0])


# --- restoring


def stored_record(version: int, shard, protection: Protection = STORED) -> Record:
    return replace(record(version, shard), protection={"u0": protection})


def restoring(factory=op) -> tuple[Host, LoadCheckpoint]:
    made, ready = Host("a#2", ONE, CONFIG, factory), Ready()
    made.on_record(stored_record(5, place(since=5, primary="a#2", backup=None, epoch=3, restored=3)), 0, ready)
    (effect,) = ready.apply
    assert isinstance(effect, LoadCheckpoint)
    return made, effect


def checkpoint():
    """Of a copy that has consumed one batch, whose window is open."""
    made = copy_of()
    fill(made, [1, 2])
    made.inboxes[EDGE].last = 0
    return made.checkpoint_head(), made.op.image()


def test_a_shard_runs_from_its_checkpoint_and_looks_up_what_came_after_it():
    host, effect = restoring()
    assert (host.copies["u0"].condition, host.runners) == (Condition.RESTORING, {})
    head, image = checkpoint()
    ready = Ready()
    host.on_done(Done(ticket=effect.ticket, ok=True, head=head, image=image), 0, ready)
    runner = host.runners["u0"]
    assert (runner.epoch, runner.copy.positions()) == (3, head.to)
    rows = ((1, 5, 1),)
    commit = commit_of(1, rows, head.to[EDGE] + batch_length(1))
    runner.copy.seal(EDGE, commit)
    host.lookups.look(runner.copy, ready)
    asked = ready.apply[-1]
    assert (asked.edge, asked.first, asked.last) == (EDGE, 1, 1)
    assert isinstance(asked, LoadBatches)
    logged = LoggedBatch(HeldBatch(1, 1, 1, rows, digest_of(rows)), None)
    host.on_done(Done(ticket=asked.ticket, ok=True, batches=(logged,)), 0, ready)
    assert runner.copy.positions() == commit.ends
    assert run(runner.copy) == []


def test_what_a_stage_said_while_a_shard_was_restored_counts_when_it_runs():
    """It may have been the stage's last word, and an empty consumer waits to hear how far the shard before this came.
    (Seed 18 of the swarm, with operators of which nothing is kept.)"""
    host, effect = restoring()
    head, image = checkpoint()
    commit = replace(commit_of(1, (), head.to[EDGE] + batch_length(0)), highest=70)
    host.restores.hear("u0", EDGE, None)
    host.restores.hear("u0", EDGE, commit)
    host.restores.hear("u0", EDGE, None)
    host.on_done(Done(ticket=effect.ticket, ok=False, why="away"), 0, Ready())
    again = Ready()
    host.on_tick(CONFIG.spill_retry_ns, again)
    (effect,) = [x for x in again.apply if isinstance(x, LoadCheckpoint)]
    host.on_done(Done(ticket=effect.ticket, ok=True, head=head, image=image), CONFIG.spill_retry_ns, Ready())
    assert host.runners["u0"].bounds == {EDGE: 71}
    assert not host.restores.is_under_way("u0", 3)


def test_a_store_without_a_checkpoint_starts_the_shard_at_the_beginning():
    host, effect = restoring()
    host.on_done(Done(ticket=effect.ticket, ok=True), 0, Ready())
    copy = host.runners["u0"].copy
    assert (copy.positions(), copy.inboxes[EDGE].last) == ({EDGE: 0}, -1)


class Choosy(WindowSum):
    """Its first checkpoint is of another pipeline."""

    refused = 0

    def load(self, image):
        if not Choosy.refused:
            Choosy.refused += 1
            raise InputError("of another pipeline")
        super().load(image)


def test_a_store_that_does_not_answer_or_has_nothing_usable_is_asked_again_and_told_of_once():
    Choosy.refused = 0
    host, effect = restoring(lambda spec: Choosy(spec, 10, Costs(), Meter()))
    head, image = checkpoint()
    ready = Ready()
    host.on_done(Done(ticket=effect.ticket, ok=False, why="away"), 0, ready)
    again = Ready()
    host.on_tick(CONFIG.spill_retry_ns, again)
    (effect,) = [x for x in again.apply if isinstance(x, LoadCheckpoint)]
    host.on_done(Done(ticket=effect.ticket, ok=True, head=head, image=image), CONFIG.spill_retry_ns, ready)
    assert host.copies["u0"].condition is Condition.RESTORING
    again = Ready()
    host.on_tick(2 * CONFIG.spill_retry_ns, again)
    (effect,) = [x for x in again.apply if isinstance(x, LoadCheckpoint)]
    host.on_done(Done(ticket=effect.ticket, ok=True, head=head, image=image), 0, ready)
    assert host.runners["u0"].copy.positions() == head.to
    assert [note.why for note in ready.notes if isinstance(note, notes.RestoreFailed)] == ["away"]


def test_a_batch_that_is_not_in_the_log_is_told_of_once_and_asked_for_again():
    host, effect = restoring()
    ready = Ready()
    host.on_done(Done(ticket=effect.ticket, ok=True), 0, ready)
    copy = host.runners["u0"].copy
    copy.seal(EDGE, history(2)[1][0])
    for turn in range(3):
        now_ns = turn * CONFIG.spill_retry_ns
        again = Ready()
        host.lookups.on_tick([copy], now_ns, again)
        (asked,) = again.apply
        host.on_done(Done(ticket=asked.ticket, ok=True), now_ns, ready)
    assert sum(isinstance(note, notes.LookupFailed) for note in ready.notes) == 1


# --- the record


def test_a_stored_shard_goes_to_another_node_when_its_last_holder_is_gone_and_to_its_backup_while_there_is_one():
    before = stored_record(5, place(since=5, backup=None, epoch=2))
    reports = Reports()
    reports.suspects["a"] = 1
    made = plan(before, reports, LoadView(), CONFIG)
    after = made.places["u0"]
    assert (after.primary, after.epoch, after.restored) in (("b#1", 3, 3), ("c#1", 3, 3))
    made = plan(stored_record(5, place(since=5, epoch=2)), reports, LoadView(), CONFIG)
    assert (made.places["u0"].primary, made.places["u0"].restored) == ("b#1", 0)
    lost = plan(record(5, place(since=5, backup=None, epoch=2)), reports, LoadView(), CONFIG)
    assert lost.places["u0"].primary == "a#1"


def test_without_a_store_nothing_can_be_kept_in_one():
    made = node()
    message = m.SetProtection(operator="u0", protection=STORED)
    assert refused(hear(made, "operator", message))
    changed = replace(FIRST, version=2, protection={**FIRST.protection, "u0": STORED})
    assert refused(hear(made, "n1", m.Push(record=changed)))

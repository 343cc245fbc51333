"""Planted bugs in the hand-over from stages: deliveries, commits, seals, and the two disks of a ledger."""

from __future__ import annotations

import msgspec
from mutants import Patch, mutant, unfenced

from holdfast.core import hand_over, ledger, stage
from holdfast.core.copy import Copy
from holdfast.logs.inbox import Inbox
from holdfast.model.block import batch_block, digest_of
from holdfast.model.message import FencedBy
from holdfast.model.messages import Deliver, LedgerWrite, Seal
from holdfast.model.parts import HeldBatch


@mutant
def seal_counted_twice() -> list[Patch]:
    right = Inbox.seal

    def seal(self, commit):
        if self.based and commit.batch == self.last and self.sealed:
            again = self.sealed[-1]
            self.sealed.append(batch_block(self.next, again.rows, again.watermark, again.batch))
            self.next = self.sealed[-1].end
            return self.sealed[-1]
        return right(self, commit)

    return [(Inbox, "seal", seal)]


@mutant
def ledger_answers_an_opening_before_the_second_disk_has_it() -> list[Patch]:
    return [(ledger.Ledger, "in_step", lambda self: True)]


@mutant
def a_commit_counts_when_one_disk_has_it() -> list[Patch]:
    right = stage.StageDriver.unwritten

    def unwritten(self):
        return [] if self.written else right(self)

    return [(stage.StageDriver, "unwritten", unwritten)]


@mutant
def a_disk_says_that_it_has_a_commit_before_it_does() -> list[Patch]:
    right = ledger.Ledger.on_ledger_write

    def on_ledger_write(self, source, message, now_ns, ready):
        right(self, source, message, now_ns, ready)
        ready.early, ready.send = ready.send, []

    return [(ledger.Ledger, "on_ledger_write", on_ledger_write)]


@mutant
def answers_under_two_places_add_up() -> list[Patch]:
    """And a disk takes a commit under a place that is over."""

    def unwritten(self):
        return [seat for seat in self.ledger.holders if seat not in self.written]

    return [(stage.StageDriver, "unwritten", unwritten), unfenced(FencedBy.THIS_PLACE, LedgerWrite)]


@mutant
def a_disk_that_joins_takes_a_commit_without_what_came_before() -> list[Patch]:
    right = ledger.Ledger._why_not

    def why_not(self, message):
        return None if self.place and self.place.joining == self.seat else right(self, message)

    def report(self):
        return self.place.joining if self.is_primary and self.place else None

    return [(ledger.Ledger, "_why_not", why_not), (ledger.Ledger, "report", report)]


@mutant
def a_holder_holds_the_next_batch_and_forgets_the_seal_that_came_with_it() -> list[Patch]:
    """And has not got the seal itself, since the driver takes its answer for both."""
    right = hand_over.HandOver.on_deliver

    def on_deliver(self, source, message, now_ns, ready):
        right(self, source, msgspec.structs.replace(message, last=None), now_ns, ready)

    return [(hand_over.HandOver, "on_deliver", on_deliver)]


@mutant
def a_ledgers_backup_says_that_it_has_a_page_before_its_disk_does() -> list[Patch]:
    right = ledger.Ledger.on_ledger_copy

    def on_ledger_copy(self, source, message, now_ns, ready):
        right(self, source, message, now_ns, ready)
        ready.early, ready.send = ready.send, []

    return [(ledger.Ledger, "on_ledger_copy", on_ledger_copy)]


@mutant
def ledger_does_not_fence_old_drivers() -> list[Patch]:
    return [(ledger.Ledger, "_why_not", lambda self, message: None)]


@mutant
def commit_when_only_one_holder_has_the_rows() -> list[Patch]:
    right = stage.StageDriver._advance

    def advance(self, now_ns, ready, again=False):
        if self.phase is stage.Phase.DELIVERING and self.delivered:
            self.delivered = dict(self.grouped)
        right(self, now_ns, ready, again)

    return [(stage.StageDriver, "_advance", advance)]


@mutant
def commit_although_a_holder_got_other_rows() -> list[Patch]:
    right = stage.StageDriver.on_delivered

    def on_delivered(self, source, message, now_ns, ready):
        if self.commit is not None:
            message = msgspec.structs.replace(message, digests={e: self.commit.digests[e] for e in message.digests})
        right(self, source, message, now_ns, ready)

    return [(stage.StageDriver, "on_delivered", on_delivered)]


@mutant
def a_second_try_goes_only_to_the_holder_that_got_other_rows() -> list[Patch]:
    """The others keep the first one, and what they said of it counts on."""
    right = stage.StageDriver._try

    def begin(self):
        before = self.delivered
        right(self)
        if self.batch is not None and self.phase is stage.Phase.DELIVERING:
            self.delivered = before

    return [(stage.StageDriver, "_try", begin)]


@mutant
def other_rows_are_committed_and_sealed_unchecked() -> list[Patch]:
    right = Inbox.seal

    def seal(self, commit):
        held = self.held.get(commit.batch)
        if held is not None:
            digests = {**commit.digests, self.edge: held.digest}
            commit = msgspec.structs.replace(commit, epoch=held.epoch, attempt=held.attempt, digests=digests)
        return right(self, commit)

    return [*commit_although_a_holder_got_other_rows(), (Inbox, "seal", seal)]


@mutant
def a_late_try_takes_the_place_of_a_newer_one() -> list[Patch]:
    """That of a driver that was frozen, and wakes up beside its successor."""

    def hold(self, batch, epoch, attempt, rows):
        if batch <= self.last:
            return None
        self.held[batch] = HeldBatch(batch, epoch, attempt, rows, digest_of(rows))
        return digest_of(rows)

    return [(Inbox, "hold", hold), unfenced(FencedBy.EPOCH, Deliver, Seal)]


@mutant
def deliver_to_the_primary_only() -> list[Patch]:
    right = stage.StageDriver._group

    def group(self):
        right(self)
        primaries = {self.record.places[u].primary for u in self.spec.shards}
        self.grouped = {s: u for s, u in self.grouped.items() if s in primaries}

    return [(stage.StageDriver, "_group", group)]


@mutant
def backup_keeps_no_input() -> list[Patch]:
    right = Copy.seal

    def seal(self, edge, commit):
        block = right(self, edge, commit)
        if block is not None and self.pasted != (0, 0):
            self.inboxes[edge].sealed.clear()
        return block

    return [(Copy, "seal", seal)]


@mutant
def a_delivery_ignores_that_the_place_changed() -> list[Patch]:
    """And so does the answer, which says what the holder knows."""
    right = hand_over.HandOver.on_deliver

    def on_deliver(self, source, message, now_ns, ready):
        for shard in message.shards:
            if shard in self.host.copies:
                message.shards[shard] = self.host.record.places[shard].since
        right(self, source, message, now_ns, ready)

    return [unfenced(FencedBy.THESE_PLACES, Deliver), (hand_over.HandOver, "on_deliver", on_deliver)]

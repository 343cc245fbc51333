"""Planted bugs: each one breaks one rule of the core, as a careless change could. The checkers must find every one.

A mutant replaces one method for the time of a run; nothing of it is in the product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from holdfast.core import fetch, hand_over, host, ledger, placement, stage
from holdfast.core.copy import Copy
from holdfast.core.election import Election
from holdfast.core.errand import Errand
from holdfast.core.feed import Feed
from holdfast.core.node import Node
from holdfast.core.protect.images import Images
from holdfast.core.reader import Reader
from holdfast.logs.inbox import Inbox
from holdfast.logs.output_queue import OutputQueue
from holdfast.model.block import batch_block, digest_of
from holdfast.model.messages import Fetched, Joined
from holdfast.model.parts import HeldBatch
from holdfast.model.record import Record
from holdfast.sim.world import World

Patch = tuple[object, str, object]
MUTANTS: dict[str, Callable[[], list[Patch]]] = {}


def mutant(make: Callable[[], list[Patch]]) -> Callable[[], list[Patch]]:
    MUTANTS[make.__name__] = make
    return make


@contextmanager
def planted(name: str) -> Iterator[None]:
    """The bug is in, until the end of the block."""
    patches = MUTANTS[name]()
    before = [(owner, attribute, owner.__dict__[attribute]) for owner, attribute, _ in patches]
    for owner, attribute, value in patches:
        setattr(owner, attribute, value)
    try:
        yield
    finally:
        for owner, attribute, value in before:
            setattr(owner, attribute, value)


@mutant
def acknowledge_before_the_checkpoint_is_safe() -> list[Patch]:
    """When a round is taken, not when it is held."""
    right = Images.take

    def take(self, now_ns, ready):
        right(self, now_ns, ready)
        self.safe_at = self.base

    return [(Images, "take", take)]


@mutant
def no_fence_at_the_consumer() -> list[Patch]:
    right = Feed.take

    def take(self, message, source, now_ns, ready):
        self.producer_epoch = 0
        return right(self, message, source, now_ns, ready)

    return [(Feed, "take", take)]


@mutant
def trim_by_the_fastest_consumer() -> list[Patch]:
    def trim(self):
        safe = min(max(self.acks.values(), default=self.next), self.next)
        before = self.trimmed
        while self.blocks and self.blocks[0].end <= safe:
            self.trimmed = self.blocks.popleft().end
        return self.trimmed > before

    return [(OutputQueue, "_trim", trim)]


@mutant
def replay_from_the_wrong_position() -> list[Patch]:
    right = Copy.promote

    def promote(self, until_ns):
        right(self, until_ns)
        for i in self.inputs:
            if i.queue:
                i.position = i.queue.popleft().end

    return [(Copy, "promote", promote)]


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
def promotion_without_a_majority() -> list[Patch]:
    return [(Record, "majority", property(lambda self: 1))]


@mutant
def image_pasted_out_of_order() -> list[Patch]:
    """The next round does not wait for the last one, and nobody looks whether it fits."""
    due = Images.due

    def due_anyway(self, now_ns, *, frozen):
        if now_ns - self.started_ns >= self.protection.period_ns:
            self.waiting.clear()
        return due(self, now_ns, frozen=frozen)

    return [(Images, "due", due_anyway), (Copy, "fits", lambda self, capture: True)]


@mutant
def capture_without_the_unacknowledged_output() -> list[Patch]:
    right = OutputQueue.part

    def part(self, start):
        made = right(self, start)
        return type(made)(made.start, made.next, made.next, (), made.acks)

    return [(OutputQueue, "part", part)]


@mutant
def two_votes_in_one_term() -> list[Patch]:
    right = Election.on_request_vote

    def on_request_vote(self, source, message, now_ns, ready):
        self.voted_for = None
        right(self, source, message, now_ns, ready)

    return [(Election, "on_request_vote", on_request_vote)]


@mutant
def life_not_on_disk() -> list[Patch]:
    right = Node.start

    def start(self, now_ns):
        ready = right(self, now_ns)
        ready.persist = [item for item in ready.persist if item[0] != "life"]
        return ready

    return [(Node, "start", start)]


@mutant
def ledger_answers_before_the_second_holder_has_it() -> list[Patch]:
    return [(ledger.Ledger, "in_step", lambda self: True)]


@mutant
def a_ledgers_backup_says_that_it_has_a_page_before_its_disk_does() -> list[Patch]:
    right = ledger.Ledger.on_ledger_copy

    def on_ledger_copy(self, source, message, now_ns, ready):
        right(self, source, message, now_ns, ready)
        ready.early, ready.send = ready.send, []

    return [(ledger.Ledger, "on_ledger_copy", on_ledger_copy)]


@mutant
def votes_and_answers_leave_early() -> list[Patch]:
    """They speak of what this very step writes."""

    def early(name):
        right = getattr(Election, name)

        def handler(self, source, message, now_ns, ready):
            right(self, source, message, now_ns, ready)
            ready.early, ready.send = ready.send, []

        return (Election, name, handler)

    return [early("on_request_vote"), early("on_append")]


@mutant
def early_messages_leave_before_what_earlier_steps_write() -> list[Patch]:
    """Every message counts as early, and overtakes the disk."""
    right = World.do

    def do(self, process, ready):
        early, ready.early, ready.send = [*ready.early, *ready.send], [], []
        right(self, process, ready)
        if process.alive:
            self._release(process, early, [], process.busy_ns)

    return [(World, "do", do)]


@mutant
def ledger_does_not_fence_old_drivers() -> list[Patch]:
    def may_serve(self, source, epoch, batch, ready):
        return self.is_primary

    def on_ledger_write(self, source, message, now_ns, ready):
        self.page = type(self.page)(self.page.query, self.page.fence, message.commit)
        self._keep(ready)
        self.asker = (source, message.epoch)
        self.on_tick(ready)
        self._answer(ready)

    return [(ledger.Ledger, "_may_serve", may_serve), (ledger.Ledger, "on_ledger_write", on_ledger_write)]


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

    return [(Inbox, "hold", hold), (hand_over.HandOver, "_is_over", lambda self, source, message, ready: False)]


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
def input_in_the_order_of_arrival() -> list[Patch]:
    def next_input(self):
        return next((i for i in self.inputs if i.queue), self.inputs[0])

    return [(Copy, "next_input", next_input)]


@mutant
def joining_seat_is_promoted() -> list[Patch]:
    right = placement._leave

    def leave(made, name, *, gone_for_good):
        for asset, place in sorted(made.places.items()):
            if place.joining and place.primary and place.primary.startswith(name) and not place.backup:
                made.put(asset, backup=place.joining, joining=None)
        right(made, name, gone_for_good=gone_for_good)

    return [(placement, "_leave", leave)]


@mutant
def failed_shards_are_promoted_nowhere() -> list[Patch]:
    right = placement._leave

    def leave(made, name, *, gone_for_good):
        kept = {a: p for a, p in made.places.items() if p.primary and p.primary.startswith(name) and "#" in p.primary}
        right(made, name, gone_for_good=gone_for_good)
        made.places.update(kept)

    return [(placement, "_leave", leave)]


@mutant
def joined_before_the_image_is_there() -> list[Patch]:
    right = host.Host.reports

    def reports(self):
        early = [
            Joined(asset=u, since=p.place.since, seat=p.place.joining)
            for u, p in self.runners.items()
            if p.place.joining
        ]
        return right(self) + early

    return [(host.Host, "reports", reports)]


@mutant
def queue_without_a_bound() -> list[Patch]:
    return [(OutputQueue, "has_room", lambda self: True)]


@mutant
def reader_acknowledges_on_receipt() -> list[Patch]:
    right = Reader.on_data

    def on_data(self, source, message, now_ns, ready):
        right(self, source, message, now_ns, ready)
        self.feeds[message.edge].ack = self.feeds[message.edge].next

    return [(Reader, "on_data", on_data)]


@mutant
def holes_are_skipped() -> list[Patch]:
    right = Feed.take

    def take(self, message, source, now_ns, ready):
        if message.blocks and message.blocks[0].start > self.next:
            self.next = message.blocks[0].start
        return right(self, message, source, now_ns, ready)

    return [(Feed, "take", take)]


@mutant
def epoch_not_raised_on_promotion() -> list[Patch]:
    right = placement.Draft.put

    def put(self, asset, **fields):
        if "epoch" in fields and asset not in self.places:
            return
        if asset + ".ledger" not in self.places:
            fields.pop("epoch", None)
        right(self, asset, **fields)

    return [(placement.Draft, "put", put)]


@mutant
def messages_leave_before_the_disk_has_synced() -> list[Patch]:
    right = World.do

    def do(self, process, ready):
        writes, ready.persist = ready.persist, []
        right(self, process, ready)
        if writes and process.disk is not None and process.alive:
            disk, count = process.disk, len(writes)
            disk.write(writes)
            self.call(50_000_000, lambda: process.alive and disk.sync(count))

    return [(World, "do", do)]


@mutant
def a_delivery_ignores_that_the_place_changed() -> list[Patch]:
    right = hand_over.HandOver.on_deliver

    def on_deliver(self, source, message, now_ns, ready):
        for shard in message.shards:
            if shard in self.host.copies:
                message.shards[shard] = self.host.record.places[shard].since
        right(self, source, message, now_ns, ready)

    return [(hand_over.HandOver, "on_deliver", on_deliver)]


@mutant
def fetch_of_a_fenced_sink_is_served() -> list[Patch]:
    right = fetch.decide

    def decide(host, asked, now_ns):
        return right(host, msgspec.structs.replace(asked, epoch=1 << 60), now_ns)

    return [(fetch, "decide", decide)]


@mutant
def fetch_is_served_by_a_backup() -> list[Patch]:
    right = fetch.decide

    def decide(host, asked, now_ns):
        copy = host.copies.get(host.topology.producer[asked.edge])
        if copy is not None and copy.id not in host.runners:
            queue = next(q for q in copy.outputs if q.edge == asked.edge)
            blocks = queue.between(asked.start, asked.end)
            epoch = host.record.places[copy.id].epoch
            if blocks:
                return Fetched(ticket=asked.ticket, edge=asked.edge, epoch=epoch, blocks=blocks)
        return right(host, asked, now_ns)

    return [(fetch, "decide", decide)]


@mutant
def fetch_gives_a_block_more_than_was_asked_for() -> list[Patch]:
    right = OutputQueue.between

    def between(self, start, end):
        found = right(self, start, end)
        return found and (*found, *(b for b in self.blocks if b.start == end))

    return [(OutputQueue, "between", between)]


@mutant
def fetch_begins_a_block_too_early() -> list[Patch]:
    right = OutputQueue.between

    def between(self, start, end):
        found = right(self, start, end)
        return found and (*(b for b in self.blocks if b.end == start), *found)

    return [(OutputQueue, "between", between)]


@mutant
def fetch_gives_what_there_is_and_does_not_wait() -> list[Patch]:
    right = fetch.decide

    def decide(host, asked, now_ns):
        found = right(host, asked, now_ns)
        if found is None:
            return right(host, msgspec.structs.replace(asked, end=max(asked.start, queue_end(host, asked))), now_ns)
        return found

    def queue_end(host, asked):
        return host.runners[host.topology.producer[asked.edge]].outlet.queue(asked.edge).next

    return [(fetch, "decide", decide)]


@mutant
def fetch_does_not_renew_the_lease() -> list[Patch]:
    return [(host.Host, "renew_leases", lambda self, consumer, now_ns: None)]


@mutant
def task_never_turns_to_the_new_primary() -> list[Patch]:
    return [(Errand, "learn", lambda self, record: None)]

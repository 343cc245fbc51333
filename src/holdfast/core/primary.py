"""A shard at work: it steps its copy, streams what it makes, takes captures and acknowledges what they cover.

Input is acknowledged only when a round of captures is complete on every target that the placement names. With no
target at all (no second node exists) the shard runs degraded: there is no other copy that an acknowledgement could
harm, so it acknowledges what it has consumed.
"""

from __future__ import annotations

from holdfast.core.checkpoint import Method, Rounds
from holdfast.core.copy import Copy
from holdfast.core.feed import Feed, Tap
from holdfast.core.ready import Ready, Spill
from holdfast.errors import check
from holdfast.logs.output_queue import OutputQueue
from holdfast.model import notes
from holdfast.model.config import Config
from holdfast.model.ids import Address, Asset, Consumer, Edge, Seat
from holdfast.model.messages import Barred, Data, Pasted, Subscribe, Trimmed
from holdfast.model.reasons import BarReason
from holdfast.model.record import Place, Record
from holdfast.model.topology import Topology


def spill(copy: Copy, ready: Ready) -> None:
    """Say what of a copy's output is on disk: also, once, that nothing is any more, so that its files can go."""
    for queue in copy.outputs:
        if queue.spilled_to:
            ready.apply.append(Spill(edge=queue.edge, trimmed=queue.trimmed, to=queue.spilled_to))
            if not queue.spilled:
                queue.spilled_to = 0


class Primary:
    __slots__ = (
        "config", "copy", "epoch", "feeds", "frozen", "method", "place", "producers", "rounds",
        "said", "taps", "topology",
    )  # fmt: skip

    def __init__(
        self, copy: Copy, place: Place, topology: Topology, config: Config, method: Method, now_ns: int
    ) -> None:
        self.copy = copy
        self.place = place
        self.epoch = place.epoch
        self.topology = topology
        self.config = config
        self.method = method
        #: True while it hands over (drain): it serves, but consumes nothing.
        self.frozen = False
        self.rounds = Rounds(copy, place.epoch, now_ns)
        self.feeds: dict[Edge, Feed] = {
            i.edge: Feed(i.edge, copy.id, place.epoch, i.position, config.credit_max)
            for i in copy.inputs
            if i.inbox is None
        }
        #: Where each producer sits, as this shard last turned to it.
        self.producers: dict[Edge, Seat | None] = {}
        self.taps: dict[tuple[Edge, Consumer], Tap] = {}
        #: It was said that the shard stands still.
        self.said = False

    @property
    def id(self) -> Asset:
        return self.copy.id

    # --- placement

    def on_place(self, place: Place, now_ns: int, ready: Ready) -> None:
        self.place = place
        self.frozen = place.moving
        self.rounds.retarget(place.targets, place.joining, place.since)
        self.protect(now_ns, ready)
        self.pump(now_ns, ready)

    def on_record(self, record: Record, now_ns: int, ready: Ready) -> None:
        """Turn to producers that have moved (at the start: to all)."""
        for edge, feed in self.feeds.items():
            place = record.places[self.topology.producer[edge]]
            feed.producer_epoch = max(feed.producer_epoch, place.epoch)
            if edge not in self.producers or self.producers[edge] != place.primary:
                self.producers[edge] = place.primary
                feed.subscribe(place.primary, now_ns, ready)

    # --- data

    def on_data(self, message: Data, source: Address, now_ns: int, ready: Ready) -> None:
        feed = self.feeds.get(message.edge)
        if feed is None:
            return
        blocks = feed.take(message, source, now_ns, ready)
        if blocks:
            self.copy.input(message.edge).queue.extend(blocks)
            self.pump(now_ns, ready)

    def pump(self, now_ns: int, ready: Ready) -> None:
        """Consume all there is, in order; stream what it made."""
        if self.frozen:
            return
        made = False
        while (blocks := self.copy.step()) is not None:
            for queue, block in blocks:
                made = True
                ready.notes.append(notes.Emitted(self.id, queue.edge, self.epoch, block))
        if self.copy.failed and not self.said:
            self.said = True
            ready.notes.append(notes.Failed(self.id, self.epoch, self.copy.failed))
        if made:
            for (edge, consumer), tap in list(self.taps.items()):
                self._flush(edge, consumer, tap, ready)
            spill(self.copy, ready)
        if not self.rounds.waiting and self.copy.consumed_since >= self.config.retained_soft_max:
            self.protect(now_ns, ready)
        if not self.place.targets:
            self._acknowledge(self.copy.positions(), None, now_ns, ready)

    def queue(self, edge: Edge) -> OutputQueue:
        return next(q for q in self.copy.outputs if q.edge == edge)

    def _flush(self, edge: Edge, consumer: Consumer, tap: Tap, ready: Ready) -> bool:
        """Stream to a consumer; false: it cannot be, and was told. A reader's positions come from outside, from a
        checkpoint of who knows what, and must not end a node: it would go on to the next. A shard's are our own. (One
        that is ahead may be right: a new primary makes everything again. It shows when the queue gets there.)"""
        queue = self.queue(edge)
        if tap.flush(queue, self.epoch, ready):
            return True
        check(
            consumer not in self.topology.shard, "a position points into a block", f"{edge}: {tap.cursor}, {consumer}"
        )
        del self.taps[edge, consumer]
        self._bar(tap.address, edge, consumer, tap.epoch, BarReason.POSITION, ready)
        return False

    def _bar(self, source: Address, edge: Edge, consumer: Consumer, epoch: int, why: BarReason, ready: Ready) -> None:
        ready.notes.append(notes.Barred(self.id, edge, consumer, why))
        ready.send.append((source, Barred(edge=edge, epoch=epoch, why=why)))

    def on_subscribe(self, source: Address, message: Subscribe, fence: int, now_ns: int, ready: Ready) -> None:
        """A consumer asks. `fence` is the consumer's epoch as the record has it."""
        if message.query not in ("", self.topology.query):
            self._bar(source, message.edge, message.consumer, message.epoch, BarReason.FOREIGN, ready)
            return
        queue = self.queue(message.edge)
        tap = self.taps.setdefault((message.edge, message.consumer), Tap())
        if message.epoch < max(tap.epoch, fence):
            newest = max(tap.epoch, fence)
            ready.notes.append(notes.Fenced(self.id, message.edge, message.consumer, message.epoch, newest))
            if message.consumer not in queue.owners:  # of two programs with one name: else it would ask on for ever
                self._bar(source, message.edge, message.consumer, message.epoch, BarReason.FENCED, ready)
            return
        if message.at < queue.trimmed:
            if message.consumer in self.topology.shard:
                return  # overtaken by what the same consumer has acknowledged since
            ready.notes.append(notes.Gone(self.id, message.edge, message.consumer, message.at, queue.trimmed))
            ready.send.append((source, Trimmed(edge=message.edge, epoch=self.epoch, first=queue.trimmed)))
            return
        tap.point(source, message, self.config.credit_max)
        if not self._flush(message.edge, message.consumer, tap, ready):
            return  # before it holds or acknowledges anything
        if message.consumer not in queue.owners:
            queue.lease(message.consumer, now_ns + self.config.lease_ns)
        freed = queue.ack(message.consumer, message.ack)
        if freed:
            ready.notes.append(notes.Trimmed(self.id, message.edge, queue.trimmed))
            spill(self.copy, ready)
            self.pump(now_ns, ready)  # there may be room again

    def on_left(self, edge: Edge, consumer: Consumer, now_ns: int, ready: Ready) -> None:
        """A reader lets go of its lease. One that goes on asking has a new one, from where the edge starts then."""
        queue = self.queue(edge)
        if not queue.leave(consumer):
            return
        self.taps.pop((edge, consumer), None)
        ready.notes.append(notes.Left(self.id, edge, consumer, queue.trimmed))
        spill(self.copy, ready)
        self.pump(now_ns, ready)  # there may be room again

    # --- protection

    def protect(self, now_ns: int, ready: Ready) -> None:
        """Begin a round if one is due, and none is in flight."""
        rounds = self.rounds
        if rounds.waiting or not self.place.targets or self.copy.op.torn:
            return
        due = (
            bool(rounds.wants_whole)
            or rounds.safe != rounds.base  # the last round lost a target before it was complete
            or (self.frozen and self.copy.consumed_since > 0)
            or self.method.due(self.copy, now_ns - rounds.started_ns, self.config)
        )
        if not due:
            return
        for seat, capture in rounds.begin(self.copy, self.place.targets, self.method, now_ns).items():
            ready.notes.append(notes.Captured(self.id, self.epoch, rounds.number, capture.whole, seat))
            ready.send.append((seat, capture))

    def on_pasted(self, seat: Seat, message: Pasted, now_ns: int, ready: Ready) -> None:
        if message.epoch != self.epoch:
            return
        if self.rounds.on_pasted(seat, message.round, message.fits):
            self._acknowledge(self.rounds.complete(), message.round, now_ns, ready)
        self.protect(now_ns, ready)

    def _acknowledge(self, positions: dict[Edge, int], number: int | None, now_ns: int, ready: Ready) -> None:
        """Tell producers what is safe. `number` is the round that made it so; None: degraded."""
        for edge, feed in self.feeds.items():
            if positions[edge] > feed.ack:
                feed.ack = positions[edge]
                ready.notes.append(notes.Acked(self.id, edge, feed.ack, self.epoch, number))
                feed.subscribe(self.producers.get(edge), now_ns, ready)

    def on_tick(self, now_ns: int, ready: Ready) -> None:
        """Send again what was not answered, let leases lapse, capture if it is time."""
        retry_ns = self.config.retry_ns
        if self.rounds.waiting and now_ns - self.rounds.sent_ns >= 2 * retry_ns:
            self.rounds.sent_ns = now_ns
            ready.send.extend(self.rounds.waiting.items())
        for edge, feed in self.feeds.items():
            if now_ns - feed.heard_ns >= 3 * retry_ns:
                feed.subscribe(self.producers.get(edge), now_ns, ready)
        for queue in self.copy.outputs:
            for consumer in queue.lapse(now_ns):
                self.taps.pop((queue.edge, consumer), None)
                ready.notes.append(notes.Lapsed(self.id, queue.edge, consumer, queue.trimmed))
                spill(self.copy, ready)
        self.protect(now_ns, ready)
        self.pump(now_ns, ready)

    def has_yielded(self) -> bool:
        """Frozen, and the backup stands where this primary stands."""
        rounds = self.rounds
        quiet = self.frozen and not rounds.waiting and not rounds.wants_whole
        return quiet and self.place.backup is not None and rounds.safe == self.copy.positions()

"""What leaves a running shard: its output queues, streamed to every consumer that asks.

A consumer is a shard, a sink of the pipeline or a guest with a lease. A shard may have several running copies, each of
which has a tap of its own; what is trimmed follows its primary, which acknowledges for all of them.
"""

from __future__ import annotations

from holdfast.core.copy import Copy
from holdfast.core.feed import Tap
from holdfast.core.ready import Ready
from holdfast.core.spills import Spills
from holdfast.logs.output_queue import OutputQueue
from holdfast.model import notes
from holdfast.model.config import Config
from holdfast.model.ids import Address, Asset, Consumer, Edge, Seat
from holdfast.model.messages import Barred, Here, Subscribe, Trimmed
from holdfast.model.reasons import BarReason
from holdfast.model.record import Record
from holdfast.model.topology import Topology


class Outlet:
    __slots__ = ("bound", "config", "copy", "epoch", "is_primary", "spills", "taps", "topology")

    def __init__(
        self, copy: Copy, epoch: int, topology: Topology, config: Config, spills: Spills, *, is_primary: bool
    ) -> None:
        self.copy = copy
        self.epoch = epoch
        self.topology = topology
        self.config = config
        self.spills = spills
        #: Only the primary says that something is gone: its twin may have let go of it earlier.
        self.is_primary = is_primary
        self.taps: dict[tuple[Edge, Consumer, Seat], Tap] = {}
        #: Earlier copies of this shard have consumed nothing from this event time on that this one has not.
        self.bound = 0

    @property
    def id(self) -> Asset:
        return self.copy.id

    def queue(self, edge: Edge) -> OutputQueue:
        return next(q for q in self.copy.outputs if q.edge == edge)

    def on_record(self, record: Record) -> None:
        """Which copy of each consuming shard acknowledges: its primary, for all copies of it."""
        for queue in self.copy.outputs:
            for consumer in queue.owners:
                place = record.place_of(consumer)
                if place is not None and consumer in self.topology.shard:
                    queue.count(consumer, (place.primary,) if place.primary else ())

    def flush(self, ready: Ready) -> None:
        """Stream what was made to everybody who may have it."""
        for (edge, consumer, seat), tap in list(self.taps.items()):
            self._flush(edge, consumer, seat, tap, ready)
        self.spills.look(self.copy, ready)

    def _flush(self, edge: Edge, consumer: Consumer, seat: Seat, tap: Tap, ready: Ready) -> bool:
        """Stream to a consumer; false: it cannot be, and was told. Positions come from outside, a reader's from a
        checkpoint of who knows what, and must not end a node: the asker would go on to the next. (One that is ahead may
        be right: a new primary makes everything again. It shows when the queue gets there.)"""
        queue = self.queue(edge)
        if tap.flush(queue, self.epoch, ready):
            return True
        del self.taps[edge, consumer, seat]
        self._bar(tap.address, edge, consumer, tap.epoch, BarReason.POSITION, ready)
        return False

    def _bar(self, source: Address, edge: Edge, consumer: Consumer, epoch: int, why: BarReason, ready: Ready) -> None:
        if not self.is_primary:
            return
        ready.notes.append(notes.Barred(self.id, edge, consumer, why))
        if consumer not in self.topology.shard:  # those are told of here, and ask again
            ready.send.append((source, Barred(edge=edge, epoch=epoch, why=why)))

    def refuse(self, source: Address, message: Subscribe, newest: int, ready: Ready) -> None:
        """A later driver or program reads under this name."""
        edge, consumer = message.edge, message.consumer
        ready.notes.append(notes.Fenced(self.id, edge, consumer, message.epoch, newest))
        if consumer not in self.queue(edge).owners:  # of two programs with one name: else it would go on asking
            self._bar(source, edge, consumer, message.epoch, BarReason.FENCED, ready)

    def on_subscribe(self, source: Address, message: Subscribe, now_ns: int, ready: Ready) -> bool:
        """A consumer asks; true if that made room. A guest is in no record: what fences it are the taps of its name,
        which go when it leaves."""
        edge, consumer, seat = message.edge, message.consumer, message.seat
        if message.query not in ("", self.topology.query):
            self._bar(source, edge, consumer, message.epoch, BarReason.FOREIGN, ready)
            return False
        queue = self.queue(edge)
        known = (tap.epoch for key, tap in self.taps.items() if key[:2] == (edge, consumer))
        newest = max(known, default=0)
        if message.epoch < newest:
            self.refuse(source, message, newest, ready)
            return False
        if message.inactive:
            if (edge, consumer, seat) in self.taps:
                self.taps[edge, consumer, seat].rest()
            return False
        if message.paused:
            self._say_where(source, message, queue, ready)
            return False
        if message.at < queue.trimmed and queue.landed < 0 and not self.copy.landing:
            if consumer in self.topology.shard:  # overtaken by what it has acknowledged since; never left unanswered
                ready.send.append((source, Here(edge=edge, epoch=self.epoch, consumer=consumer, first=queue.trimmed)))
                return False
            if not self.is_primary:
                return False
            ready.notes.append(notes.Gone(self.id, edge, consumer, message.at, queue.trimmed))
            ready.send.append((source, Trimmed(edge=edge, epoch=self.epoch, first=queue.trimmed)))
            return False
        self._forget_older(edge, consumer, message.epoch)
        tap = self.taps.setdefault((edge, consumer, seat), Tap())
        tap.point(source, message, self.config.credit_max)
        if not self._flush(edge, consumer, seat, tap, ready):
            return False  # before it holds or acknowledges anything
        if consumer not in queue.owners:
            queue.lease(consumer, now_ns + self.config.lease_ns)
        if not queue.ack(consumer, message.ack, seat):
            return False
        ready.notes.append(notes.Trimmed(self.id, edge, queue.trimmed))
        self.spills.look(self.copy, ready)
        return True

    def _say_where(self, source: Address, message: Subscribe, queue: OutputQueue, ready: Ready) -> None:
        """From where a consumer could go on; whoever ran it before gets nothing that is made after this was said."""
        self._forget_older(message.edge, message.consumer, message.epoch)
        tap = self.taps.setdefault((message.edge, message.consumer, message.seat), Tap())
        tap.epoch = max(tap.epoch, message.epoch)
        here = Here(
            edge=message.edge,
            epoch=self.epoch,
            consumer=message.consumer,
            first=max(queue.acks.get(message.consumer, 0), queue.trimmed),
            next=queue.next,
            watermark=self.copy.promised,
            to=self.copy.reach(self.bound),
        )
        ready.send.append((source, here))

    def has_passed(self, edge: Edge, consumer: Consumer, position: int) -> bool | None:
        """Has this consumer said that it stands behind this position? None: it does not follow this edge."""
        found = [tap.asked for key, tap in self.taps.items() if key[:2] == (edge, consumer)]
        return any(at > position for at in found) if found else None

    def stands(self, edge: Edge, consumer: Consumer) -> int | None:
        """How far this consumer says that it has read, or planned to; None: it has not, at this epoch of the shard."""
        known = (tap.stands for key, tap in self.taps.items() if key[:2] == (edge, consumer) and tap.address)
        return max(known, default=None)

    def _forget_older(self, edge: Edge, consumer: Consumer, epoch: int) -> None:
        """A consumer in a new epoch: whoever ran it before gets nothing more."""
        for key in [k for k, tap in self.taps.items() if k[:2] == (edge, consumer) and tap.epoch < epoch]:
            del self.taps[key]

    def on_left(self, edge: Edge, consumer: Consumer, ready: Ready) -> bool:
        """A reader lets go of its lease; true if it had one. If it asks on, it gets a new one."""
        queue = self.queue(edge)
        if not queue.leave(consumer):
            return False
        self._drop(edge, consumer)
        ready.notes.append(notes.Left(self.id, edge, consumer, queue.trimmed))
        self.spills.look(self.copy, ready)
        return True

    def on_tick(self, now_ns: int, ready: Ready) -> None:
        """Let leases lapse."""
        for queue in self.copy.outputs:
            for consumer in queue.lapse(now_ns):
                self._drop(queue.edge, consumer)
                ready.notes.append(notes.Lapsed(self.id, queue.edge, consumer, queue.trimmed))
                self.spills.look(self.copy, ready)

    def _drop(self, edge: Edge, consumer: Consumer) -> None:
        for key in [k for k in self.taps if k[:2] == (edge, consumer)]:
            del self.taps[key]

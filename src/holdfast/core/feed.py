"""Both ends of the stream along one edge: the consumer's `Feed` and the producer's `Tap`.

A consumer subscribes from a position and the producer streams, so a reconnect needs no duplicate filter and a hole
is noticed at once. One message does it all: where to stream from, what is safe, that the consumer still lives.
Everything may be lost, doubled or reordered on the way; positions make it good again.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.core.ready import Ready
from holdfast.logs.output_queue import OutputQueue
from holdfast.model import notes
from holdfast.model.block import Block
from holdfast.model.ids import NO_SEAT, Address, Consumer, Edge, Seat
from holdfast.model.messages import Data, Here, Subscribe
from holdfast.model.record import Place


class Feed:
    """A consumer's end. `next` is the position it wants; `ack` what it no longer needs, whatever happens."""

    __slots__ = (
        "ack",
        "asked",
        "bare",
        "both",
        "consumer",
        "credit_max",
        "edge",
        "epoch",
        "heard_ns",
        "looked_ns",
        "makers",
        "next",
        "paused",
        "planned",
        "query",
        "said",
        "seat",
        "waited_ns",
    )

    def __init__(
        self,
        edge: Edge,
        consumer: Consumer,
        epoch: int,
        at: int,
        credit_max: int,
        *,
        bare: bool = False,
        query: str = "",
        seat: Seat = NO_SEAT,
        paused: bool = False,
    ) -> None:
        self.edge = edge
        self.consumer = consumer
        self.epoch = epoch
        self.next = at
        self.ack = at
        self.asked = at
        self.credit_max = credit_max
        self.bare = bare
        self.query = query
        #: Which copy of a consuming shard this is; "" for a reader.
        self.seat = seat
        self.heard_ns = self.looked_ns = 0
        #: Until when it was patient last.
        self.waited_ns = -1
        #: This consumer starts empty, and does not know from where: it asks for that, and for nothing else.
        self.paused = paused
        #: How far an earlier life of this reader had planned.
        self.planned = 0
        #: Where somebody runs beside the producer, or may: both. They are asked for the same (early connection).
        self.both: tuple[Seat, ...] = ()
        #: Those of them that run all the time.
        self.makers: tuple[Seat, ...] = ()
        #: What each of them has said about where this consumer could go on.
        self.said: dict[Address, Here] = {}

    def turn(self, place: Place) -> None:
        """The producer is where this place says."""
        self.both = (place.primary, place.beside) if place.primary and place.beside else ()
        if self.makers != place.running:
            self.makers, self.said = place.running, {}

    def of_all(self, source: Address, message: Here) -> Here | None:
        """Of a producer that runs on two nodes each may have sent more than the other: all have to say how much."""
        if len(self.makers) < 2:
            return message
        self.said[source] = message
        said = [self.said[seat] for seat in self.makers if seat in self.said]
        if len(said) < len(self.makers):
            return None
        furthest = max(said, key=lambda here: here.next)
        first, to = max(here.first for here in said), max(here.to for here in said)
        return msgspec.structs.replace(furthest, first=first, to=to)

    def start(self, at: int) -> None:
        """An empty start: this is where the edge goes on."""
        self.next, self.paused = at, False

    def subscribe(self, producer: Address | None, now_ns: int, ready: Ready, *, paused: bool = False) -> None:
        self.heard_ns = now_ns
        self.asked = self.next
        if producer is not None:
            message = Subscribe(
                edge=self.edge,
                consumer=self.consumer,
                epoch=self.epoch,
                at=self.next,
                ack=self.ack,
                bare=self.bare,
                query=self.query,
                seat=self.seat,
                paused=paused or self.paused,
                planned=self.planned,
            )
            ready.send.extend((target, message) for target in dict.fromkeys((producer, *self.both)))

    def is_silent(self, now_ns: int, retry_ns: int, *, patient: bool = False) -> bool:
        """Has nothing come for a while, so that it asks again? Whoever stood still itself and is `patient` reads first
        what has come meanwhile: asked again, a producer would send all of it once more. (Not twice: a loop that is
        always slow would never ask.)"""
        slept, self.looked_ns = now_ns - self.looked_ns >= 3 * retry_ns, now_ns
        if patient and slept and self.heard_ns != self.waited_ns:
            self.heard_ns = self.waited_ns = max(self.heard_ns, now_ns - 2 * retry_ns)
        return now_ns - self.heard_ns >= 3 * retry_ns

    def rest(self, targets: Iterable[Address], ready: Ready) -> None:
        """A copy that stands by again: nothing shall be streamed to it until it asks anew."""
        message = Subscribe(
            edge=self.edge,
            consumer=self.consumer,
            epoch=self.epoch,
            at=self.next,
            ack=0,
            seat=self.seat,
            inactive=True,
        )
        ready.send.extend((target, message) for target in dict.fromkeys(targets))

    def take(self, message: Data, source: Address, now_ns: int, ready: Ready) -> list[Block]:
        """The blocks that continue what is here. A hole asks again, unless an empty start says that what was in it is
        lost. (The fence has seen its epoch.)"""
        if self.paused:
            return []  # of an earlier life of this consumer
        self.heard_ns = now_ns
        taken = []
        for block in message.blocks:
            if block.start == self.next or (block.jumps and block.start > self.next):
                taken.append(block)
                self.next = block.end
            elif block.start > self.next:
                self.subscribe(source, now_ns, ready)
                break
        for block in taken:
            ready.notes.append(notes.Accepted(self.consumer, self.edge, message.epoch, block, self.epoch))
        if self.next - self.asked >= self.credit_max // 2:
            self.subscribe(source, now_ns, ready)
        return taken


class Tap:
    """A producer's end for one consumer: how far it has streamed, and how far it may."""

    __slots__ = ("address", "asked", "bare", "cursor", "epoch", "limit", "stands")

    def __init__(self) -> None:
        self.address: Address = ""
        self.epoch = 0
        #: Where the consumer stood when it last spoke; how far it was sent; how far it may be.
        self.asked = 0
        self.cursor = 0
        #: Where it stands, or will: as far as an earlier life of it had planned.
        self.stands = 0
        self.limit = 0
        self.bare = False

    def point(self, address: Address, message: Subscribe, credit_max: int) -> None:
        self.address = address
        self.epoch = message.epoch
        self.asked = self.cursor = message.at
        self.stands = max(message.at, message.planned)
        self.limit = message.at + credit_max
        self.bare = message.bare

    def rest(self) -> None:
        """Stream nothing more until it asks anew."""
        self.limit = self.cursor

    def flush(self, queue: OutputQueue, epoch: int, ready: Ready) -> bool:
        """Send what it may have; false if no block begins where it stands."""
        if self.cursor >= queue.next or self.cursor >= self.limit or not self.address:
            return True
        blocks = queue.read(self.cursor, self.limit - self.cursor)
        if blocks is None:
            return False
        if blocks:
            self.cursor = blocks[-1].end
            if self.bare:
                blocks = tuple(msgspec.structs.replace(block, rows=()) for block in blocks)
            ready.send.append((self.address, Data(edge=queue.edge, epoch=epoch, blocks=blocks)))
        return True

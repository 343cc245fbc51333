"""A Spark query that reads edges: what `latestOffset`, `partitions` and `commit` of the data source stand on.

Offsets are positions. The reader follows them and the watermarks, without rows: those its tasks fetch (`errand.py`).
The latest offset is the end of what this reader has heard of without a hole, so it never goes back, whatever happens to
the shard behind it: a silent shard simply reports what was there before. `commit` is the acknowledgement; it is
cumulative, so one that is skipped or comes twice does no harm.

Where a shard started empty, rows are missing: the reader says from which event time on (the watermark at what it has
committed) and up to which, and goes on.

A guest (not a sink of the pipeline) holds a lease. Once that has lapsed, what it wanted may be gone: then `lost`
says where the edge starts now, and the reader stops rather than skip rows. It also stops where a producer bars it.
"""

from __future__ import annotations

from collections import deque

import msgspec

from holdfast.core.feed import Feed
from holdfast.core.fence import Behind, Fence
from holdfast.core.gate import Gate, hand_to
from holdfast.core.ready import Ready, Received, Tick
from holdfast.model import notes
from holdfast.model.block import WATERMARK_MIN, Block, elements
from holdfast.model.config import Config
from holdfast.model.ids import Address, Asset, Edge, Seat
from holdfast.model.messages import Barred, Data, Message, Pull, Push, Trimmed
from holdfast.model.parts import GapFound
from holdfast.model.reasons import BarReason
from holdfast.model.record import Record
from holdfast.model.topology import ReaderSpec, Topology


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """Elements [start, end) of an edge, for one task to fetch."""

    edge: Edge
    shard: Asset
    start: int
    end: int
    #: So many of them at most are rows.
    rows: int = 0


def rows_of(block: Block) -> int:
    """Rows of a block of a shard, whether it carries them or not: all elements but its watermark."""
    return block.end - block.start - 1


class Reader:
    def __init__(
        self,
        spec: ReaderSpec,
        epoch: int,
        topology: Topology,
        config: Config,
        record: Record,
        start: dict[Edge, int],
        now_ns: int,
        marks: dict[Edge, int] | None = None,
        planned: dict[Edge, int] | None = None,
    ) -> None:
        self.spec = spec
        self.topology = topology
        self.config = config
        self.fence = Fence(topology.producer, own=epoch, record=record)
        self.gate = Gate(spec.id, topology, self.fence, self._takes)
        query = topology.query if spec.leased else ""
        self.feeds = {
            e: Feed(e, spec.id, epoch, start.get(e, 0), config.credit_max, bare=True, query=query) for e in spec.edges
        }
        for edge, position in (planned or {}).items():
            self.feeds[edge].planned = position
        #: What is not committed yet, without rows.
        self.buffers: dict[Edge, deque[Block]] = {e: deque() for e in spec.edges}
        #: Watermark of each edge at what is committed.
        self.marks = dict.fromkeys(spec.edges, WATERMARK_MIN) | (marks or {})
        #: Edges whose rows are gone (the lease lapsed), and where they start now.
        self.lost: dict[Edge, int] = {}
        #: Edges whose producer will not serve this reader, and why.
        self.barred: dict[Edge, BarReason] = {}
        self.producers: dict[Edge, Seat | None] = {}
        self.asked_ns = now_ns
        self.asked = 0

    @property
    def record(self) -> Record:
        return self.fence.record

    def _takes(self, message: Message) -> bool:
        return hasattr(self, message.handler) and getattr(message, "edge", self.spec.edges[0]) in self.feeds

    def step(self, event: Received | Tick, now_ns: int) -> Ready:
        ready = Ready()
        if isinstance(event, Received):
            hand_to(self, self.gate, event.source, event.message, now_ns, ready)
        else:
            self._turn(now_ns, ready)
            self._on_tick(now_ns, ready)
            ready.wake_ns = now_ns + self.config.retry_ns
        return ready

    def _turn(self, now_ns: int, ready: Ready) -> None:
        """Turn to producers that have moved (at the start: to all)."""
        for edge, feed in self.feeds.items():
            place = self.record.places[self.topology.producer[edge]]
            both = feed.both
            feed.turn(place)
            if edge not in self.producers or self.producers[edge] != place.primary or feed.both != both:
                self.producers[edge] = place.primary
                feed.subscribe(place.primary, now_ns, ready)

    def _on_tick(self, now_ns: int, ready: Ready) -> None:
        retry_ns = self.config.retry_ns
        for edge, feed in self.feeds.items():
            if now_ns - feed.heard_ns >= 3 * retry_ns and edge not in self.lost and edge not in self.barred:
                feed.subscribe(self.producers[edge], now_ns, ready)
        if now_ns - self.asked_ns >= retry_ns:
            self.asked_ns = now_ns
            names = sorted(self.record.members)
            self.asked += 1
            ready.send.append((names[self.asked % len(names)], Pull(version=self.record.version)))

    # --- messages

    def on_push(self, source: Address, message: Push, now_ns: int, ready: Ready) -> None:
        if message.record.version > self.record.version:
            self.fence.record = message.record
            self._turn(now_ns, ready)

    def on_data(self, source: Address, message: Data, now_ns: int, ready: Ready) -> None:
        feed = self.feeds.get(message.edge)
        if feed is not None:
            taken = feed.take(message, source, now_ns, ready)
            self.buffers[message.edge].extend(taken)
            for block in taken:
                if block.gap is not None:
                    self._keep(message.edge, block.start, block.gap.to, ready)

    def _keep(self, edge: Edge, position: int, to: int, ready: Ready) -> None:
        """Between what is committed and `to` rows may be missing. It is on disk before anybody hears that this reader
        knows, so before a task of it may get less than it asks for."""
        gap = GapFound(consumer=self.spec.id, edge=edge, position=position, start=self.marks[edge], to=to)
        ready.persist.append((gap.key, gap))
        ready.notes.append(notes.Missing(self.spec.id, edge, position, gap.start, to))

    def refuse_data(self, source: Address, message: Data, behind: Behind, ready: Ready) -> None:
        ready.notes.append(notes.Refused(self.spec.id, message.edge, behind.said, behind.known))

    def on_trimmed(self, source: Address, message: Trimmed, now_ns: int, ready: Ready) -> None:
        if message.first > self.feeds[message.edge].next:
            self.lost[message.edge] = message.first
            ready.notes.append(notes.ReaderLost(self.spec.id, message.edge, message.first))

    def on_barred(self, source: Address, message: Barred, now_ns: int, ready: Ready) -> None:
        self.barred[message.edge] = message.why
        ready.notes.append(notes.ReaderBarred(self.spec.id, message.edge, message.why))

    # --- the data source

    def latest(self) -> dict[Edge, int]:
        return {edge: feed.next for edge, feed in self.feeds.items()}

    def pieces(self, start: dict[Edge, int], end: dict[Edge, int]) -> list[Piece]:
        """What tasks must fetch of [start, end): of an edge that has moved without rows, nothing."""
        found = []
        for edge, last in end.items():
            first = start[edge]
            known = [b for b in self.buffers[edge] if first <= b.start and b.end <= last]
            whole = bool(known) and known[0].start == first and known[-1].end == last
            rows = sum(map(rows_of, known)) if whole else elements(first, last)
            if rows:
                found.append(Piece(edge=edge, shard=self.topology.producer[edge], start=first, end=last, rows=rows))
        return found

    def marks_at(self, offsets: dict[Edge, int]) -> dict[Edge, int]:
        """The watermark of each edge at these offsets, or a lower one where it is not known."""
        known = {e: [b.watermark for b in self.buffers[e] if b.end <= at] for e, at in offsets.items()}
        return {edge: max(self.marks[edge], *found) if found else self.marks[edge] for edge, found in known.items()}

    def commit(self, offsets: dict[Edge, int], now_ns: int) -> Ready:
        """The sink has everything before these offsets, for good."""
        ready = Ready()
        for edge, position in offsets.items():
            feed = self.feeds[edge]
            if position <= feed.ack:
                continue
            feed.ack = position
            feed.next = max(feed.next, position)  # an earlier life had planned further than this one has followed
            buffer = self.buffers[edge]
            while buffer and buffer[0].end <= position:
                self.marks[edge] = max(self.marks[edge], buffer.popleft().watermark)
            ready.notes.append(notes.ReaderAcked(self.spec.id, edge, position))
            feed.subscribe(self.producers.get(edge), now_ns, ready)
        return ready

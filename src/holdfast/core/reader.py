"""A Spark query that reads edges: what `latestOffset`, `read` and `commit` of the data source stand on.

Offsets are positions. The latest offset is the end of what this reader has received without a hole, so it never goes
back, whatever happens to the shard behind it: a silent shard simply reports what was there before. `read` waits for
the rows instead of failing, because a node's death must never end a query. `commit` is the acknowledgement;
it is cumulative, so one that is skipped or comes twice does no harm.

A reader that is no sink of the pipeline holds a lease. Once that lapsed, what it wanted may be gone: then `lost`
says where the edge starts now, and the reader stops rather than skip rows. It also stops where a producer bars it.
"""

from __future__ import annotations

from collections import deque

from holdfast.core.feed import Feed
from holdfast.core.ready import Ready, Received, Tick
from holdfast.errors import check
from holdfast.model import notes
from holdfast.model.block import Block
from holdfast.model.config import Config
from holdfast.model.ids import Address, Edge, Seat
from holdfast.model.messages import Barred, Data, Pull, Push, Trimmed
from holdfast.model.reasons import BarReason
from holdfast.model.record import Record
from holdfast.model.topology import ReaderSpec, Topology


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
        *,
        bare: bool = False,
    ) -> None:
        self.spec = spec
        self.topology = topology
        self.config = config
        self.record = record
        #: `bare`: the machine follows positions and watermarks; tasks fetch the rows.
        query = topology.query if spec.leased else ""
        self.feeds = {
            e: Feed(e, spec.id, epoch, start.get(e, 0), config.credit_max, bare=bare, query=query) for e in spec.edges
        }
        self.buffers: dict[Edge, deque[Block]] = {e: deque() for e in spec.edges}
        #: Edges whose rows are gone (the lease lapsed), and where they start now.
        self.lost: dict[Edge, int] = {}
        #: Edges whose producer will not serve this reader, and why.
        self.barred: dict[Edge, BarReason] = {}
        self.producers: dict[Edge, Seat | None] = {}
        self.asked_ns = now_ns
        self.asked = 0

    def step(self, event: Received | Tick, now_ns: int) -> Ready:
        ready = Ready()
        if isinstance(event, Received):
            handler = getattr(self, event.message.handler, None)
            if handler is not None:
                handler(event.source, event.message, now_ns, ready)
        else:
            self._turn(now_ns, ready)
            self._on_tick(now_ns, ready)
            ready.wake_ns = now_ns + self.config.retry_ns
        return ready

    def _turn(self, now_ns: int, ready: Ready) -> None:
        """Turn to producers that have moved (at the start: to all)."""
        for edge, feed in self.feeds.items():
            place = self.record.places[self.topology.producer[edge]]
            feed.producer_epoch = max(feed.producer_epoch, place.epoch)
            if edge not in self.producers or self.producers[edge] != place.primary:
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
            self.record = message.record
            self._turn(now_ns, ready)

    def on_data(self, source: Address, message: Data, now_ns: int, ready: Ready) -> None:
        feed = self.feeds.get(message.edge)
        if feed is not None:
            self.buffers[message.edge].extend(feed.take(message, source, now_ns, ready))

    def on_trimmed(self, source: Address, message: Trimmed, now_ns: int, ready: Ready) -> None:
        if message.first > self.feeds[message.edge].next:
            self.lost[message.edge] = message.first
            ready.notes.append(notes.ReaderLost(self.spec.id, message.edge, message.first))

    def on_barred(self, source: Address, message: Barred, now_ns: int, ready: Ready) -> None:
        if message.epoch == self.feeds[message.edge].epoch:
            self.barred[message.edge] = message.why
            ready.notes.append(notes.ReaderBarred(self.spec.id, message.edge, message.why))

    # --- the data source

    def latest(self) -> dict[Edge, int]:
        return {edge: feed.next for edge, feed in self.feeds.items()}

    def read(self, edge: Edge, start: int, end: int) -> list[Block] | None:
        """Blocks of [start, end), or None: wait."""
        if self.feeds[edge].next < end:
            return None
        found = [b for b in self.buffers[edge] if b.start >= start and b.end <= end]
        whole = start == end or (bool(found) and found[0].start == start and found[-1].end == end)
        check(whole, "a reader asks for rows it has given up", f"{edge}: [{start}, {end})")
        return found

    def commit(self, offsets: dict[Edge, int], now_ns: int) -> Ready:
        """The sink has everything before these offsets, for good."""
        ready = Ready()
        for edge, position in offsets.items():
            feed = self.feeds[edge]
            if position <= feed.ack:
                continue
            feed.ack = position
            buffer = self.buffers[edge]
            while buffer and buffer[0].end <= position:
                buffer.popleft()
            ready.notes.append(notes.ReaderAcked(self.spec.id, edge, position))
            feed.subscribe(self.producers.get(edge), now_ns, ready)
        return ready

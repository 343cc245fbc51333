"""A guest that follows an operator's output and notes when each piece of it arrived: how demo and benches see a gap.

It subscribes like any reader, without rows, and holds retention only by its lease. A pause is the time between two
pieces of one edge that moved its watermark; the gap that a failure leaves is the longest pause of any edge after it.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from itertools import pairwise

import msgspec

from holdfast.core.reader import Reader
from holdfast.model.config import Config
from holdfast.model.ids import Consumer, Edge, Name
from holdfast.model.notes import Accepted, Note
from holdfast.model.plan import Plan, edges_of
from holdfast.model.record import Record
from holdfast.model.topology import ReaderSpec
from holdfast.runtime.net.security import Security
from holdfast.runtime.net.transport import Peer
from holdfast.runtime.node.loop import MachineLoop


class Arrival(msgspec.Struct, frozen=True, array_like=True):
    at: float  # wall clock, seconds
    watermark: int
    epoch: int
    rows: int


class Probe:
    """Follow `operator` from now on."""

    def __init__(self, plan: Plan, operator: str, endpoints: dict[Name, str], security: Security) -> None:
        self._edges = edges = edges_of(plan.operator(operator))
        self.arrivals: dict[Edge, list[Arrival]] = defaultdict(list)
        self._lock = threading.Lock()
        self._name = name = Consumer(f"probe-{time.time_ns()}")
        self._peer = Peer(name, endpoints, security, lambda source, message: self._loop.received(source, message))
        record, start = self._begin(sorted(endpoints), edges)
        reader = Reader(
            ReaderSpec(id=name, edges=edges, leased=True),
            1,
            plan.topology,
            Config(credit_max=1 << 40),
            record,
            start,
            time.monotonic_ns(),
        )
        self._loop = MachineLoop(reader, self._peer.send, on_notes=self._note, name="probe")
        self._loop.start()

    def _begin(self, names: list[Name], edges: tuple[Edge, ...]) -> tuple[Record, dict[Edge, int]]:
        """The record, and where each edge stands now, from whoever has it."""
        start: dict[Edge, int] = {}
        record: Record | None = None
        for name in names:
            found = msgspec.msgpack.decode(self._peer.caller.call_raw(name, "record"), type=Record)
            if record is None or found.version > record.version:
                record = found
            start |= {edge: at.next for edge, at in self._peer.caller.edges(name).items() if edge in edges}
        assert record is not None
        return record, start

    def _note(self, notes: list[Note]) -> None:
        now = time.time()
        with self._lock:
            for note in notes:
                if isinstance(note, Accepted):
                    block = note.block
                    arrival = Arrival(now, block.watermark, note.epoch, block.end - block.start - 1)
                    self.arrivals[note.edge].append(arrival)

    def pauses(self, since: float, until: float) -> list[float]:
        """For each edge the longest pause that touches this time."""
        found = []
        with self._lock:
            for arrivals in self.arrivals.values():
                times = [a.at for a in arrivals]
                spans = [later - sooner for sooner, later in pairwise(times) if later >= since and sooner <= until]
                found.append(max(spans, default=float("nan")))
        return found

    def gap(self, since: float, until: float) -> float:
        """The longest pause of any edge around a failure."""
        return max(self.pauses(since, until), default=float("nan"))

    def resumed(self, since: float) -> bool:
        """Has every edge that spoke before moved on since?"""
        with self._lock:
            return all(arrivals[-1].at > since + 0.5 for arrivals in self.arrivals.values() if arrivals)

    def rows(self) -> int:
        with self._lock:
            return sum(a.rows for arrivals in self.arrivals.values() for a in arrivals)

    def close(self) -> None:
        self._loop.stop()
        self._peer.caller.leave(self._name, self._edges)
        self._peer.close()

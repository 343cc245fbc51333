"""Where a row's milliseconds go: the parts of its way, histograms of them, and the clock of a hand-over. Pure.

A histogram has fixed edges, so that those of several nodes, and of several minutes, can be added up. Its edges are six
to a factor of ten, from 0.1 ms to 70 s. A quantile is interpolated between two of them, at most 1.7 times apart.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from typing import Any

from holdfast.model.note import Note
from holdfast.model.stage_notes import AllDelivered, AllSealed, Committed

#: In the order in which a row meets them, and what each of them is.
PARTS: dict[str, str] = {
    "collect": "Spark reads a batch and runs your functions; its rows come to the driver and are cut into shards",
    "deliver": "the driver sends the batch to every holder, and each says that it holds it",
    "ledger": "one record goes to both disks of the ledger; from then on the batch counts",
    "seal": "every holder is told that it counts, and says that it has sealed it",
    "inbox": "a sealed batch waits until its shard takes it",
    "step": "the shard takes it: rows into state, windows closed, results made",
    "stream": "a result waits on its node until a sink or a stage fetches it",
    "plan": "a Spark sink plans a batch and notes it: all of its trigger but `write`",
    "fetch": "a sink without Spark fetches the rows of a batch",
    "write": "a sink writes a batch (of a Spark sink, with the fetches of its tasks)",
}

_STEPS = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
#: Upper edges in seconds; what is longer than the last one is counted beyond it.
EDGES_S: tuple[float, ...] = tuple(round(step * 10.0**power, 6) for power in range(-4, 2) for step in _STEPS)


class Histogram:
    """How often something took how long."""

    __slots__ = ("counts", "total_s")

    def __init__(self, counts: Iterable[int] = (), total_s: float = 0.0) -> None:
        #: One for each edge, and one for what is longer than all of them.
        self.counts = list(counts) or [0] * (len(EDGES_S) + 1)
        self.total_s = total_s

    def add(self, seconds: float) -> None:
        """What took less than nothing, since clocks differ, took nothing."""
        seconds = max(0.0, seconds)
        self.counts[bisect_left(EDGES_S, seconds)] += 1
        self.total_s += seconds

    @property
    def count(self) -> int:
        return sum(self.counts)

    @property
    def mean_s(self) -> float | None:
        count = self.count
        return self.total_s / count if count else None

    def quantile(self, share: float) -> float | None:
        """The time that this share of all took at the most, interpolated between two edges; None: there were none."""
        count = self.count
        if not count:
            return None
        wanted, below = share * count - 1e-9, 0
        for i, n in enumerate(self.counts):
            if n and below + n >= wanted:
                low = EDGES_S[i - 1] if i else 0.0
                high = EDGES_S[i] if i < len(EDGES_S) else EDGES_S[-1]
                return low + max(0.0, wanted - below) / n * (high - low)
            below += n
        return EDGES_S[-1]

    def merge(self, other: Histogram) -> None:
        self.counts = [mine + its for mine, its in zip(self.counts, other.counts, strict=True)]
        self.total_s += other.total_s

    def cumulative(self) -> list[tuple[str, int]]:
        """As Prometheus has it: how many took at most so long."""
        found, below = [], 0
        for edge, n in zip((*map(repr, EDGES_S), "+Inf"), self.counts, strict=True):
            below += n
            found.append((edge, below))
        return found

    def told(self) -> dict[str, Any]:
        return {"counts": list(self.counts), "total_s": round(self.total_s, 6)}

    @staticmethod
    def of(told: dict[str, Any]) -> Histogram:
        return Histogram([int(n) for n in told["counts"]], float(told["total_s"]))


#: What nobody takes is dropped, the oldest first: a port's hand-over has nobody who asks.
SPANS_MAX = 1_000


class HandOverClock:
    """Times of the three parts of a hand-over, from what its driver notes."""

    __slots__ = ("_committed_ns", "_delivered_ns", "_posted_ns", "_spans")

    def __init__(self) -> None:
        self._posted_ns = self._delivered_ns = self._committed_ns = 0
        self._spans: dict[str, deque[float]] = {}

    def post(self, now_ns: int) -> None:
        """The driver is given a batch."""
        self._posted_ns, self._delivered_ns = now_ns, 0

    def on_notes(self, noted: Iterable[Note], now_ns: int) -> None:
        for note in noted:
            if isinstance(note, AllDelivered):
                self._span("deliver", self._posted_ns, now_ns)
                self._delivered_ns = now_ns
            elif isinstance(note, Committed):
                self._span("ledger", self._delivered_ns, now_ns)
                self._committed_ns = now_ns
                self._posted_ns = self._delivered_ns = 0
            elif isinstance(note, AllSealed):
                self._span("seal", self._committed_ns, now_ns)
                self._committed_ns = 0

    def _span(self, part: str, began_ns: int, now_ns: int) -> None:
        """What a driver before this one began is not its own to measure."""
        if began_ns:
            self._spans.setdefault(part, deque(maxlen=SPANS_MAX)).append((now_ns - began_ns) / 1e6)

    def take(self) -> dict[str, list[float]]:
        """Milliseconds of every part that has ended since the last time."""
        spans, self._spans = self._spans, {}
        return {part: [round(ms, 3) for ms in found] for part, found in spans.items()}

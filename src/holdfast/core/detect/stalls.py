"""How often a node stalls, and for how long: the distributions of figures 2 and 3 (hybrid-ha §II-B).

A sample says how much of a stretch of time was taken from whoever wanted to compute. Samples at or above a threshold
that follow each other are one *stall*; it lasts from the beginning of the first to the end of the last. Figure 2 is the
time from the beginning of one stall to that of the next, figure 3 is their length. Both are kept as counts between
fixed edges, so a node that has run for a year remembers no more than one that has run for an hour.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

#: A machine whose CPUs are used as much as this has none left (hybrid-ha §II-B).
BUSY = 0.95
#: A node that gets no CPU for this part of a sample, though it wants one, stalls.
STARVED = 0.5
#: How often a sample is taken (hybrid-ha §II-B).
SAMPLE_NS = 250_000_000
#: Lengths are counted up to each of these; what is longer is counted behind the last.
EDGES_S = (0.25, 0.5, 1, 2, 3, 5, 7.5, 10, 15, 20, 30, 60, 120, 300, 600, 1_800, 3_600)
#: Half a sample: a stall of one sample lasts 0.25 s, whatever the last microsecond says.
SLACK_S = 0.125


class Spread:
    """Lengths of time, as counts between edges."""

    __slots__ = ("counts", "longest_s", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(EDGES_S) + 1)
        self.total_s = 0.0
        self.longest_s = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(EDGES_S, seconds - SLACK_S)] += 1
        self.total_s += seconds
        self.longest_s = max(self.longest_s, seconds)

    @property
    def count(self) -> int:
        return sum(self.counts)

    def told(self) -> dict[str, Any]:
        """For a status: how many were at most as long as each edge (the last number: all of them)."""
        at_most = [sum(self.counts[: i + 1]) for i in range(len(self.counts))]
        mean_s = self.total_s / at_most[-1] if at_most[-1] else None
        return {"edges_s": list(EDGES_S), "at_most": at_most, "mean_s": mean_s, "longest_s": self.longest_s}


class Stalls:
    """Of one cause."""

    __slots__ = ("began_ns", "between", "lengths", "now_ns", "stalled_ns", "started_ns", "threshold", "until_ns")

    def __init__(self, threshold: float, now_ns: int) -> None:
        self.threshold = threshold
        self.started_ns = self.now_ns = now_ns
        #: The stall that is under way, or the last one; -1: there was none, or it is not over.
        self.began_ns = self.until_ns = -1
        self.stalled_ns = 0
        self.lengths = Spread()
        self.between = Spread()

    @property
    def is_stalled(self) -> bool:
        return self.began_ns >= 0 and self.until_ns < 0

    def sample(self, began_ns: int, now_ns: int, taken: float) -> None:
        """Between these moments, this part of what was wanted was not to be had."""
        self.now_ns = now_ns
        if taken >= self.threshold:
            self.stalled_ns += now_ns - began_ns
            if not self.is_stalled:
                if self.began_ns >= 0:
                    self.between.add((began_ns - self.began_ns) / 1e9)
                self.began_ns, self.until_ns = began_ns, -1
        elif self.is_stalled:
            self.until_ns = began_ns
            self.lengths.add((began_ns - self.began_ns) / 1e9)

    def told(self) -> dict[str, Any]:
        """For a status. Lengths are those of stalls that are over."""
        watched_ns = self.now_ns - self.started_ns
        return {
            "stalls": self.lengths.count + self.is_stalled,
            "stalled_now": self.is_stalled,
            "watched_s": round(watched_ns / 1e9, 3),
            "share": self.stalled_ns / watched_ns if watched_ns else 0.0,
            "lengths": self.lengths.told(),
            "between": self.between.told(),
        }

"""Phi accrual (Hayashibara and others, 2004): how unlikely a silence is, by what was heard before (hybrid-ha §IV-A has
none of it).

Phi is -log10 of the chance that a heartbeat comes later than now, if the times between heartbeats are spread like the
last of them. So a link or a machine with much jitter is given more time, and a steady one less, without a setting. A
peer is suspicious at `PHI_YELLOW`, which a steady one reaches a little before a missed heartbeat counts. It is taken
for dead only at `PHI_RED` beyond the misses that are allowed: as with the count, that step cannot be undone.
"""

from __future__ import annotations

from collections import deque
from math import erfc, inf, log10, sqrt

from holdfast.core.detect.judge import Level

#: One heartbeat in a thousand is later than this by chance; one in a hundred million.
PHI_YELLOW, PHI_RED = 3.0, 8.0
#: Times between heartbeats that are remembered.
REMEMBERED = 200
#: Nobody is steadier than this part of an interval: ticks and threads are not.
STEADY = 8


class PhiAccrual:
    __slots__ = ("_gaps", "heard_ns", "interval_ns", "misses_max")

    def __init__(self, interval_ns: int, misses_max: int, now_ns: int) -> None:
        self.interval_ns = interval_ns
        self.misses_max = misses_max
        self.heard_ns = now_ns
        self._gaps: deque[int] = deque(maxlen=REMEMBERED)

    def expect(self, interval_ns: int, now_ns: int) -> None:
        if interval_ns != self.interval_ns:
            self.interval_ns = interval_ns
            self.heard_ns = now_ns
            self._gaps.clear()

    def on_heard(self, now_ns: int) -> None:
        """A silence that was taken for a death says nothing about how steady the living are."""
        gap_ns = now_ns - self.heard_ns
        self.heard_ns = now_ns
        if 0 < gap_ns <= self.misses_max * self.interval_ns:
            self._gaps.append(gap_ns)

    def phi(self, silence_ns: int) -> float:
        """For a silence of this length. Whoever has just been met is taken for steady."""
        gaps = self._gaps
        mean = sum(gaps) / len(gaps) if gaps else self.interval_ns
        mean = max(mean, self.interval_ns)  # what is sent twice, or with other words, comes early
        variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps) if gaps else 0.0
        spread = max(sqrt(variance), self.interval_ns / STEADY)
        later = erfc((silence_ns - mean) / spread / sqrt(2)) / 2
        return -log10(later) if later else inf

    def level(self, now_ns: int) -> Level:
        silence_ns = now_ns - self.heard_ns
        if silence_ns <= self.interval_ns:
            return Level.GREEN
        if self.phi(silence_ns - (self.misses_max - 1) * self.interval_ns) >= PHI_RED:
            return Level.RED
        return Level.YELLOW if self.phi(silence_ns) >= PHI_YELLOW else Level.GREEN

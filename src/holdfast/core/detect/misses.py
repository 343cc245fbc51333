"""Heartbeats that are missing, counted: suspicious after the first, dead after `misses_max` (hybrid-ha §IV-A, §IV-B).

The paper's conventional method declares a failure after three misses; its hybrid mode acts on the first one, since it
can go back. A heartbeat is missing when half an interval more than one has passed: ticks of two nodes are not in step.
"""

from __future__ import annotations

from holdfast.core.detect.judge import Level


class Misses:
    __slots__ = ("heard_ns", "interval_ns", "misses_max")

    def __init__(self, interval_ns: int, misses_max: int, now_ns: int) -> None:
        self.interval_ns = interval_ns
        self.misses_max = misses_max
        self.heard_ns = now_ns

    def expect(self, interval_ns: int, now_ns: int) -> None:
        if interval_ns != self.interval_ns:
            self.interval_ns = interval_ns
            self.heard_ns = now_ns

    def on_heard(self, now_ns: int) -> None:
        self.heard_ns = now_ns

    def level(self, now_ns: int) -> Level:
        silence_ns = now_ns - self.heard_ns
        if silence_ns > self.misses_max * self.interval_ns:
            return Level.RED
        return Level.YELLOW if silence_ns > self.interval_ns * 3 // 2 else Level.GREEN

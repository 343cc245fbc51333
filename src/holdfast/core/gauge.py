"""How busy a copy keeps its node: nanoseconds of a core per second, smoothed so that a burst counts for its share only.

The core has no clock for work. An operator counts what it has worked (`Operator.busy_ns`: measured on real nodes,
modelled in the simulator), a driver says what a stage has used, and a gauge looks at that total now and then.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.model.config import SECOND


class Gauge:
    """The mean since it began, and from then on of about the last `window_ns`: the older, the less it counts."""

    __slots__ = ("at_ns", "began_ns", "busy_ns", "load")

    def __init__(self) -> None:
        #: None: not known yet. It takes two looks.
        self.load: int | None = None
        self.busy_ns = -1
        self.at_ns = self.began_ns = 0

    def look(self, busy_ns: int, now_ns: int, window_ns: int) -> int | None:
        """`busy_ns` is the work so far, of which the difference counts; less than before: it began anew."""
        if self.busy_ns < 0 or busy_ns < self.busy_ns:
            self.load = None
            self.busy_ns, self.at_ns, self.began_ns = busy_ns, now_ns, now_ns
            return None
        passed_ns = now_ns - self.at_ns
        if passed_ns > 0:
            rate = (busy_ns - self.busy_ns) * SECOND // passed_ns
            before = self.load or 0
            span_ns = max(passed_ns, min(now_ns - self.began_ns, window_ns))
            self.load = before + (rate - before) * passed_ns // span_ns
            self.busy_ns, self.at_ns = busy_ns, now_ns
        return self.load


class Tidings(NamedTuple):
    """How busy a primary was when a capture was taken, what an element took, and when the capture came."""

    load: int = 0
    element_ns: int = 0
    at_ns: int = 0

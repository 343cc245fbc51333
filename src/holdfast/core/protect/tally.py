"""What the rounds of one shard cost, estimated beside measured, and how busy it keeps its node between them.

A primary measures its captures. What pasting them takes it is told by its backup: the estimate when that holds a round,
the measure when that has pasted it. From both it says what the next ones will take, before they are taken. The models
behind the estimates are those of cooperative-ha §7 (`operators/costs.py`).
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.model.config import SECOND


class Cost(NamedTuple):
    """Of the last one. 0: none was, or nothing is known."""

    estimated_ns: int = 0
    measured_ns: int = 0

    @property
    def best_ns(self) -> int:
        """What was measured, if it was."""
        return self.measured_ns or self.estimated_ns


class Tally:
    __slots__ = ("capture", "element_ns", "load", "paste")

    def __init__(self) -> None:
        self.capture = Cost()
        self.paste = Cost()
        #: Nanoseconds of steps per second, over about the last two rounds.
        self.load = 0
        #: Nanoseconds of steps per element of input, likewise.
        self.element_ns = 0

    def on_capture(self, estimated_ns: int, measured_ns: int) -> None:
        self.capture = Cost(estimated_ns, measured_ns)

    def on_worked(self, worked_ns: int, elements: int, passed_ns: int) -> None:
        """Steps between two rounds: over so many elements, in so much time."""
        if elements > 0 and passed_ns > 0:
            load = min(worked_ns * SECOND // passed_ns, SECOND)
            self.load = (self.load + load) // 2 if self.load else load
            each_ns = worked_ns // elements
            self.element_ns = (self.element_ns + each_ns) // 2 if self.element_ns else each_ns

    def on_held(self, estimated_ns: int) -> None:
        self.paste = Cost(estimated_ns)

    def on_pasted(self, measured_ns: int) -> None:
        self.paste = Cost(self.paste.estimated_ns, measured_ns)

    def paste_of(self, capture_ns: int) -> int:
        """What it will take to paste a capture that takes so long; as long, as long as nothing is known."""
        if not self.capture.best_ns or not self.paste.best_ns:
            return capture_ns
        return capture_ns * self.paste.best_ns // self.capture.best_ns

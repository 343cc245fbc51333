"""How fast a node may send state: one limit for all new images, so that rows keep their share; and who is late."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.model.ids import Name

SECOND_NS = 1_000_000_000
#: What may be sent ahead of the limit: a node looks for such work at least every 100 ms, and keeps up with it so.
AHEAD_NS = 100_000_000


class Pace:
    __slots__ = ("bytes_per_s", "free_ns", "is_late")

    def __init__(self, bytes_per_s: int | None) -> None:
        #: None: as fast as the images take it.
        self.bytes_per_s = bytes_per_s
        #: Until then, what was sent last uses up the limit.
        self.free_ns = 0
        #: Has a member's heartbeat not come? The node says so, which watches them.
        self.is_late: Callable[[Name], bool] = lambda name: False

    def is_free(self, now_ns: int) -> bool:
        return now_ns >= self.free_ns - AHEAD_NS

    def spend(self, count_bytes: int, now_ns: int) -> None:
        if self.bytes_per_s is not None:
            self.free_ns = max(now_ns, self.free_ns) + count_bytes * SECOND_NS // self.bytes_per_s

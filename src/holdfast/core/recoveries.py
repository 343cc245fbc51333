"""What recoveries of this node took, beside what was expected of them (cooperative-ha §5.1, `core/recovery.py`).

When the record gives this node what a failed one ran, what that should take is known: what is held and not pasted, and
the load of each shard times the time since its last capture. What it took is measured: the work of its operators, and
the time until everything that could be done again is done. Input from stages is here already, and is taken in the very
step of the record; what other shards send again comes after a moment, and whoever sends nothing within `retry_ns` had
nothing to send. A step's clock stands still, so the end of its work shows at the beginning of the next one.

It tells and decides nothing. A stand-in has done its work before, and is not counted; nor is a shard that leaves again.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.core.copy import Copy
from holdfast.core.ready import Ready
from holdfast.core.roles import Condition
from holdfast.core.runner import Runner
from holdfast.model import notes
from holdfast.model.config import SECOND
from holdfast.model.ids import Asset, Edge, Name, Seat

#: Who has not caught up after this time stands still for some other reason.
LIMIT_NS = 60 * SECOND


class Recovery:
    """All that one failed node ran and this one takes over: a segment."""

    __slots__ = ("began_ns", "ended_ns", "expected_ns", "failed", "positions", "shards", "worked_ns")

    def __init__(self, failed: Name, now_ns: int) -> None:
        self.failed = failed
        self.began_ns = self.ended_ns = now_ns
        self.expected_ns = 0
        #: Of each shard: what its operator had worked before, and where it stood.
        self.shards: dict[Asset, int] = {}
        self.positions: dict[Asset, dict[Edge, int]] = {}
        self.worked_ns = 0


class Recoveries:
    __slots__ = ("_copies", "_retry_ns", "_runners", "_seat", "under_way")

    def __init__(
        self, seat: Seat, copies: Mapping[Asset, Copy], runners: Mapping[Asset, Runner], retry_ns: int
    ) -> None:
        self._seat = seat
        self._copies = copies
        self._runners = runners
        self._retry_ns = retry_ns
        self.under_way: dict[Name, Recovery] = {}

    def begin(self, shard: Asset, failed: Name, now_ns: int) -> None:
        """Its primary is gone, and the copy here is next. Called before anything of it is pasted or stepped."""
        recovery = self.under_way.setdefault(failed, Recovery(failed, now_ns))
        copy = self._copies[shard]
        recovery.shards[shard] = copy.op.busy_ns
        recovery.positions[shard] = copy.pasting.head.to if copy.pasting else copy.positions()
        recovery.expected_ns += copy.exposed_ns(now_ns)

    def look(self, now_ns: int, ready: Ready) -> None:
        """At the beginning of a step: what was done in the one before has ended by now."""
        for failed, recovery in list(self.under_way.items()):
            worked_ns = sum(self._copies[s].op.busy_ns - at for s, at in recovery.shards.items() if s in self._runners)
            if worked_ns != recovery.worked_ns:
                recovery.worked_ns, recovery.ended_ns = worked_ns, now_ns
            passed_ns = now_ns - recovery.began_ns
            if passed_ns >= LIMIT_NS or all(self._is_through(shard, recovery, passed_ns) for shard in recovery.shards):
                del self.under_way[failed]
                self._tell(recovery, ready)

    def _is_through(self, shard: Asset, recovery: Recovery, passed_ns: int) -> bool:
        runner = self._runners.get(shard)
        if runner is None or runner.copy.condition is not Condition.RUNNING:
            return runner is None
        stood = recovery.positions[shard]
        silent = any(feed.next == stood[edge] for edge, feed in runner.feeds.items())
        return not silent or passed_ns >= self._retry_ns

    def _tell(self, recovery: Recovery, ready: Ready) -> None:
        took_ns = recovery.ended_ns - recovery.began_ns
        figures = (recovery.expected_ns, max(0, recovery.worked_ns), took_ns)
        ready.notes.append(notes.Recovered(recovery.failed, self._seat, len(recovery.shards), *figures))

"""What a failure would cost now: expected recovery times of units, segments and nodes (cooperative-ha §5).

    unit       R_u = work since the state that its backup has or holds, and the pasting that is still to be done for it
    segment    R_ij = the sum over the units that run on i and are backed up on j: one node recovers them in turn
    query      R_i = the maximum over the segments of i: its backups recover beside each other

Work since a capture is measured on the primary (`Operator.busy_ns`); a backup, which does not see it, takes the load
that the last capture has told, times the time since then. A moment ahead counts with that load, too. The paper leaves
its formal definitions to a report that we do not have; the sums are those of its example (figures 2 and 3), which is a
test.

Only what a recovery has to work is in it: not how long a failure takes to be noticed and decided, and not a unit that
has no backup, for which there is no such time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from holdfast.model.config import SECOND
from holdfast.model.ids import Asset, Name


class HaSegment(NamedTuple):
    """All units that one node runs and one other backs up (§3.2)."""

    primary: Name
    backup: Name


class Exposure(msgspec.Struct, frozen=True):
    """What it would take to recover one unit now."""

    unit: Asset
    segment: HaSegment
    #: How busy it keeps its node: nanoseconds of work per second.
    load: int
    #: Work since the capture that its backup has or holds.
    replay_ns: int
    #: What its backup has still to paste of that capture.
    paste_ns: int = 0

    def recovery_ns(self, ahead_ns: int = 0) -> int:
        """R_u, so long from now."""
        return self.replay_ns + self.paste_ns + self.load * ahead_ns // SECOND


class Outlook:
    """Expected recovery times over some units, for any moment ahead, as long as nothing is captured or pasted."""

    __slots__ = ("_load", "_now_ns", "segments")

    def __init__(self, exposures: Iterable[Exposure]) -> None:
        self._now_ns: dict[HaSegment, int] = {}
        self._load: dict[HaSegment, int] = {}
        #: Segments of each node.
        self.segments: dict[Name, list[HaSegment]] = {}
        for each in exposures:
            segment = each.segment
            if segment not in self._now_ns:
                self.segments.setdefault(segment.primary, []).append(segment)
            self._now_ns[segment] = self._now_ns.get(segment, 0) + each.recovery_ns()
            self._load[segment] = self._load.get(segment, 0) + each.load

    def segment_ns(self, segment: HaSegment, ahead_ns: int = 0) -> int:
        """R of a segment, so long from now."""
        return self._now_ns.get(segment, 0) + self._load.get(segment, 0) * ahead_ns // SECOND

    def query_ns(self, primary: Name, ahead_ns: int = 0) -> int:
        """R of everything that a node runs."""
        return max((self.segment_ns(segment, ahead_ns) for segment in self.segments.get(primary, ())), default=0)

    def worst(self, primary: Name) -> HaSegment | None:
        """The segment that would take longest; the first of several."""
        found = self.segments.get(primary, ())
        return max(found, key=self.segment_ns) if found else None

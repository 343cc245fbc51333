"""Who backs up what: backups are moved so that the worst failure costs less (cooperative-ha §6, figure 6).

    load            what was there before this: whoever has least to do gets a backup, and busy nodes give some away
                    (`core/balance.py`)
    random_static   by lot, once and for all: the paper's baseline. What has no backup draws again
    dynamic         figure 6. Once per epoch the *worst point of failure*, the node whose failure would take longest to
                    recover from, gets one of two moves:
                    (a) it gives units of its longest segment to the node that backs up least for it;
                    (b) somebody else takes units away from it, when it keeps too many images to take its own captures

An epoch (`core/epoch.py`) is over when every node has finished a checkpoint cycle; all times are means over it. How
much moves is line 7: the share by which one segment is longer than the other, of the work that its images cost. Three
rules are ours. A unit moves only if the segment that takes it stays shorter than the one that gives it has been, since
line 7 alone would let two segments of equal units swap again and again. What would make the longer one shorter by
less than a tenth moves nothing: a new image is a whole scan of the state. And where the move that line 2 chooses has
nothing to move, the other one is tried.

Targets are only nodes that share as little with the primary as any could (`model/domains.py`). Everything here is a
function of its arguments. A move ends as any other join does, so the old image is kept until the new one is whole
(§4.3).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from holdfast.core.recovery import HaSegment
from holdfast.model.config import MS
from holdfast.model.domains import farthest
from holdfast.model.ids import Asset, Name

#: What makes the longer segment shorter by less than a tenth, or by less than this, is not worth a new image.
NOISE = 10
GAIN_MIN_NS = 1 * MS


class UnitShare(msgspec.Struct, frozen=True):
    """What one unit had in an epoch: its mean expected recovery time R_u, and h_u, the work that its image cost in
    nanoseconds per second."""

    unit: Asset
    segment: HaSegment
    recovery_ns: int
    backup_ns: int = 0


class Reassign(NamedTuple):
    """One unit gets another backup."""

    unit: Asset
    source: Name
    target: Name
    #: What it was moved for: both segments, and the unit.
    high_ns: int
    low_ns: int
    unit_ns: int


class Assignment:
    """Segments of one epoch, as figure 6 looks at them."""

    __slots__ = ("_domains", "_query", "_segments", "_units", "nodes")

    def __init__(
        self,
        units: list[UnitShare],
        nodes: list[Name],
        domains: Mapping[Name, str] | None = None,
        queries: Mapping[Name, int] | None = None,
    ) -> None:
        self.nodes = sorted(nodes)
        self._domains = domains or {}
        self._query = queries or {}
        self._segments: dict[HaSegment, int] = {}
        self._units: dict[HaSegment, list[UnitShare]] = {}
        for unit in units:
            self._segments[unit.segment] = self._segments.get(unit.segment, 0) + unit.recovery_ns
            self._units.setdefault(unit.segment, []).append(unit)

    def segment_ns(self, primary: Name, backup: Name) -> int:
        """R of a segment; 0: nothing of one is backed up on the other."""
        return self._segments.get(HaSegment(primary, backup), 0)

    def query_ns(self, node: Name) -> int:
        """R of what a node runs: the mean of its worst segment at each moment, where it has told that."""
        longest = max((ns for segment, ns in self._segments.items() if segment.primary == node), default=0)
        return self._query.get(node, longest)

    def targets(self, node: Name) -> list[Name]:
        """Who may back up what this node runs."""
        return farthest(node, self.nodes, self._domains)

    def holders(self, node: Name) -> list[Name]:
        """Who does."""
        return [segment.backup for segment in self._segments if segment.primary == node]

    # --- figure 6

    def worst(self) -> Name:
        """The worst point of failure."""
        return max(self.nodes, key=lambda node: (self.query_ns(node), node))

    def give(self, node: Name) -> list[Reassign]:
        """Lines 1 and 3: from the longest of its segments to the shortest that it could have."""
        source, target = self._ends(node)
        return self._move(node, source, target) if source and target else []

    def relieve(self, node: Name) -> list[Reassign]:
        """Lines 5 and 6: whoever has most of its recovery here, beyond what the best node would have to recover of it,
        moves some there."""
        best = self.best()
        found = [
            (self.segment_ns(other, node) - self.segment_ns(other, best), other)
            for other in self.nodes
            if best in self.targets(other) and best != node
        ]
        most = max(found, default=None)
        return self._move(most[1], node, best) if most and most[0] > 0 else []

    def best(self) -> Name:
        """Whose failure would cost least."""
        return min(self.nodes, key=lambda node: (self.query_ns(node), node))

    def is_unbalanced(self, node: Name) -> bool:
        """Line 2: does somebody back up less for it than the best node would have to be recovered from?"""
        target = self._ends(node)[1]
        return target is not None and self.segment_ns(node, target) < self.query_ns(self.best())

    def _ends(self, node: Name) -> tuple[Name | None, Name | None]:
        """Who backs up most for it, and who could back up most more."""
        source = max(self.holders(node), key=lambda other: (self.segment_ns(node, other), other), default=None)
        others = [other for other in self.targets(node) if other != source]
        return source, min(others, key=lambda other: (self.segment_ns(node, other), other), default=None)

    def _move(self, primary: Name, source: Name, target: Name) -> list[Reassign]:
        """Lines 7 to 12."""
        before_ns = high_ns = self.segment_ns(primary, source)
        low_ns = self.segment_ns(primary, target)
        if high_ns <= low_ns:
            return []
        units = sorted(self._units[HaSegment(primary, source)], key=lambda unit: unit.unit)
        left = (high_ns - low_ns) * sum(unit.backup_ns for unit in units) // high_ns
        found: list[Reassign] = []
        while units:  # of those that fit, whatever evens it out best
            fits = [u for u in units if u.backup_ns <= left and 0 < u.recovery_ns < high_ns - low_ns]
            if not fits:
                break
            unit = min(fits, key=lambda u: (max(high_ns - u.recovery_ns, low_ns + u.recovery_ns), u.unit))
            units.remove(unit)
            found.append(Reassign(unit.unit, source, target, high_ns, low_ns, unit.recovery_ns))
            left -= unit.backup_ns
            high_ns, low_ns = high_ns - unit.recovery_ns, low_ns + unit.recovery_ns
        gain_ns = before_ns - max(high_ns, low_ns)
        return found if gain_ns >= max(GAIN_MIN_NS, before_ns // NOISE) else []


def dynamic(
    units: list[UnitShare],
    nodes: list[Name],
    domains: Mapping[Name, str] | None = None,
    queries: Mapping[Name, int] | None = None,
) -> list[Reassign]:
    """Figure 6, at the end of an epoch."""
    if len(nodes) < 3:
        return []  # there is nobody else who could
    seen = Assignment(units, nodes, domains, queries)
    worst = seen.worst()
    first, then = (seen.give, seen.relieve) if seen.is_unbalanced(worst) else (seen.relieve, seen.give)
    return first(worst) or then(worst)

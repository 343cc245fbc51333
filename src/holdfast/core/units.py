"""Units: groups of shards that are captured together, formed from what is measured (cooperative-ha §4).

The shards of a unit run on one node and are backed up on one other. Shards that feed each other there begin as one unit
(§3.2; each has positions of its own here, so a unit is not needed to keep them consistent, only to schedule them).
A unit whose capture takes too long is cut up again (§4.1); others are merged, the most similar first, while the capture
of the whole stays under the threshold (§4.2). Similar is who has about the same load for the cost of its capture: that
is what `min_max` goes by, so those would be captured equally often anyway.

The record has the groups (`Record.units`), the coordinator forms them with every look at the balance, and a shard that
moves away has left its unit by that: images belong to shards, so nothing has to be brought up for a new group (§4.3).
What makes and what breaks a unit differ by a margin, so that noise does not change the record.
"""

from __future__ import annotations

import msgspec

from holdfast.core.recovery import HaSegment
from holdfast.model.ids import Asset, name_of
from holdfast.model.record import Place
from holdfast.model.topology import Topology

#: Units are merged when one has at most so many times the load for its cost that the other has, and cut up at twice it.
ALIKE = 2.0
#: One that is formed may become so much more expensive before it is cut up, in percent of the threshold.
MARGIN_PERCENT = 150


class ShardCost(msgspec.Struct, frozen=True):
    """What is known of a shard: nanoseconds of work per second, and of a capture."""

    load: int
    capture_ns: int

    @property
    def ratio(self) -> float:
        return max(1, self.load) / max(1, self.capture_ns)


def form(
    places: dict[Asset, Place],
    topology: Topology,
    costs: dict[Asset, ShardCost],
    before: dict[Asset, Asset],
    capture_max_ns: int,
) -> dict[Asset, Asset]:
    """For every shard that is in a unit with others, its unit: the id of the first of them. Shards of which nothing is
    known, or that have no backup (a twin is none), are on their own."""
    if capture_max_ns <= 0:
        return {}
    found: dict[Asset, Asset] = {}
    segments: dict[HaSegment, list[Asset]] = {}
    for shard in sorted(costs):
        place = places.get(shard)
        if place is None or place.joining or place.is_stage or place.twin:
            continue
        if place.primary and place.backup:
            segments.setdefault(HaSegment(name_of(place.primary), name_of(place.backup)), []).append(shard)
    for shards in segments.values():
        groups = [part for group in _kept(shards, topology, before) for part in _cut(group, costs, capture_max_ns)]
        for group in _merged(groups, costs, capture_max_ns):
            found.update(dict.fromkeys(group, min(group)) if len(group) > 1 else {})
    return found


def _kept(shards: list[Asset], topology: Topology, before: dict[Asset, Asset]) -> list[list[Asset]]:
    """What was one unit and still is in one segment; what was in none begins with those that it feeds or reads."""
    groups: dict[Asset, list[Asset]] = {}
    for shard in shards:
        if shard in before:
            groups.setdefault(before[shard], []).append(shard)
    loose = [shard for shard in shards if shard not in before]
    return [*groups.values(), *_connected(loose, topology)]


def _connected(shards: list[Asset], topology: Topology) -> list[list[Asset]]:
    groups = {shard: [shard] for shard in shards}
    for shard in shards:
        for edge in topology.shard[shard].inputs:
            one, other = groups[shard], groups.get(topology.producer[edge])
            if other is not None and other is not one:
                one.extend(other)
                for each in other:
                    groups[each] = one
    return [sorted(groups[shard]) for shard in shards if min(groups[shard]) == shard]


def _cut(group: list[Asset], costs: dict[Asset, ShardCost], capture_max_ns: int) -> list[list[Asset]]:
    """The group itself, or single shards: what of them belongs together is found by merging."""
    ratios = [costs[shard].ratio for shard in group]
    too_dear = _capture_ns(group, costs) * 100 > capture_max_ns * MARGIN_PERCENT
    return [[shard] for shard in group] if too_dear or max(ratios) > 2 * ALIKE * min(ratios) else [group]


def _merged(groups: list[list[Asset]], costs: dict[Asset, ShardCost], capture_max_ns: int) -> list[list[Asset]]:
    """Neighbours in the order of their ratios, the most similar two first."""
    groups = sorted(groups, key=lambda group: (_ratio(group, costs), group[0]))
    while True:
        pairs = [
            (_ratio(groups[i + 1], costs) / _ratio(groups[i], costs), i)
            for i in range(len(groups) - 1)
            if _capture_ns(groups[i], costs) + _capture_ns(groups[i + 1], costs) <= capture_max_ns
        ]
        if not pairs or min(pairs)[0] > ALIKE:
            return groups
        i = min(pairs)[1]
        groups[i : i + 2] = [groups[i] + groups[i + 1]]


def _capture_ns(group: list[Asset], costs: dict[Asset, ShardCost]) -> int:
    return sum(costs[shard].capture_ns for shard in group)


def _ratio(group: list[Asset], costs: dict[Asset, ShardCost]) -> float:
    return max(1, sum(costs[shard].load for shard in group)) / max(1, _capture_ns(group, costs))

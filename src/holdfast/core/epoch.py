"""An assignment epoch: the time until every node has finished a checkpoint cycle, and what recoveries would have taken
(cooperative-ha §6.2).

A cycle of a node is over when everything that it runs was captured and pasted once, or has nothing to capture. Before
that, a mean says little: under `min_max` the recovery time grows until the last unit of a cycle has its turn (§5.4). A
node looks at its expected recovery times with every tick, and tells their means and the number of its cycles together
with its load. The coordinator adds them up. While a copy joins or moves, what is seen belongs to neither assignment:
the epoch begins anew.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.core.agenda import exposures, images_of
from holdfast.core.assign import UnitShare
from holdfast.core.host import Host
from holdfast.core.recovery import HaSegment, Outlook
from holdfast.model.ids import Asset, Name, Seat, name_of, seat_of
from holdfast.model.messages import Loads
from holdfast.model.record import Record


class Exposed:
    """A node's part: means since it was last asked, and cycles since it started."""

    __slots__ = ("_began", "_host", "_looks", "_query_ns", "_units", "cycles")

    def __init__(self, host: Host) -> None:
        self._host = host
        self._units: dict[Asset, int] = {}
        self._query_ns = 0
        self._looks = 0
        #: The round of every shard when the present cycle began; those that are through are out of it.
        self._began: dict[Asset, int] | None = None
        self.cycles = 0

    def look(self, now_ns: int) -> None:
        name = name_of(self._host.seat)
        found = [each for each in exposures(self._host, now_ns) if each.segment.primary == name]
        for each in found:
            self._units[each.unit] = self._units.get(each.unit, 0) + each.recovery_ns()
        self._query_ns += Outlook(found).query_ns(name)
        self._looks += 1
        self._count_cycle()

    def take(self) -> tuple[dict[Asset, int], int]:
        """Mean R of every unit, and of the worst segment; then they begin anew."""
        looks = max(1, self._looks)
        found = {unit: total // looks for unit, total in self._units.items()}, self._query_ns // looks
        self._units, self._query_ns, self._looks = {}, 0, 0
        return found

    def _count_cycle(self) -> None:
        guards = {shard: images_of(runner) for shard, runner in self._host.runners.items()}
        protected = {shard: guard for shard, guard in guards.items() if guard is not None and guard.place.backup}
        if self._began is None:
            self._began = {shard: guard.number for shard, guard in protected.items()}
        for shard, round_ in list(self._began.items()):
            guard = protected.get(shard)
            if guard is None or (not guard.waiting and (guard.number != round_ or not guard.copy.consumed_since)):
                del self._began[shard]
        if not self._began:
            self.cycles += 1
            self._began = None


class Epoch:
    """The coordinator's part."""

    __slots__ = ("_began", "_cycles", "_queries", "_units")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """What is told from now on is of a new epoch."""
        self._began: dict[Seat, int] = {}
        self._cycles: dict[Seat, int] = {}
        #: Sums of means, and how many there are.
        self._units: dict[Asset, tuple[int, int]] = {}
        self._queries: dict[Name, tuple[int, int]] = {}

    def on_loads(self, source: Seat, message: Loads, record: Record) -> None:
        """Only the seat that the record names speaks for a shard."""
        if any(place.joining or place.moving for place in record.places.values()):
            self.clear()
            return
        self._began.setdefault(source, message.cycles)
        self._cycles[source] = message.cycles
        for unit, mean_ns in message.recovery.items():
            if unit in record.places and record.places[unit].primary == source:
                self._units[unit] = _added(self._units.get(unit), mean_ns)
        self._queries[name_of(source)] = _added(self._queries.get(name_of(source)), message.query_ns)

    def is_over(self, record: Record) -> bool:
        """Has every member finished a cycle?"""
        seats = [seat_of(name, life) for name, life in record.members.items()]
        return all(seat in self._cycles and self._cycles[seat] > self._began[seat] for seat in seats)

    def shares(self, record: Record, images: Mapping[Asset, int]) -> list[UnitShare]:
        """What every unit had in it; `images` is what its image costs the backup."""
        found = []
        for unit, (total_ns, count) in sorted(self._units.items()):
            place = record.places[unit]
            if place.primary and place.backup and not place.twin:
                segment = HaSegment(name_of(place.primary), name_of(place.backup))
                found.append(UnitShare(unit, segment, total_ns // count, images.get(unit, 0)))
        return found

    def queries(self) -> dict[Name, int]:
        return {name: total_ns // count for name, (total_ns, count) in self._queries.items()}


def _added(before: tuple[int, int] | None, more: int) -> tuple[int, int]:
    total, count = before or (0, 0)
    return total + more, count + 1

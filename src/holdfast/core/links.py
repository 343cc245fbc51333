"""Who cannot hear whom: which links between members are cut, and which of them something needs.

A member that hears the coordinator but not another member says so (`Unheard`), at every tick. The coordinator believes
it only while it hears both of them itself, and both have the newest record: so a member that is dead, asleep, or does
not know yet whom to send heartbeats to is not taken for one behind a cut. What has been said for `cut_ns` without a gap
is a cut, in both directions, until nobody has said it for `mend_ns`. The second time is much longer than the first: a
link that comes and goes moves things once, not back and forth.

Nobody is removed for a cut: both ends are alive. What needs the link goes around it (`core/detours.py`). A cut from the
coordinator itself is another matter: whom it does not hear is silent, and may be removed by a majority.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from holdfast.core.election import Election, Standing
from holdfast.core.ready import Ready
from holdfast.model import notes
from holdfast.model.config import Config
from holdfast.model.ids import Address, Asset, Name, asset_id, ledger_of, name_of
from holdfast.model.messages import Unheard
from holdfast.model.record import Place, Record
from holdfast.model.topology import Topology

#: Two members, in the order of their names.
Link = tuple[Name, Name]


def link(one: Name, other: Name) -> Link:
    return (one, other) if one < other else (other, one)


class Wires:
    """Which assets talk to each other, whoever has them."""

    __slots__ = ("fed_by", "feeds", "streams")

    def __init__(self, topology: Topology) -> None:
        #: A stage hands over to every holder of its shards and of its ledger; the same, from their side.
        self.feeds: dict[Asset, tuple[Asset, ...]] = {}
        self.fed_by: dict[Asset, list[Asset]] = {}
        #: Rows go from primary to primary, or from a primary to a sink.
        self.streams: dict[Asset, list[Asset]] = {}
        for stage in topology.stages:
            if stage.shards and not stage.foreign:
                self.feeds[stage.id] = (*stage.shards, ledger_of(stage.id))
                for asset in self.feeds[stage.id]:
                    self.fed_by.setdefault(asset, []).append(stage.id)
        for edge, consumers in topology.consumers.items():
            for consumer in map(asset_id, consumers):
                if consumer in topology.placed:
                    self.streams.setdefault(topology.producer[edge], []).append(consumer)
                    self.streams.setdefault(consumer, []).append(topology.producer[edge])

    def links_of(self, asset: Asset, places: Mapping[Asset, Place]) -> Iterator[Link]:
        """The links that its copies need, to each other and to what it talks to; some more than once."""
        place = places[asset]
        if place.primary is None:
            return
        here = name_of(place.primary)
        if not place.is_stage:
            yield from (link(here, name_of(seat)) for seat in place.holders if seat != place.primary)
        for other in self.feeds.get(asset, ()):
            yield from (link(here, name_of(seat)) for seat in places[other].holders)
        for other in self.fed_by.get(asset, ()):
            driver = places[other].primary
            if driver is not None:
                yield from (link(name_of(driver), name_of(seat)) for seat in place.holders)
        for other in self.streams.get(asset, ()):
            seat = places[other].primary
            if seat is not None:
                yield link(here, name_of(seat))

    def neighbours(self, name: Name, places: Mapping[Asset, Place]) -> frozenset[Name]:
        """Members to whom this one must have a link."""
        found: set[Name] = set()
        for asset in places:
            for pair in self.links_of(asset, places):
                if name in pair:
                    found.update(pair)
        return frozenset(found - {name})


class LinkView:
    """The cuts as a coordinator knows them, for one plan."""

    __slots__ = ("cuts", "wires")

    def __init__(self, wires: Wires, cuts: frozenset[Link]) -> None:
        self.wires = wires
        self.cuts = cuts

    def is_cut(self, one: Name, other: Name) -> bool:
        return link(one, other) in self.cuts

    def strain(self, asset: Asset, places: Mapping[Asset, Place]) -> int:
        """How many links that it needs are cut."""
        return sum(pair in self.cuts for pair in self.wires.links_of(asset, places)) if self.cuts else 0


#: Everybody hears everybody.
NO_CUTS = LinkView(Wires(Topology(shards=(), stages=(), readers=())), frozenset())


class LinkWatch:
    """A node's part of it: says whom it does not hear; as coordinator, finds out which links are cut."""

    __slots__ = ("_changed", "_cuts", "_election", "_members", "_said", "config", "name", "wires")

    def __init__(self, name: Name, topology: Topology, election: Election, config: Config) -> None:
        self.name = name
        self.config = config
        self.wires = Wires(topology)
        self._election = election
        #: Since when, and when last, somebody said without a gap that it does not hear somebody: (hearer, silent one).
        self._said: dict[tuple[Name, Name], tuple[int, int]] = {}
        #: When each cut was last heard of.
        self._cuts: dict[Link, int] = {}
        self._changed = False
        #: By the last record: members and the life each is in.
        self._members: dict[Name, int] = {}

    def neighbours(self, record: Record) -> frozenset[Name]:
        return self.wires.neighbours(self.name, record.places)

    def report(self, unheard: tuple[Name, ...]) -> list[Unheard]:
        """For the coordinator. Who is cut off from it is its own business."""
        coordinator = self._election.coordinator
        names = tuple(sorted(name for name in unheard if name != coordinator))
        return [Unheard(members=names)] if names and coordinator != self.name else []

    def on_record(self, record: Record) -> None:
        """Who is not a member (any more) has no links. What was said of an earlier life of one says nothing of this."""
        before, self._members = self._members, record.members
        members = record.members
        same = {name for name, life in members.items() if before.get(name) == life}
        self._said = {pair: times for pair, times in self._said.items() if pair[0] in same and pair[1] in same}
        self._cuts = {pair: last for pair, last in self._cuts.items() if pair[0] in members and pair[1] in members}

    def on_unheard(self, source: Address, message: Unheard, now_ns: int, ready: Ready) -> None:
        hearer = name_of(source)
        if self._election.standing is not Standing.COORDINATOR:
            return
        for silent in message.members:
            if hearer == self.name or silent in (self.name, hearer) or silent not in self._election.accepted.members:
                continue
            if not (self._hears(hearer, now_ns) and self._hears(silent, now_ns)):
                self._said.pop((hearer, silent), None)
                continue
            if not (self._is_up_to_date(hearer) and self._is_up_to_date(silent)):
                continue
            first_ns, last_ns = self._said.get((hearer, silent), (now_ns, now_ns))
            if now_ns - last_ns > self._gap_ns:
                first_ns = now_ns
            self._said[(hearer, silent)] = (first_ns, now_ns)
            if now_ns - first_ns >= self.config.cut_ns:
                self._take(link(hearer, silent), now_ns, ready)

    @property
    def _gap_ns(self) -> int:
        return self.config.misses_max * self.config.heartbeat_ns

    def _hears(self, name: Name, now_ns: int) -> bool:
        return self._election.silence_ns(name, now_ns) <= self._gap_ns

    def _is_up_to_date(self, name: Name) -> bool:
        """Does it have the newest record? By another one it may send its heartbeats to others than those who wait for
        them: one that was started again, say, and that the coordinator hears but does not reach."""
        return name in self._election.appended

    def _take(self, pair: Link, now_ns: int, ready: Ready) -> None:
        if pair not in self._cuts:
            ready.notes.append(notes.LinkCut(self.name, *pair))
            self._changed = True
        self._cuts[pair] = now_ns

    def on_tick(self, now_ns: int, ready: Ready) -> None:
        if self._election.standing is not Standing.COORDINATOR:
            self._said, self._cuts, self._changed = {}, {}, False
        for pair in [pair for pair, last_ns in self._cuts.items() if now_ns - last_ns > self.config.mend_ns]:
            del self._cuts[pair]
            self._changed = True
            ready.notes.append(notes.LinkMended(self.name, *pair))

    def is_due(self) -> bool:
        """Is there news that nobody has planned with?"""
        return self._changed

    def take(self) -> LinkView:
        self._changed = False
        return LinkView(self.wires, frozenset(self._cuts))

    def cuts(self) -> list[Link]:
        return sorted(self._cuts)

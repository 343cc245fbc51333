"""Twins, checked: who runs beside a primary may, and only one of the two is said to lag."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core.protect import Twin
from holdfast.core.runner import Runner
from holdfast.model import notes
from holdfast.model.ids import Address, Asset, name_of
from holdfast.model.record import Record
from holdfast.sim.world import World


class TwinRules:
    """A part of the checker; `fail` is the checker's. (Whether rows are right is looked at beside those of stand-ins,
    and that nothing is acknowledged beyond a copy where all acknowledgements are.)"""

    def __init__(self, world: World, fail: Callable[[str, str], None], record: Callable[[], Record]) -> None:
        self.world = world
        self.fail = fail
        #: The newest record.
        self.record = record
        #: Who has run as a twin, of which shard and at which epoch.
        self.ran: set[tuple[Asset, int, Address]] = set()
        self.count = 0

    def rules(self) -> dict[type[notes.Note], Callable[..., None]]:
        return {notes.RunsBeside: self.on_runs_beside, notes.Lags: self.on_lags}

    def on_runs_beside(self, source: Address, note: notes.RunsBeside) -> None:
        node = self.world.processes[name_of(source)].machine
        place = node.record.places[note.shard]  # type: ignore[attr-defined]
        if (place.twin, place.epoch, place.primary) != (source, note.epoch, note.primary):
            self.fail("runs beside a primary where it may not", f"{note}: {place}")
        self.ran.add((note.shard, note.epoch, source))
        self.count += 1

    def on_lags(self, source: Address, note: notes.Lags) -> None:
        """Only of one of the two that run, by one of them."""
        node = self.world.processes[name_of(source)].machine
        place = node.record.places[note.shard]  # type: ignore[attr-defined]
        if not place.twin or source not in place.running or note.seat not in place.running:
            self.fail("says of a copy that it lags which does not run", f"{note} on {source}: {place}")

    def idle(self) -> list[Asset]:
        """Shards of which the record names a second copy that does not run, or of which the primary does not
        acknowledge what both have consumed. When all is healed there is none: else mode `active` would be one copy,
        and nobody would see it before queues are full."""
        return [shard for shard in self.world.topology.shard if not self._is_whole(shard)]

    def _is_whole(self, shard: Asset) -> bool:
        place = self.record().places[shard]
        if place.twin is None:
            return True
        here, there = (self._runner(seat, shard) for seat in place.running)
        if here is None or there is None:
            return False
        known = [guard.safe() for guard in here.guards if isinstance(guard, Twin)]
        return known == [here.copy.positions()] == [there.copy.positions()]

    def _runner(self, seat: Address, shard: Asset) -> Runner | None:
        node = self.world.node(name_of(seat))
        return node.host.runners.get(shard) if node is not None and node.seat == seat else None

    def runs(self, shard: Asset, epoch: int, source: Address) -> bool:
        return (shard, epoch, source) in self.ran

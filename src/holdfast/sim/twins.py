"""Twins, checked: who runs beside a primary may, and only one of the two is said to lag."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.model import notes
from holdfast.model.ids import Address, Asset, name_of
from holdfast.sim.world import World


class TwinRules:
    """A part of the checker; `fail` is the checker's. (Whether rows are right is looked at beside those of stand-ins,
    and that nothing is acknowledged beyond a copy where all acknowledgements are.)"""

    def __init__(self, world: World, fail: Callable[[str, str], None]) -> None:
        self.world = world
        self.fail = fail
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

    def runs(self, shard: Asset, epoch: int, source: Address) -> bool:
        return (shard, epoch, source) in self.ran

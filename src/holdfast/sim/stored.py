"""Rules about the stable store: what is said to be there is, and a restore lacks nothing."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.model import notes
from holdfast.model.ids import Address, Asset, Edge, name_of, stage_edge
from holdfast.model.record import Record
from holdfast.sim.world import World


class StoreRules:
    __slots__ = ("fail", "record", "world")

    def __init__(self, world: World, fail: Callable[[str, str], None], record: Callable[[], Record]) -> None:
        self.world = world
        self.fail = fail
        self.record = record

    def _lacks(self, shard: Asset, wanted: dict[Edge, int]) -> bool:
        """Would a restore of this shard begin before these positions?"""
        newest = self.world.store.newest.get(shard)
        return any((newest.head.to[edge] if newest else 0) < at for edge, at in wanted.items())

    def rules(self) -> dict[type[notes.Note], Callable[..., None]]:
        return {notes.Stored: self.on_stored, notes.Restored: self.on_restored, notes.Logged: self.on_logged}

    def on_stored(self, source: Address, note: notes.Stored) -> None:
        if self._lacks(note.shard, dict(note.to)):
            self.fail("said to be stored before it was", str(note))

    def on_restored(self, source: Address, note: notes.Restored) -> None:
        """By the record that its node knows. A later one may be decided elsewhere; then the store and all consumers
        refuse whatever this copy says."""
        node = self.world.processes[name_of(source)].machine
        place = node.record.places[note.shard]  # type: ignore[attr-defined]
        if (
            place.restored != note.epoch
            or place.primary != source
            or note.epoch > self.record().places[note.shard].epoch
        ):
            self.fail("restored by a copy that is not to", f"{note}: {place}")

    def on_logged(self, source: Address, note: notes.Logged) -> None:
        for shard in self.world.topology.stage[note.stage].shards:
            tries = self.world.store.log.get(stage_edge(note.stage, shard), {})
            if (note.batch, note.epoch, note.attempt) not in tries:
                self.fail("said to be logged before it was", str(note))

    def on_trimmed(self, note: notes.Trimmed, reader: Asset, record: Record) -> None:
        stored = reader in self.world.topology.shard and record.protection_of(reader).is_stored
        if stored and self._lacks(reader, {note.edge: note.trimmed}):
            self.fail("trimmed what a restore needs", f"{note}: {reader}")

    def on_acked(self, note: notes.Acked, record: Record) -> None:
        if record.protection_of(note.shard).is_stored and self._lacks(note.shard, {note.edge: note.position}):
            self.fail("acknowledged before it is in the store", str(note))

"""Mode `replay`, checked: whoever begins at a horizon gets all that it needs, and nobody needs what it leaves out."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.model import notes
from holdfast.model.ids import Address, asset_id, name_of
from holdfast.model.record import Record
from holdfast.sim.world import World


class ReplayRules:
    """A part of the checker; `fail` is the checker's. (That rows made again are right is looked at like all that is
    emitted, and that nothing is acknowledged beyond a keeper where all acknowledgements are.)"""

    def __init__(self, world: World, fail: Callable[[str, str], None], record: Callable[[], Record]) -> None:
        self.world = world
        self.fail = fail
        self.record = record
        self.count = 0

    def rules(self) -> dict[type[notes.Note], Callable[..., None]]:
        return {notes.InputKept: self.on_input_kept}

    def on_input_kept(self, source: Address, note: notes.InputKept) -> None:
        copy = self.world.processes[name_of(source)].machine.host.copies[note.shard]  # type: ignore[attr-defined]
        self.count += 1
        for queue in copy.outputs:
            for consumer in queue.owners:
                self._look_at_reader(note, queue.edge, queue.next, consumer)
        kept = [(i.position, i.inbox.sealed[0].start) for i in copy.inputs if i.inbox is not None and i.inbox.sealed]
        if any(start > position for position, start in kept):
            self.fail("a keeper does not have the input that it begins with", f"{note} on {source}")

    def _look_at_reader(self, note: notes.InputKept, edge: str, at: int, consumer: str) -> None:
        """No copy of a consuming shard may need what would not be made again."""
        place = self.record().place_of(consumer)  # type: ignore[arg-type]
        shard = asset_id(consumer)
        if place is None or shard not in self.world.topology.shard:
            return
        for seat in (place.primary, place.backup):
            process = self.world.route(seat) if seat else None
            reader = process.machine.host.copies.get(shard) if process else None  # type: ignore[attr-defined]
            if reader is not None and reader.based and not reader.landing and reader.holds_to(edge) < at:
                detail = f"{note}: {edge} comes again from {at} on, and {consumer} is on {seat}"
                self.fail("would not make again what a consumer needs", detail)

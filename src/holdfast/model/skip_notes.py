"""Notes about a shard that stands still, and what it passes over: notes as those of `model/notes.py` are."""

from __future__ import annotations

from holdfast.model.ids import Asset, Edge
from holdfast.model.note import Note, Told


class Failed(Note, frozen=True):
    """The operator cannot take the block that begins here: the shard stands still. `way` says how it could go on."""

    checked = False
    told = Told("shard-failed", "{why} {way}")
    shard: Asset
    epoch: int
    edge: Edge
    start: int
    why: str
    way: str

    def parts(self) -> tuple[object, ...]:
        return (self.shard, self.epoch, self.edge, self.start)


class GaveUp(Note, frozen=True):
    """A primary will not step this block at this epoch, and asks for the record that says so."""

    checked = True
    told = Told("skip-wanted", "{shard} shall pass over {what}: the record is asked for it.")
    shard: Asset
    epoch: int
    edge: Edge
    start: int
    what: str


class Skipped(Note, frozen=True):
    """A running copy has passed over a block, as the record says; its rows are dead letters."""

    checked = True
    told = Told("skipped", "{shard} has passed over {what}: its {rows} rows are dead letters.")
    shard: Asset
    epoch: int
    edge: Edge
    start: int
    rows: int
    what: str

"""Notes about modes: switches, and stand-ins.

They are notes as those of `model/notes.py`, which brings all of them together, are.
"""

from __future__ import annotations

from holdfast.model.block import Block
from holdfast.model.ids import Asset, Edge, Seat
from holdfast.model.note import Note, Told


class ModeChanged(Note, frozen=True):
    """From here on a running shard is protected, and acknowledges, by the rule of this mode."""

    checked = False
    told = Told("mode", "{shard} is in mode {mode} from record {since} on.")
    shard: Asset
    mode: str
    epoch: int
    since: int


class StandsIn(Note, frozen=True):
    """An image runs on beside a primary that is late."""

    checked = True
    told = Told("stands-in", "{seat} stands in for {primary}, which is late, as primary of {shard} (epoch {epoch}).")
    shard: Asset
    seat: Seat
    epoch: int
    primary: Seat


class EmittedBeside(Note, frozen=True):
    """A stand-in has made what its primary makes, or will."""

    checked = True
    shard: Asset
    edge: Edge
    epoch: int
    block: Block

    def parts(self) -> tuple[object, ...]:
        return (self.shard, self.edge, f"epoch={self.epoch}", self.block)


class StandsDown(Note, frozen=True):
    """A stand-in is an image again, or (`kept`) goes on as the primary."""

    checked = True
    told = Told("stands-down", "{seat} no longer stands in for the primary of {shard}: {why}.")
    shard: Asset
    seat: Seat
    epoch: int
    kept: bool
    why: str

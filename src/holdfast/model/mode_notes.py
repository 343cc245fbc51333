"""Notes about modes: switches, stand-ins, twins, and recoveries.

They are notes as those of `model/notes.py`, which brings all of them together, are.
"""

from __future__ import annotations

from holdfast.model.block import Block
from holdfast.model.ids import Asset, Edge, Name, Seat
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


class RunsBeside(Note, frozen=True):
    """A twin runs, from these positions on."""

    checked = True
    told = Told("runs-beside", "{seat} runs {shard} beside {primary} (epoch {epoch}).")
    shard: Asset
    seat: Seat
    epoch: int
    primary: Seat
    positions: tuple[int, ...]


class NotInTime(Note, frozen=True):
    """If this node failed now, a recovery would take longer than its operators allow: (shards, expected, allowed)."""

    checked = False
    told = Told(
        "recover-in", "If {node} failed now, a recovery by {backup} would take too long ({shards} shards): {why}.", 30
    )
    node: Name
    backup: Name
    shards: int
    expected_ns: int
    wanted_ns: int
    why: str


class NoObjective(Note, frozen=True):
    """An operator has an objective, and is in a mode in which nobody goes on from a copy of its state."""

    checked = False
    told = Told("recover-in", "recover_in of {operator} has no effect in mode {mode}: its state is not kept.", 30)
    operator: str
    mode: str


class InTimeAgain(Note, frozen=True):
    checked = False
    told = Told("recovers-in-time", "If {node} failed now, {backup} would recover {shards} shards in time again.")
    node: Name
    backup: Name
    shards: int
    expected_ns: int
    wanted_ns: int


class Lags(Note, frozen=True):
    """One of two copies that run cannot keep up with the other, or cannot go on: it shall join anew."""

    checked = True
    told = Told("lags", "{seat} shall get the state of {shard} anew: {why}.")
    shard: Asset
    seat: Seat
    epoch: int
    why: str


class InputKept(Note, frozen=True):
    """A keeper begins at these positions if its primary fails, and stands where that stood at those."""

    checked = True
    shard: Asset
    seat: Seat
    epoch: int
    start: tuple[int, ...]
    to: tuple[int, ...]


class ReplayOver(Note, frozen=True):
    """Windows of a shard in mode replay need so much input that no more could be taken soon."""

    checked = False
    told = Told("replay-over", "Open windows of {shard} need more input than may be kept: mode passive is asked for.")
    shard: Asset
    epoch: int


class EmittedBeside(Note, frozen=True):
    """A stand-in or a twin has made what its primary makes, or will."""

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


class Recovered(Note, frozen=True):
    """What a node took over from one that failed has caught up: what was expected, what its operators worked, and the
    time from the record to the end of it."""

    checked = False
    failed: Name
    seat: Seat
    shards: int
    expected_ns: int
    worked_ns: int
    took_ns: int

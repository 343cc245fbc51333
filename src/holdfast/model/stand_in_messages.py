"""Messages of stand-ins and twins: who is late, who runs beside whom, and who is back (hybrid-ha §IV-B).

They are messages as those of `model/messages.py`, which brings all of them together, are.
"""

from __future__ import annotations

from holdfast.model.ids import Address, Asset, Edge, Name, Seat
from holdfast.model.message import FencedBy, Message, SaidBy, View
from holdfast.model.ranges import Number, Position


class Missed(Message, frozen=True, kw_only=True):
    """From a monitor to whoever could stand in: a heartbeat of this life of that node has not come. It may be gone, or
    only slow; nothing is decided by this."""

    fenced_by = (FencedBy.LIFE, FencedBy.MEMBER)
    name: Name
    life: Number


class StandIn(Message, frozen=True, kw_only=True):
    """From a stand-in to the primary: I run from my image on, beside you, and stand at `to`. Say when you are back."""

    fenced_by = (FencedBy.THIS_PLACE,)
    said_by = SaidBy.HOLDER
    key = ("shard",)
    shard: Asset
    since: Number
    to: dict[Edge, Position]

    def objection(self, source: Address, view: View) -> str:
        inputs = set(view.topology.shard[self.shard].inputs)
        return "" if set(self.to) == inputs else f"it does not say where every input of {self.shard} stands"


class Back(Message, frozen=True, kw_only=True):
    """From the primary to a stand-in: I stand where you stand, or go on without you. `firm`: do not stand in again at
    this epoch, since I may give a block up."""

    fenced_by = (FencedBy.THIS_PLACE,)
    said_by = SaidBy.PRIMARY
    shard: Asset
    since: Number
    firm: bool = False
    #: To a twin, which does not stop: only this block it shall not take at this epoch.
    block: tuple[Edge, Position] | None = None

    def objection(self, source: Address, view: View) -> str:
        known = self.block is None or self.block[0] in view.topology.shard[self.shard].inputs
        return "" if known else f"{self.shard} does not read that edge"


class StoodDown(Message, frozen=True, kw_only=True):
    """To the primary: I do not run; at this epoch I took input up to `to` at the most. `firm`: and it stays so."""

    fenced_by = (FencedBy.THIS_PLACE,)
    said_by = SaidBy.HOLDER
    shard: Asset
    since: Number
    to: dict[Edge, Position]
    firm: bool = False
    #: Of a twin: I run, and shall not take this block at this epoch.
    block: tuple[Edge, Position] | None = None
    objection = StandIn.objection


class Abreast(Message, frozen=True, kw_only=True):
    """From a copy that runs to the other one (mode active): I have consumed up to `to`. From the primary also: dead
    letters before `kept` are in files."""

    fenced_by = (FencedBy.THIS_PLACE,)
    said_by = SaidBy.HOLDER
    key = ("shard",)
    shard: Asset
    since: Number
    to: dict[Edge, Position]
    kept: Position = 0
    objection = StandIn.objection


class FellBack(Message, frozen=True, kw_only=True):
    """From a copy that runs to the coordinator: this one of the two, perhaps I, cannot keep up or go on. It shall join
    anew; the other one goes on."""

    fenced_by = (FencedBy.PLACE,)
    said_by = SaidBy.HOLDER
    shard: Asset
    since: Number
    seat: Seat

    def objection(self, source: Address, view: View) -> str:
        """An image knows nothing of it; and where only the primary runs, the record would raise its epoch, which no
        primary survives that has nothing to begin anew."""
        place = view.record.places.get(self.shard)
        if place is None or place.since != self.since or {source, self.seat} <= set(place.running):
            return ""
        return f"only copies of {self.shard} that run say this, of copies that run"

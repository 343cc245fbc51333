"""Messages of mode `replay`: from where input is kept on a second node, and from where its output counts.

They are messages as those of `model/messages.py`, which brings all of them together, are.
"""

from __future__ import annotations

from holdfast.model.ids import Address, Asset, Edge, dead_edge
from holdfast.model.message import FencedBy, Message, SaidBy, View, position_ahead
from holdfast.model.parts import OutputPart
from holdfast.model.ranges import Number, Position, Time


class Horizon(Message, frozen=True, kw_only=True):
    """From the primary to its keeper: whoever knows nothing and takes my input from `start` on stands at `to` as I did.
    What comes out before that is of no use; what comes after it is numbered from `outputs` on."""

    fenced_by = (FencedBy.THIS_PLACE,)
    said_by = SaidBy.PRIMARY
    key = ("shard",)
    shard: Asset
    since: Number
    #: Counts what this primary has told its keeper.
    round: Number
    start: dict[Edge, Position]
    #: At `start`: the watermark of every input, the event time before which windows are hidden, and the highest one
    #: that was consumed.
    watermarks: dict[Edge, Time]
    gap: tuple[Time, Time]
    to: dict[Edge, Position]
    #: At `to`; without blocks, since every consumer has acknowledged what came before.
    outputs: dict[Edge, OutputPart]

    def objection(self, source: Address, view: View) -> str:
        spec = view.topology.shard[self.shard]
        inputs = set(spec.inputs)
        if not inputs == set(self.start) == set(self.watermarks) == set(self.to):
            return f"it does not say where every input of {self.shard} stands"
        if any(self.start[edge] > self.to[edge] for edge in inputs):
            return f"it begins after its end: {self.start}, {self.to}"
        if set(self.outputs) != {*spec.outputs, dead_edge(self.shard)}:
            return f"it does not say where every output of {self.shard} stands"
        if any(part.blocks or not part.start == part.trimmed == part.next for part in self.outputs.values()):
            return "it has output, or output that somebody still needs"
        whys = (position_ahead(view, edge, at) for edge, at in self.to.items())
        return next(filter(None, whys), "")


class HorizonKept(Message, frozen=True, kw_only=True):
    """To the primary: I keep the input that this round named, and begin there if you fail."""

    fenced_by = (FencedBy.THIS_PLACE,)
    said_by = SaidBy.HOLDER
    shard: Asset
    since: Number
    round: Number

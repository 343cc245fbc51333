"""What a primary knows of whoever stands in for it (`core/stand_ins.py`) or runs beside it (`core/twins.py`).

A stand-in that has taken more input has put out more: this copy makes the same again. If input of that is lost with its
producer, it cannot, and is then as one that was promoted (`Copy.replays`, set when a stand-in speaks). And a block that
a stand-in has taken, or may take, cannot be given up: before that, the backup promises not to stand in at this epoch
any more.
"""

from __future__ import annotations

from holdfast.core.copy import Copy
from holdfast.core.ready import Ready
from holdfast.model.ids import Edge, Seat
from holdfast.model.messages import Back
from holdfast.model.record import Place

#: Who, at which epoch, and which block only.
Promise = tuple[Seat, int, tuple[Edge, int] | None]


class Stood:
    """Of one shard that runs."""

    __slots__ = ("copy", "firm", "to", "wanted")

    def __init__(self, copy: Copy) -> None:
        self.copy = copy
        #: Up to where stand-ins have taken input, as far as they have said.
        self.to: dict[Edge, int] = {}
        #: Who has promised not to stand in (a twin: not to take which block), and at which epoch.
        self.firm: Promise | None = None
        #: The block that a person wants to be skipped, until it is known whether it can be: (edge, start).
        self.wanted: tuple[Edge, int] | None = None

    def reached(self, edge: Edge) -> int:
        return self.to.get(edge, 0)

    def hear(self, to: dict[Edge, int]) -> bool:
        """A stand-in says how far it is; true if this copy is as far."""
        self.to = {edge: max(at, self.reached(edge)) for edge, at in to.items()}
        return all(self.copy.input(edge).position >= at for edge, at in to.items())

    def may_skip(self, edge: Edge, start: int, place: Place) -> bool:
        """Has no stand-in taken the block that begins there, and will none?"""
        return self.is_firm((edge, start), place, None) and self.reached(edge) <= start

    def is_firm(self, block: tuple[Edge, int], place: Place, ready: Ready | None) -> bool:
        """Can nobody stand in at this epoch, or no twin take this block? Otherwise whoever could is asked to promise
        it, again until it does."""
        seat, only = place.beside, block if place.twin else None
        if seat is None or self.firm == (seat, place.epoch, only):
            return True
        if ready is not None:
            ready.send.append((seat, Back(shard=self.copy.id, since=place.since, firm=True, block=only)))
        return False

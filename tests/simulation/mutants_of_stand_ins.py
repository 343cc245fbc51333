"""Planted bugs in stand-ins."""

from __future__ import annotations

from mutants import Patch, mutant

from holdfast.core.copy import Copy
from holdfast.core.stand_ins import Beside
from holdfast.logs.inbox import Inbox


@mutant
def a_stand_in_stays_what_it_became_when_its_primary_is_back() -> list[Patch]:
    """Its next capture would be pasted into a state that has come further."""
    right = Copy.stand_down

    def stand_down(self, *, keep):
        return right(self, keep=True)

    return [(Copy, "stand_down", stand_down)]


@mutant
def an_image_drops_what_its_stand_in_has_taken() -> list[Patch]:
    """What the inbox keeps for the image is let go of as if a capture had covered it."""
    right = Copy.retake

    def retake(self):
        right(self)
        for i in self.inputs:
            if i.inbox is not None:
                Inbox.drop(i.inbox, i.queue[-1].end if i.queue else i.position)

    return [(Copy, "retake", retake)]


@mutant
def a_stand_in_speaks_at_an_epoch_of_its_own() -> list[Patch]:
    """Consumers then refuse what its primary makes."""

    def flush(self, ready):
        for tap in self.taps.values():
            for queue in self.copy.outputs:
                if any(key[0] == queue.edge and known is tap for key, known in self.taps.items()):
                    tap.flush(queue, self.place.epoch + 1, ready)

    return [(Beside, "flush", flush)]

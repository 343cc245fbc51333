"""Planted bugs in mode `replay`."""

from __future__ import annotations

from msgspec.structs import replace
from mutants import Patch, mutant

from holdfast.core import copy as copies
from holdfast.core import placement
from holdfast.core.protect.horizon import Horizons
from holdfast.model.parts import OutputPart


@mutant
def a_horizon_passes_output_that_a_consumer_has_not_acknowledged() -> list[Patch]:
    """Trap 6: the result of a closed window is lost with its primary, and the replay starts after it."""
    return [(Horizons, "_is_read", lambda self, point: True)]


@mutant
def a_horizon_is_where_output_counts_from() -> list[Patch]:
    """Rows of open windows that came before it are missing."""
    right = Horizons._choose

    def choose(self):
        right(self)
        self.start = self.to

    return [(Horizons, "_choose", choose)]


@mutant
def a_replay_puts_out_what_every_consumer_has() -> list[Patch]:
    """Positions then differ from those of the first time."""
    right = copies.begin_quietly

    def begin_quietly(copy):
        right(copy)
        copy.quiet_to = None

    return [(copies, "begin_quietly", begin_quietly)]


@mutant
def a_primary_acknowledges_before_its_keeper_has_said_that_it_keeps() -> list[Patch]:
    return [(Horizons, "safe", lambda self: self.start.to if self.start else self.safe_at if self.keeper else None)]


@mutant
def until_its_keeper_has_spoken_a_primary_acknowledges_for_itself() -> list[Patch]:
    """Trap 14: the keeper stands where its image stood."""
    right = Horizons.safe
    return [(Horizons, "safe", lambda self: right(self) if self.start else None)]


@mutant
def a_keeper_is_taken_to_stand_where_its_primary_stands() -> list[Patch]:
    """It stands at the last capture that it got when it was a backup, or was brought up."""
    right = Horizons.retarget

    def retarget(self, place):
        before = self.keeper
        right(self, place)
        if self.keeper != before:
            self.safe_at = self.copy.positions()

    return [(Horizons, "retarget", retarget)]


@mutant
def a_keeper_is_taken_for_an_image() -> list[Patch]:
    """Trap 14: from mode replay to one with an image, the record names the mode before there is one."""

    def bring_up_another(made, asset):
        made.put(asset, mode=made.mode_of(asset))

    return [(placement, "_bring_up_another", bring_up_another)]


@mutant
def a_replay_numbers_its_output_from_its_horizon() -> list[Patch]:
    """Trap 7: where output stood is kept of the wrong one of the two points."""
    right = Horizons._message

    def message(self):
        made = right(self)
        parts = {edge: OutputPart(at, at, at, (), made.outputs[edge].acks) for edge, at in self.start.outputs.items()}
        return replace(made, outputs=parts)

    return [(Horizons, "_message", message)]

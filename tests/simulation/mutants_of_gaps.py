"""Planted bugs in empty starts, and in gaps."""

from __future__ import annotations

from mutants import Patch, mutant

from holdfast.core import placement
from holdfast.core.copy import Copy
from holdfast.logs.inbox import Inbox
from holdfast.logs.output_queue import OutputQueue
from holdfast.model.ids import is_ledger, name_of
from holdfast.sim.operators import WindowSum


@mutant
def an_empty_start_numbers_its_output_from_zero() -> list[Patch]:
    begin = OutputQueue.begin
    return [(OutputQueue, "begin", lambda self, base: begin(self, 0))]


@mutant
def a_hidden_window_is_emitted() -> list[Patch]:
    return [(WindowSum, "hide", lambda self, to: None)]


@mutant
def a_gap_is_not_handed_on() -> list[Patch]:
    """A shard behind another goes on as if nothing were missing."""
    return [(Copy, "hide", lambda self, to: [])]


@mutant
def a_protected_shard_starts_empty() -> list[Patch]:
    """The image is there, and is not used."""
    leave = placement._leave

    def forget(made, name, *, gone_for_good):
        for asset in made.places if gone_for_good else ():
            primary = made.places[asset].primary
            if not is_ledger(asset) and primary and name_of(primary) == name:
                made.put(asset, backup=None)
        leave(made, name, gone_for_good=gone_for_good)

    start = lambda place: not place.is_stage  # noqa: E731
    return [(placement, "_leave", forget), (placement, "_may_start_empty", start)]


@mutant
def a_copy_that_was_promoted_jumps_over_lost_input() -> list[Patch]:
    """It makes other rows at positions that the copy before it has used."""
    promote = Copy.promote

    def never_replays(self, leases_until_ns):
        promote(self, leases_until_ns)
        self.replays = False

    return [(Copy, "promote", never_replays)]


@mutant
def an_empty_start_does_not_skip_what_the_copy_before_it_took() -> list[Patch]:
    """What it is told about event times is not used."""
    land = Copy.land
    return [(Copy, "land", lambda self, to: land(self, 0))]


@mutant
def an_empty_start_begins_after_a_batch_that_it_holds() -> list[Patch]:
    stand = Inbox._stand

    def later(self, commit):
        held, self.held = self.held, {}
        stand(self, commit)
        self.held = {batch: one for batch, one in held.items() if batch > self.last}

    return [(Inbox, "_stand", later)]

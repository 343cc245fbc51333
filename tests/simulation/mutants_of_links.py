"""Planted bugs in links that are cut: looked for where one stays cut for long, and output must go on."""

from __future__ import annotations

from mutants import Patch, mutant

from holdfast.core import detours, placement
from holdfast.core.detector import Detector
from holdfast.core.links import LinkWatch, Wires


@mutant
def nothing_goes_around_a_cut() -> list[Patch]:
    """As it was before: the coordinator hears both, so nothing happens."""
    return [(placement, "go_around", lambda made: None)]


@mutant
def nobody_says_whom_it_does_not_hear() -> list[Patch]:
    return [(LinkWatch, "report", lambda self, unheard: [])]


@mutant
def a_backup_out_of_reach_is_kept() -> list[Patch]:
    return [(detours, "_part", lambda made, asset: None)]


@mutant
def a_stage_may_run_where_it_reaches_no_holder() -> list[Patch]:
    """What it hands over to is left out of the links that it needs."""
    right = Wires.links_of

    def links_of(self, asset, places):
        return () if places[asset].is_stage else right(self, asset, places)

    return [(Wires, "links_of", links_of)]


@mutant
def a_new_backup_is_put_behind_the_cut() -> list[Patch]:
    return [(placement, "may_hold", lambda *_: True), (placement, "strain_at", lambda *_, **__: 0)]


@mutant
def things_move_to_and_fro_before_a_cut() -> list[Patch]:
    """To get another backup is taken for as good as to move to the one there is."""
    return [(detours, "_ORDER", ("backup of", "primary of", "stage"))]


@mutant
def only_the_ring_is_heard() -> list[Patch]:
    """The silence of all but the watched member means nothing."""
    right = Detector.on_tick

    def on_tick(self, now_ns):
        found = right(self, now_ns)
        self.unheard = tuple(name for name in self.unheard if name == self.watched)
        return found

    return [(Detector, "on_tick", on_tick)]

"""Planted bugs in copies that run at once."""

from __future__ import annotations

from msgspec.structs import replace
from mutants import Patch, mutant

from holdfast.core import placement
from holdfast.core.protect import Twin
from holdfast.core.runner import Runner
from holdfast.core.twins import Twins


@mutant
def a_primary_acknowledges_what_its_twin_has_not_consumed() -> list[Patch]:
    return [(Twin, "safe", lambda self: None)]


@mutant
def until_a_new_twin_has_spoken_a_primary_acknowledges_for_itself() -> list[Patch]:
    """Trap 5: the twin stands where its image stood."""
    right = Twin.safe
    return [(Twin, "safe", lambda self: right(self) if self.to else None)]


@mutant
def one_of_two_passes_over_lost_input() -> list[Patch]:
    """The other one may have taken it."""
    right = Runner.on_place

    def on_place(self, place, protection, now_ns, ready):
        before = self.copy.replays
        right(self, place, protection, now_ns, ready)
        self.copy.replays = before

    return [(Runner, "on_place", on_place)]


@mutant
def one_of_two_speaks_at_its_old_epoch() -> list[Patch]:
    right = Runner._go_on

    def go_on(self, place, now_ns, ready, *, one_of_two):
        epoch = self.outlet.epoch
        right(self, place, now_ns, ready, one_of_two=one_of_two)
        self.outlet.epoch = epoch if one_of_two else self.outlet.epoch

    return [(Runner, "_go_on", go_on)]


@mutant
def a_copy_that_falls_back_is_waited_for() -> list[Patch]:
    """Trap 4: nothing is acknowledged beyond it, queues fill, and all stops."""
    return [(Twin, "_is_behind", lambda self: False)]


@mutant
def a_twin_lets_go_of_dead_letters_that_nobody_has_written() -> list[Patch]:
    right = Twin.hear

    def hear(self, source, message):
        right(self, source, replace(message, kept=self.copy.dead.next))

    return [(Twin, "hear", hear)]


@mutant
def a_twin_becomes_the_backup_as_it_is() -> list[Patch]:
    """It is further than any image, or not as far: the next capture does not continue it."""

    def let_go(made, asset):
        made.put(asset, mode=made.mode_of(asset))

    return [(placement, "_bring_up_another", let_go)]


@mutant
def a_twin_captures_and_acknowledges_like_a_primary() -> list[Patch]:
    return [(Runner, "is_primary", property(lambda self: True))]


@mutant
def a_twin_is_named_and_does_not_run() -> list[Patch]:
    """All goes well until its primary fails, or queues are full."""
    return [(Twins, "start", lambda self, *of: None), (Twins, "reports", lambda self: [])]


@mutant
def a_twin_does_not_say_how_far_it_is() -> list[Patch]:
    return [(Twin, "tell", lambda self, ready: None)]

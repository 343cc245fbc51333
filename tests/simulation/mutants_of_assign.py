"""Planted bugs in who backs up what: epochs, figure 6, and failure domains."""

from __future__ import annotations

from mutants import Patch, mutant

from holdfast.core import assign, balance, placement
from holdfast.core.epoch import Epoch, Exposed


@mutant
def a_unit_is_given_to_a_backup_that_has_no_image_of_it() -> list[Patch]:
    right = balance.reassign

    def reassign(made):
        right(made)
        for move in made.reassigned:
            made.put(move.unit, backup=made.places[move.unit].joining, joining=None)

    return [(placement, "reassign", reassign)]


@mutant
def an_epoch_is_over_whenever_a_balance_is_looked_at() -> list[Patch]:
    return [(Epoch, "is_over", lambda self, record: bool(self._cycles))]


@mutant
def cycles_are_counted_back() -> list[Patch]:
    right = Exposed.take

    def take(self):
        self.cycles = max(0, self.cycles - 1)
        return right(self)

    return [(Exposed, "take", take)]


@mutant
def two_segments_swap_again_and_again() -> list[Patch]:
    """Line 7 alone: as much moves as one segment is longer than the other."""

    def move(self, primary, source, target):
        high_ns, low_ns = self.segment_ns(primary, source), self.segment_ns(primary, target)
        units = self._units[assign.HaSegment(primary, source)] if high_ns > low_ns else []
        left = (high_ns - low_ns) * sum(unit.backup_ns for unit in units) // max(1, high_ns)
        found = []
        for unit in units:
            if unit.backup_ns <= left:
                found.append(assign.Reassign(unit.unit, source, target, high_ns, low_ns, unit.recovery_ns))
                left -= unit.backup_ns
        return found

    return [(assign.Assignment, "_move", move)]


@mutant
def a_backup_goes_to_the_rack_of_its_primary() -> list[Patch]:
    return [(placement.Draft, "shared", lambda self, asset, name: 0)]

"""Planted bugs in how load is measured and what is made of it."""

from __future__ import annotations

from mutants import Patch, mutant

from holdfast.core import balance, placement
from holdfast.core.gauge import Gauge
from holdfast.core.load import LoadWatch


@mutant
def backups_are_moved_for_any_difference() -> list[Patch]:
    right = balance.balance

    def too_often(made):
        made.config = type(made.config)(imbalance_ns=1)
        right(made)

    return [(placement, "balance", too_often), (balance, "NOISE", 1 << 40)]


@mutant
def backups_are_moved_whenever_there_is_a_plan() -> list[Patch]:
    def take(self, now_ns):
        self.view.may_move = True
        return self.view

    return [(LoadWatch, "take", take)]


@mutant
def a_gauge_takes_all_the_work_so_far_for_that_of_the_last_moment() -> list[Patch]:
    right = Gauge.look

    def look(self, busy_ns, now_ns, window_ns):
        if self.busy_ns > 0:
            self.busy_ns = 0
        return right(self, busy_ns, now_ns, window_ns)

    return [(Gauge, "look", look)]

"""Planted bugs in skips: each lets two copies make different rows of one batch, or loses the rows of it."""

from __future__ import annotations

from msgspec.structs import replace
from mutants import Patch, mutant

from holdfast.core import placement
from holdfast.core.copy import Copy
from holdfast.core.dead_letters import DeadLetters
from holdfast.core.runner import Runner
from holdfast.core.skips import Skips
from holdfast.model import successor
from holdfast.model.messages import GivenUp, SkipsPassed
from holdfast.sim.operators import WindowSum


@mutant
def only_the_copy_that_gave_up_skips() -> list[Patch]:
    """A copy that takes over steps the batch, if it can."""
    right = Copy.promote

    def promote(self, leases_until_ns):
        right(self, leases_until_ns)
        self.skips = {}

    return [(Copy, "promote", promote)]


@mutant
def a_skip_comes_without_a_new_epoch() -> list[Patch]:
    put, on_place = placement.Draft.put, Runner.on_place

    def same_epoch(self, asset, **fields):
        if fields.get("skips") and "primary" not in fields:
            fields.pop("epoch", None)
        put(self, asset, **fields)

    def goes_on(self, place, protection, now_ns, ready):
        if self.skips.is_granted(place):
            self._go_on(place, now_ns, ready)
        on_place(self, place, protection, now_ns, ready)

    return [
        (placement.Draft, "put", same_epoch),
        (Runner, "on_place", goes_on),
        (successor, "_follows", lambda record, before: ""),
    ]


@mutant
def a_skip_is_forgotten_when_the_primary_has_passed_it() -> list[Patch]:
    """Its backup has not: promoted now, it steps the batch."""
    right = Skips.reports

    def reports(self, shard, place, safe):
        return right(self, shard, place, self.copy.positions())

    return [(Skips, "reports", reports)]


@mutant
def a_primary_asks_for_a_skip_and_still_tries_the_batch() -> list[Patch]:
    """It takes the batch after all while the record skips it: as if what ailed it had passed."""
    right = Skips.reports

    def reports(self, shard, place, safe):
        found = right(self, shard, place, safe)
        if any(isinstance(report, GivenUp) for report in found) and not self.copy.op.torn:
            self.copy.op.poison = {}
            self.copy.condition = type(self.copy.condition).RUNNING
        return found

    return [(Skips, "reports", reports)]


@mutant
def the_rows_of_a_skipped_batch_are_not_kept() -> list[Patch]:
    return [(WindowSum, "letters", lambda self, edge, rows, reason: ())]


@mutant
def the_watermark_of_a_skipped_batch_does_not_count() -> list[Patch]:
    """Only the copy that gave up goes on as if the batch had never come."""
    right = Copy.step

    def step(self):
        source = self.next_input()
        if source.queue and (source.edge, source.queue[0].start) in self.skips and not self.replays:
            source.queue[0] = replace(source.queue[0], watermark=source.watermark)
        return right(self)

    return [(Copy, "step", step)]


@mutant
def a_torn_primary_goes_on_in_place() -> list[Patch]:
    right = Skips.reports

    def reports(self, shard, place, safe):
        found = right(self, shard, place, safe)
        if self.copy.op.torn and not any(isinstance(report, SkipsPassed) for report in found):
            self.copy.condition = type(self.copy.condition).FAILED
            self.copy.op.torn = False
            return [replace(report, torn=False) for report in found]
        return found

    return [(Skips, "reports", reports)]


@mutant
def what_others_have_read_is_skipped() -> list[Patch]:
    """By a copy that alone cannot take a block which the one before it has taken."""
    return [(Skips, "was_read", lambda self: ""), (Skips, "_unheard", lambda self: "")]


@mutant
def dead_letters_in_files_are_not_looked_for() -> list[Patch]:
    """The copy before has set rows aside, at the positions that the rows of the skipped block get."""
    return [(DeadLetters, "find", lambda self, copy, ready: self.kept.setdefault(copy.id, 0))]

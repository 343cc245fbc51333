"""Planted bugs in dead letters: each loses one, doubles one, or sets aside what another copy does not."""

from __future__ import annotations

from mutants import Patch, mutant

from holdfast.core.copy import DEAD_LETTERS, Copy
from holdfast.core.dead_letters import DeadLetters, DeadLetterWrite
from holdfast.logs.output_queue import OutputQueue
from holdfast.sim.operators import WindowSum


@mutant
def dead_letters_are_forgotten_when_they_are_asked_for() -> list[Patch]:
    right = DeadLetters._write

    def write(self, copy, ready):
        right(self, copy, ready)
        copy.dead.ack(DEAD_LETTERS, copy.dead.next)

    return [(DeadLetters, "_write", write)]


@mutant
def dead_letters_that_the_disk_refused_count_as_written() -> list[Patch]:
    right = DeadLetterWrite._refused

    def refused(self, why, now_ns, ready):
        right(self, why, now_ns, ready)
        self.copy.dead.ack(DEAD_LETTERS, self.to)

    return [(DeadLetterWrite, "_refused", refused)]


@mutant
def a_capture_carries_no_dead_letters() -> list[Patch]:
    """An image knows neither what was set aside nor how far its numbers go."""
    return [(Copy, "queues", property(lambda self: tuple(self.outputs)))]


@mutant
def a_promoted_copy_does_not_write_what_it_found() -> list[Patch]:
    right = Copy.promote

    def promote(self, leases_until_ns):
        right(self, leases_until_ns)
        self.dead.ack(DEAD_LETTERS, self.dead.next)

    return [(Copy, "promote", promote)]


@mutant
def each_copy_sets_aside_by_a_rule_of_its_own() -> list[Patch]:
    """As a limit would do that is different on every node."""
    right = WindowSum.restore

    def restore(self):
        right(self)
        self.sum_max *= 2

    return [(WindowSum, "restore", restore)]


@mutant
def a_later_write_means_an_earlier_one() -> list[Patch]:
    """The answer to a write counts for all that was set aside since."""
    right = OutputQueue.ack

    def ack(self, consumer, position, seat=""):
        return right(self, consumer, self.next if consumer == DEAD_LETTERS else position, seat)

    return [(OutputQueue, "ack", ack)]

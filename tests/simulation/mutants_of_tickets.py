"""Planted bugs in work that a disk does: tickets, answers, and what counts as on disk."""

from __future__ import annotations

from mutants import Patch, mutant

from holdfast.core.spills import Spills, SpillWrite
from holdfast.core.tickets import Tickets
from holdfast.logs.output_queue import OutputQueue


def _takes_any_answer(self, done, now_ns, ready):
    """Without the look whether it is the answer to what is being written."""
    self.queue.writing = done.ticket
    _on_done(self, done, now_ns, ready)


_on_done = SpillWrite.on_done


@mutant
def a_ticket_is_good_for_two_answers() -> list[Patch]:
    """The second one ends the write that was begun after the first."""

    def on_done(self, done, now_ns, ready):
        ending = self._open.get(done.ticket)
        if isinstance(ending, SpillWrite):
            ending = self._open.get(ending.queue.writing, ending)
        if ending is not None:
            ending.on_done(done, now_ns, ready)

    return [(Tickets, "on_done", on_done), (SpillWrite, "on_done", _takes_any_answer)]


@mutant
def a_stale_ticket_is_accepted() -> list[Patch]:
    """An answer that nobody waits for is taken for that of the oldest work."""

    def on_done(self, done, now_ns, ready):
        ticket = done.ticket if done.ticket in self._open else next(iter(self._open), 0)
        if ticket:
            ending = self._open[ticket]
            self.cancel(ticket)
            ending.on_done(done, now_ns, ready)

    return [(Tickets, "on_done", on_done), (SpillWrite, "on_done", _takes_any_answer)]


@mutant
def memory_is_freed_before_the_disk_has_the_rows() -> list[Patch]:
    right = OutputQueue.write

    def write(self, ticket, blocks):
        right(self, ticket, blocks)
        self.spilled_to = max(self.spilled_to, blocks[-1].end)

    return [(OutputQueue, "write", write)]


@mutant
def what_the_disk_refused_counts_as_spilled() -> list[Patch]:
    right = SpillWrite._refused

    def refused(self, why, now_ns, ready):
        right(self, why, now_ns, ready)
        self.queue.spilled_to = max(self.queue.spilled_to, self.blocks[-1].end)

    return [(SpillWrite, "_refused", refused)]


@mutant
def a_slow_disk_is_not_waited_for() -> list[Patch]:
    """Memory fills with what is to be written, as if it were written already."""
    right = OutputQueue.has_room

    def has_room(self):
        return right(self) or self.next - self.trimmed < self.memory_max + self.spill_max

    return [(OutputQueue, "has_room", has_room)]


@mutant
def files_of_a_copy_that_went_stay() -> list[Patch]:
    return [(Spills, "forget", lambda self, copy, ready: self.cancel(copy))]

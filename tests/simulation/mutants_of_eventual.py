"""Planted bugs in footprints and their log: each loses rows, doubles them or stands still, when every node is gone."""

from __future__ import annotations

from msgspec.structs import replace
from mutants import Patch, mutant

from holdfast.core.copy import Copy
from holdfast.core.protect.eventual import Entry, Eventual
from holdfast.core.protect.paged import Paged
from holdfast.core.ready import PutFootprints
from holdfast.sim.operators import WindowSum
from holdfast.sim.traces import TraceLog


@mutant
def an_entry_counts_when_it_is_begun() -> list[Patch]:
    right = Eventual.take

    def take(self, now_ns, ready):
        right(self, now_ns, ready)
        if self.head is not None:
            self.safe_at = self.head.to

    return [(Eventual, "take", take)]


@mutant
def one_entry_too_few_is_kept() -> list[Patch]:
    """The one with the oldest footprint."""
    right = Eventual.take

    def take(self, now_ns, ready):
        right(self, now_ns, ready)
        effect = ready.apply[-1] if ready.apply else None
        if isinstance(effect, PutFootprints):
            ready.apply[-1] = replace(effect, trace=replace(effect.trace, needs=effect.trace.needs[1:]))

    return [(Eventual, "take", take)]


@mutant
def one_entry_too_few_is_replayed() -> list[Patch]:
    right = TraceLog.bring_back

    def bring_back(self, log):
        *_, last = self.entries.values()
        known = self.entries
        self.entries = {
            key: replace(e, trace=replace(e.trace, taken=())) if e.trace.number == last.trace.since + 1 else e
            for key, e in known.items()
        }
        try:
            return right(self, log)
        finally:
            self.entries = known

    return [(TraceLog, "bring_back", bring_back)]


@mutant
def a_replay_gives_every_row_to_every_window() -> list[Patch]:
    """Also to those whose footprint is newer than the row."""
    right = TraceLog._gather

    def gather(self):
        slots, known = right(self)
        return slots, dict.fromkeys(known, -1)

    return [(TraceLog, "_gather", gather)]


@mutant
def a_window_that_opens_leaves_no_footprint() -> list[Patch]:
    right = WindowSum.footprints

    def footprints(self, number, least, recover_ns):
        since, prints = right(self, number, least, recover_ns)
        newest = max(prints.slots, default=None)
        slots = {slot: left for slot, left in prints.slots.items() if slot != newest}
        return since, replace(prints, slots=slots, count=prints.count - (newest is not None))

    return [(WindowSum, "footprints", footprints)]


@mutant
def what_was_taken_is_not_noted() -> list[Patch]:
    right = Copy.step

    def step(self):
        noted = len(self.taken) if self.taken is not None else 0
        made = right(self)
        if self.taken is not None and noted == 1:
            del self.taken[noted:]
        return made

    return [(Copy, "step", step)]


@mutant
def the_next_entry_builds_on_one_that_was_refused() -> list[Patch]:
    def on_done(self, done, now_ns, ready):
        written, self.last = self.last, ()
        Paged.on_done(self, done, now_ns, ready)
        self.log = written
        if not done.ok:
            self.log = tuple(entry for entry in written[:-1])

    return [(Eventual, "on_done", on_done)]


@mutant
def an_entry_leaves_out_output_of_the_one_before() -> list[Patch]:
    """Nothing is needed for its output alone."""

    def needed(self, since, head, whole):
        kept = (entry for entry in self.log if entry.number >= since)
        return (*kept, Entry(self.number, head.to, head.batches, {}))

    return [(Eventual, "_needed", needed)]


@mutant
def batches_are_let_go_of_up_to_where_the_log_stands() -> list[Patch]:
    """Though those after the oldest footprint are replayed."""
    return [(Eventual, "_floor", lambda self, replayed: self.last[-1].batches)]


@mutant
def batches_are_let_go_of_that_a_backup_has_nowhere_else() -> list[Patch]:
    return [(Eventual, "_floor", lambda self, replayed: replayed)]

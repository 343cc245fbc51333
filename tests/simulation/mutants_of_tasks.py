"""Planted bugs in captures and pastes as tasks: what is offered to schedulers, and what they make of it."""

from __future__ import annotations

from mutants import Patch, mutant

from holdfast.core.agenda import HostAgenda
from holdfast.core.protect.images import Images


@mutant
def a_paste_is_never_offered() -> list[Patch]:
    """The last one of them: with a single sender nothing is ever pasted."""
    right = HostAgenda._pastes
    return [(HostAgenda, "_pastes", lambda self: right(self)[:-1])]


@mutant
def the_newest_capture_of_a_sender_is_pasted_first() -> list[Patch]:
    def pastes(self):
        found = {}
        for shard, copy in self._host.copies.items():
            if copy.pasting is not None:
                mine = (copy.pasting.number, shard)
                found[copy.pasting.source] = max(mine, found.get(copy.pasting.source, mine))
        return [self._paste(shard, pressing=False) for _, shard in sorted(found.values())]

    return [(HostAgenda, "_pastes", pastes)]


@mutant
def a_capture_runs_again_before_it_is_pasted() -> list[Patch]:
    right = Images.due

    def due(self, now_ns, *, frozen):
        waiting, self.waiting = self.waiting, {}
        try:
            return right(self, now_ns, frozen=frozen)
        finally:
            self.waiting = waiting

    return [(Images, "due", due)]

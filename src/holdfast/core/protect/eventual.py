"""Footprints of windows in a log in the stable store (cec §II): what survives the loss of every node, without a
checkpoint of the whole.

The log of a shard is a row of entries, written one at a time under a ticket. An entry has the footprints that were due
(`Operator.footprints`), the output made since the entry before it, and what was taken since then: rows of other shards
as they are, of a stage by their batch, since the stage's log has them. All of that is of one moment, the end of a step,
however many blocks the step had. So an entry and the earlier ones that it needs bring the shard back to that moment:
whoever restores it gathers the newest footprint of every open window and replays what was taken after the oldest.

Input is acknowledged when an entry that covers it is in the store. What is needed of it later (after the oldest
footprint) is in the entries themselves, or in the stage's log. Of that, too, only what all guards stand behind is let
go of (`FootprintHead.batches`): a backup that came from a restored copy has the rows of some batches nowhere else.

An entry builds on those before it. Where it is not known that they are there (a write was refused or given up, this
copy has just begun) the next one has footprints of all windows and all output that nobody has acknowledged: it needs
none.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from holdfast.core.copy import Copy
from holdfast.core.protect.guard import Guard
from holdfast.core.protect.paged import Paged
from holdfast.core.ready import Done, PutFootprints, Ready
from holdfast.core.tickets import Tickets
from holdfast.errors import HoldfastError, InvariantError, check, one_line
from holdfast.model.ids import Edge
from holdfast.model.parts import CheckpointHead, FootprintHead, OutputPart, TakenRows
from holdfast.model.record import Place

#: A restore reads at most so many entries, each an object of its own. Windows are checked when their newest footprint
#: is half as far back, so that only output that nobody takes makes it as many.
ENTRIES_MAX = 256


class Entry(NamedTuple):
    number: int
    #: Where the shard stood, and the last batch of each stage's edge that was consumed by then.
    to: dict[Edge, int]
    batches: dict[Edge, int]
    #: How far the output in it goes, of edges of which it has any.
    ends: dict[Edge, int]

    def is_covered_by(self, positions: dict[Edge, int]) -> bool:
        return all(positions[edge] >= at for edge, at in self.to.items())


class Eventual(Paged):
    name = "eventual"

    __slots__ = ("last", "log", "made", "number", "others", "stands", "taken")

    def __init__(self, copy: Copy, place: Place, tickets: Tickets, now_ns: int) -> None:
        super().__init__(copy, place, tickets, now_ns)
        self.number = 0
        #: Entries in the store that the next one may build on; the last of them is the one before it.
        self.log: tuple[Entry, ...] = ()
        #: Where the outputs of that one end; and the one under way, behind those that are needed with it.
        self.made: dict[Edge, int] = {}
        self.last: tuple[Entry, ...] = ()
        #: What was noted for the entry after it: this very list, or there is a hole in what was taken.
        self.taken: list[TakenRows] | None = None
        #: All guards of the shard; and the newest entry that all of them stand behind, with those after it.
        self.others: tuple[Guard, ...] = ()
        self.stands: list[Entry] = []

    def take(self, now_ns: int, ready: Ready) -> None:
        copy = self.copy
        self.started_ns, self.hurried = now_ns, False
        self.number += 1
        if copy.taken is None or copy.taken is not self.taken or len(self.log) >= ENTRIES_MAX:
            self.log = ()
        least = self.number - ENTRIES_MAX // 2 if self.log else self.number
        taken = copy.taken if self.log and copy.taken else ()
        try:
            since, image = copy.op.footprints(self.number, least, self.protection.recover_ns)
        except InvariantError:
            raise
        except HoldfastError as error:  # the operator leaves none, or at the limit of its memory they do not fit
            self._break_off()
            self._refused(one_line(error), ready)
            return
        whole = copy.checkpoint_head()
        self.head = self._since_last(whole)
        self.last = self._needed(since, self.head, whole)
        self.log = ()  # until it is known that this one is there
        copy.taken = self.taken = []
        oldest = next((one for one in self.last if one.number == since), None)
        check(oldest is not None, "the oldest footprint of a window is in no entry", f"{copy.id}: {since}")
        assert oldest is not None
        found = FootprintHead(
            number=self.number,
            since=since,
            needs=tuple(one.number for one in self.last[:-1]),
            batches=self._floor(oldest.batches),
            taken=tuple(taken),
        )
        self.made = {edge: part.next for edge, part in whole.outputs.items()}
        self.ticket = self.tickets.issue(self, long=True)
        put = PutFootprints(
            ticket=self.ticket, shard=copy.id, epoch=self.epoch, head=self.head, trace=found, image=image
        )
        ready.apply.append(put)

    def _since_last(self, whole: CheckpointHead) -> CheckpointHead:
        """With the output that the entry before does not have."""
        if not self.log:
            return whole

        def newer(edge: Edge, part: OutputPart) -> OutputPart:
            blocks = tuple(block for block in part.blocks if block.start >= self.made.get(edge, part.start))
            return replace(part, start=blocks[0].start if blocks else part.next, blocks=blocks)

        return replace(whole, outputs={edge: newer(edge, part) for edge, part in whole.outputs.items()})

    def _needed(self, since: int, head: CheckpointHead, whole: CheckpointHead) -> tuple[Entry, ...]:
        """Entries with a footprint or output that a restore would read, and this one."""
        trimmed = {edge: part.trimmed for edge, part in whole.outputs.items()}
        ends = {edge: part.next for edge, part in head.outputs.items() if part.blocks}
        kept = (e for e in self.log if e.number >= since or any(end > trimmed[x] for x, end in e.ends.items()))
        return (*kept, Entry(self.number, head.to, head.batches, ends))

    def _floor(self, replayed: dict[Edge, int]) -> dict[Edge, int]:
        """The last batches that nobody needs from the log: given those from which on a restore replays."""
        if len(self.stands) >= ENTRIES_MAX:
            self.stands.pop()
        self.stands.append(self.last[-1])
        kept = [found for guard in self.others if guard is not self and (found := guard.safe()) is not None]
        while len(self.stands) > 1 and all(map(self.stands[1].is_covered_by, kept)):
            del self.stands[0]
        first = self.stands[0]
        if not all(map(first.is_covered_by, kept)):
            return dict.fromkeys(replayed, -1)
        return {edge: min(batch, first.batches[edge]) for edge, batch in replayed.items()}

    def on_done(self, done: Done, now_ns: int, ready: Ready) -> None:
        written, self.last = self.last, ()
        super().on_done(done, now_ns, ready)
        if done.ok and not done.passed_over:
            self.log = written
        else:
            self._break_off()

    def on_missed(self, ticket: int, now_ns: int, ready: Ready) -> None:
        self._break_off()
        super().on_missed(ticket, now_ns, ready)

    def start_over(self) -> None:
        super().start_over()
        self._break_off()

    def _break_off(self) -> None:
        """The next entry needs none before it."""
        self.log, self.last = (), ()
        self.copy.taken = self.taken = None

"""Batches that count and never came here: looked up in the log of their stage, and sealed.

Only a copy that started from a checkpoint misses any, or one that is brought up from such a copy: whoever held them is
gone. The commit says which try it was, and which rows it had; the log has every try that a driver began to hand over.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core.copy import Copy
from holdfast.core.ready import Done, LoadBatches, Ready
from holdfast.core.tickets import Tickets
from holdfast.errors import InvariantError, WrongMessageError
from holdfast.model import notes
from holdfast.model.config import Config
from holdfast.model.ids import NO_SEAT, Edge, Seat
from holdfast.model.store_notes import LookedUp


class Lookups:
    """Of all copies of one node."""

    __slots__ = ("_open", "config", "has_input", "refused", "seat", "tickets", "told")

    def __init__(self, tickets: Tickets, config: Config, has_input: Callable[..., None], seat: Seat = NO_SEAT) -> None:
        self.tickets = tickets
        self.config = config
        #: Called with (shard, now_ns, ready) when there is something to consume.
        self.has_input = has_input
        self.seat = seat
        #: What is under way: which copy asked for the batches of this edge, under which ticket.
        self._open: dict[Edge, tuple[Copy, int]] = {}
        #: Edges whose batches could not be had, and when to try again.
        self.refused: dict[Edge, int] = {}
        #: Those of which that was told, until something of them could be had.
        self.told: dict[Edge, None] = {}

    def look(self, copy: Copy, ready: Ready) -> None:
        """After anything that may have told a copy of a batch that it does not have."""
        for edge, inbox in copy.inboxes.items():
            owed = inbox.owed
            if owed is not None and edge not in self._open and edge not in self.refused:
                ticket = self.tickets.issue(_Lookup(self, copy, edge), long=True)
                self._open[edge] = (copy, ticket)
                ready.apply.append(LoadBatches(ticket=ticket, edge=edge, first=owed[0], last=owed[1]))

    def cancel(self, copy: Copy) -> None:
        """The copy goes."""
        for edge in copy.inboxes:
            asked, ticket = self._open.get(edge, (None, 0))
            if asked is copy:
                self.tickets.cancel(ticket)
                del self._open[edge]
            self.refused.pop(edge, None)
            self.told.pop(edge, None)

    def on_tick(self, copies: list[Copy], now_ns: int, ready: Ready) -> None:
        for edge in [edge for edge, at_ns in self.refused.items() if at_ns <= now_ns]:
            del self.refused[edge]
        for copy in copies:
            self.look(copy, ready)

    def on_batches(self, copy: Copy, edge: Edge, done: Done, now_ns: int, ready: Ready) -> None:
        self._open.pop(edge, None)
        inbox = copy.inboxes[edge]
        before, last = inbox.owed, inbox.last
        try:
            sealed = inbox.fill(done.batches) if done.ok else []
            if done.ok and inbox.last == last:
                sealed = inbox.pass_over(copy.stands_at(edge))
        except WrongMessageError as error:  # not a peer's word: the state and the log of our own do not go together
            hint = "The checkpoint that this shard was restored from, or the log of its stage, is not what was written."
            raise InvariantError(error.what, detail=error.detail, hint=hint) from error
        for block in sealed:
            ready.notes.append(notes.Sealed(copy.id, edge, self.seat, block))
        inbox.drop(copy.stands_at(edge))
        if inbox.last != last:
            self.told.pop(edge, None)
        elif before is not None and inbox.owed is not None:
            self.refused[edge] = now_ns + self.config.spill_retry_ns
            if edge not in self.told:
                self.told[edge] = None
                why = done.why or f"Batch {before[0]} is not in the log."
                ready.notes.append(notes.LookupFailed(copy.id, edge, *before, why))
        self.look(copy, ready)
        if sealed:
            self.has_input(copy.id, now_ns, ready)
        if sealed and inbox.owed is None:
            ready.notes.append(LookedUp(copy.id, edge))


class _Lookup:
    """Waits for the batches of one edge."""

    __slots__ = ("copy", "edge", "lookups")

    def __init__(self, lookups: Lookups, copy: Copy, edge: Edge) -> None:
        self.lookups = lookups
        self.copy = copy
        self.edge = edge

    def on_done(self, done: Done, now_ns: int, ready: Ready) -> None:
        self.lookups.on_batches(self.copy, self.edge, done, now_ns, ready)

    def on_missed(self, ticket: int, now_ns: int, ready: Ready) -> None:
        self.on_done(Done(ticket=ticket, ok=False, why="The store does not answer."), now_ns, ready)

"""Output that waits longer than memory should hold it goes to disk: asked for here, counted when it is there.

One write of a queue is under way at a time, as an effect with a ticket. Its blocks stay in memory, and count as such,
until `Done` says that they are on disk; then what the driver hands back stands for their rows. A write that is refused
(the disk is full, or fails) leaves everything as it was: that is told, and tried again. An image's queues are spilled
as its primary's are.

The end of a write counts only for the queue that asked for it, as it was then: a copy that went, that was promoted or
demoted since, or an image that began anew has other rows at those positions, or will ask again itself.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core.copy import Copy
from holdfast.core.ready import Done, DropSpill, Ready, Spill
from holdfast.core.tickets import Tickets
from holdfast.logs.output_queue import OutputQueue
from holdfast.model import notes
from holdfast.model.block import Block
from holdfast.model.config import Config
from holdfast.model.ids import Edge


class Spills:
    """Of all copies of one node."""

    __slots__ = ("config", "has_room", "refused", "tickets")

    def __init__(self, config: Config, tickets: Tickets, has_room: Callable[..., None]) -> None:
        self.config = config
        self.tickets = tickets
        #: Called with (shard, now_ns, ready) when rows have left memory: the shard may go on.
        self.has_room = has_room
        #: Edges whose rows the disk did not take, and when to try again.
        self.refused: dict[Edge, int] = {}

    def look(self, copy: Copy, ready: Ready) -> None:
        """After anything that may have filled or emptied the queues of a copy."""
        for queue in copy.outputs:
            to = queue.unfiled()
            if to:
                ready.apply.append(DropSpill(edge=queue.edge, to=to))
            if queue.edge not in self.refused:
                self._write(copy, queue, ready)

    def _write(self, copy: Copy, queue: OutputQueue, ready: Ready) -> None:
        blocks = queue.to_spill()
        if blocks:
            ticket = self.tickets.issue(SpillWrite(self, copy, queue, blocks))
            queue.write(ticket, blocks)
            ready.apply.append(Spill(ticket=ticket, edge=queue.edge, blocks=blocks))

    def cancel(self, copy: Copy) -> None:
        """What this copy becomes now asks for itself: writes that were begun before mean nothing to it."""
        for queue in copy.outputs:
            self.tickets.cancel(queue.writing)
            queue.writing = 0

    def forget(self, copy: Copy, ready: Ready) -> None:
        """A copy goes, and its files go with it."""
        self.cancel(copy)
        for queue in copy.outputs:
            queue.forget_files()
            to = queue.unfiled()
            if to:
                ready.apply.append(DropSpill(edge=queue.edge, to=to))
            self.refused.pop(queue.edge, None)

    def on_tick(self, copies: list[Copy], now_ns: int, ready: Ready) -> None:
        """Try again what was refused, and ask for what a copy that has changed its role has to write."""
        for copy in copies:
            for queue in copy.outputs if copy.fork is None else ():  # a stand-in waits rather than write
                if self.refused.get(queue.edge, 0) <= now_ns:
                    self._write(copy, queue, ready)


class SpillWrite:
    """Waits for the end of one write of a queue."""

    __slots__ = ("blocks", "copy", "queue", "spills")

    def __init__(self, spills: Spills, copy: Copy, queue: OutputQueue, blocks: tuple[Block, ...]) -> None:
        self.spills = spills
        self.copy = copy
        self.queue = queue
        self.blocks = blocks

    def on_done(self, done: Done, now_ns: int, ready: Ready) -> None:
        spills, copy, queue = self.spills, self.copy, self.queue
        if queue.writing != done.ticket:
            return  # an image that has begun anew since
        if not done.ok:
            self._refused(done.why, now_ns, ready)
            return
        queue.wrote(self.blocks, done.kept)
        ready.notes.append(notes.Spilled(copy.id, queue.edge, queue.spilled_to))
        if spills.refused.pop(queue.edge, None) is not None:
            ready.notes.append(notes.SpillAgain(copy.id, queue.edge))
        spills.look(copy, ready)
        spills.has_room(copy.id, now_ns, ready)

    def on_missed(self, ticket: int, now_ns: int, ready: Ready) -> None:
        if self.queue.writing == ticket:
            self._refused("The disk does not answer.", now_ns, ready)

    def _refused(self, why: str, now_ns: int, ready: Ready) -> None:
        """Nothing has left memory. It is told once, until the disk takes something of this edge again."""
        queue, spills = self.queue, self.spills
        queue.writing = 0
        if queue.edge not in spills.refused:
            ready.notes.append(notes.SpillRefused(self.copy.id, queue.edge, why))
        spills.refused[queue.edge] = now_ns + spills.config.spill_retry_ns

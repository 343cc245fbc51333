"""What shards have set aside goes into files, once: asked for here, let go of when it is written.

A dead letter is output: it has a position, travels with captures, and is kept until it is in a file. Only a copy that
runs writes. A file is named by shard and position, and what is at a position is a function of the input; so it does no
harm if a block is written again, by a copy that was promoted before it heard that the block is safe. Nothing is lost,
nothing is there twice, and nobody has to be asked.

A shard that stands still asks how far the files go: what they have beyond it an earlier primary has set aside, of a
block that this one must not skip then (`core/skips.py`).

A write that is refused (the disk is full) is told and tried again. Meanwhile dead letters wait in memory, as many as a
queue may hold; then the shard waits too.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core.copy import DEAD_LETTERS, Copy
from holdfast.core.ready import Done, FindLetters, Ready, SetAside
from holdfast.core.tickets import Tickets
from holdfast.model import notes
from holdfast.model.config import Config
from holdfast.model.ids import Asset


class DeadLetters:
    """Of all shards that run on one node."""

    __slots__ = ("asked", "config", "has_room", "kept", "refused", "tickets")

    def __init__(self, config: Config, tickets: Tickets, has_room: Callable[..., None]) -> None:
        self.config = config
        self.tickets = tickets
        #: Called with (shard, now_ns, ready) when dead letters have left memory: the shard may go on.
        self.has_room = has_room
        #: Shards whose dead letters the disk did not take, and when to try again.
        self.refused: dict[Asset, int] = {}
        #: Of shards that stand still: under which ticket it was asked how far their files go, and how far they do.
        self.asked: dict[Asset, int] = {}
        self.kept: dict[Asset, int] = {}

    def look(self, copy: Copy, ready: Ready) -> None:
        """After a step, or an answer."""
        if copy.id not in self.refused:
            self._write(copy, ready)

    def _write(self, copy: Copy, ready: Ready) -> None:
        """Everything that waits; one write of a shard at a time."""
        queue = copy.dead
        if queue.blocks and not queue.writing:
            queue.writing = self.tickets.issue(DeadLetterWrite(self, copy, queue.blocks[-1].end))
            ready.apply.append(SetAside(ticket=queue.writing, shard=copy.id, blocks=tuple(queue.blocks)))

    def cancel(self, copy: Copy) -> None:
        """This copy stops, or begins to run: the end of what was asked for before means nothing to it."""
        self.tickets.cancel(copy.dead.writing)
        copy.dead.writing = 0
        self.refused.pop(copy.id, None)
        self.tickets.cancel(self.asked.pop(copy.id, 0))
        self.kept.pop(copy.id, None)

    def find(self, copy: Copy, ready: Ready) -> None:
        """How far do its files go? It stands still, so that this changes no more once it is known."""
        if copy.id not in self.kept and copy.id not in self.asked:
            self.asked[copy.id] = self.tickets.issue(LetterSearch(self, copy.id))
            ready.apply.append(FindLetters(ticket=self.asked[copy.id], shard=copy.id))

    def on_tick(self, copies: list[Copy], now_ns: int, ready: Ready) -> None:
        """Try again what was refused; write what a copy has that was just promoted. `copies`: those that run."""
        for copy in copies:
            if self.refused.get(copy.id, 0) <= now_ns:
                self._write(copy, ready)


class LetterSearch:
    """Waits for the answer how far the files of a shard go. What fails is asked again when the shard is looked at."""

    __slots__ = ("letters", "shard")

    def __init__(self, letters: DeadLetters, shard: Asset) -> None:
        self.letters = letters
        self.shard = shard

    def on_done(self, done: Done, now_ns: int, ready: Ready) -> None:
        del self.letters.asked[self.shard]
        if done.ok:
            self.letters.kept[self.shard] = done.to

    def on_missed(self, ticket: int, now_ns: int, ready: Ready) -> None:
        del self.letters.asked[self.shard]


class DeadLetterWrite:
    """Waits for the end of one write."""

    __slots__ = ("copy", "letters", "to")

    def __init__(self, letters: DeadLetters, copy: Copy, to: int) -> None:
        self.letters = letters
        self.copy = copy
        self.to = to

    def on_done(self, done: Done, now_ns: int, ready: Ready) -> None:
        letters, copy, queue = self.letters, self.copy, self.copy.dead
        if queue.writing != done.ticket:
            return
        if not done.ok:
            self._refused(done.why, now_ns, ready)
            return
        queue.writing = 0
        queue.ack(DEAD_LETTERS, self.to)
        ready.notes.append(notes.DeadKept(copy.id, self.to))
        letters.refused.pop(copy.id, None)
        letters.look(copy, ready)
        letters.has_room(copy.id, now_ns, ready)

    def on_missed(self, ticket: int, now_ns: int, ready: Ready) -> None:
        if self.copy.dead.writing == ticket:
            self._refused("The disk does not answer.", now_ns, ready)

    def _refused(self, why: str, now_ns: int, ready: Ready) -> None:
        letters, copy = self.letters, self.copy
        copy.dead.writing = 0
        if copy.id not in letters.refused:
            ready.notes.append(notes.DeadRefused(copy.id, why))
        letters.refused[copy.id] = now_ns + letters.config.spill_retry_ns

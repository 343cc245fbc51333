"""What must hold in the life of one process, checked on every note that it leaves: in the simulator and on real nodes.

Only rules that need no more than this process's own notes are here, and each costs a look into a small table: no rows
are compared and nothing is searched. (What needs two processes, or the rows, is the simulator's: `sim/checker.py`.)

    positions     what is emitted or accepted continues what was before; what is sealed never goes back
    epochs        a shard is promoted at a higher epoch each time; only a promoted copy emits, captures, acknowledges
                  and trims, at its own epoch; a consumer takes nothing of an older producer than it has taken from
    marks         acknowledgements, trims, rounds, offsets, records, terms and ledgers never go back

A rule that does not hold stops the process: a wrong answer is worse than a stopped shard. The error carries the story
of the thing that it is about: the last notes that named it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from holdfast.errors import InvariantError
from holdfast.model import notes
from holdfast.model.block import Block
from holdfast.model.ids import Asset, Consumer, Edge

#: Notes that a story has, and things that have one.
STORY_MAX = 40
STORIES_MAX = 4_096
#: Fields that hold rows.
_BULKY = frozenset(("block", "blocks"))


def _follows(block: Block, at: int) -> bool:
    """Is it what comes at this position, or an empty start that passes over what was lost there?"""
    return block.start == at or (block.jumps and block.start > at)


class Invariants:
    """Of one life of one process."""

    __slots__ = ("_accepted", "_beside", "_marks", "_running", "_sealed_to", "_stories", "_twins", "rules")

    def __init__(self) -> None:
        #: Epoch of every shard that runs here.
        self._running: dict[Asset, int] = {}
        #: The same of every shard that stands in, or is a twin; and where its output stands.
        self._beside: dict[Asset, tuple[int, dict[Edge, int]]] = {}
        self._twins: set[Asset] = set()
        #: Next position and newest epoch of what a consumer takes.
        self._accepted: dict[tuple[Consumer, Edge, int], tuple[int, int]] = {}
        #: What never goes back, by what it is of.
        self._marks: dict[tuple[str, ...], Any] = {}
        #: Last batch that was sealed, and where it ended.
        self._sealed_to: dict[tuple[Asset, Edge], tuple[int, int]] = {}
        self._stories: dict[object, deque[notes.Note | str]] = {}
        self.rules: dict[type[notes.Note], Callable[..., None]] = {
            notes.Promoted: self._promoted,
            notes.Joining: self._stopped,
            notes.Demoted: self._stopped,
            notes.Dropped: self._stopped,
            notes.Emitted: self._emitted,
            notes.StandsIn: self._stands_in,
            notes.RunsBeside: self._runs_beside,
            notes.EmittedBeside: self._emitted_beside,
            notes.StandsDown: self._stands_down,
            notes.SetAside: self._set_aside,
            notes.Captured: self._captured,
            notes.Acked: self._acked,
            notes.Trimmed: self._trimmed,
            notes.Accepted: self._took,
            notes.ReaderAcked: self._reader_acked,
            notes.Sealed: self._sealed,
            notes.Decided: self._decided,
            notes.Ledgered: self._ledgered,
        }

    def on_notes(self, noted: list[notes.Note]) -> None:
        for note in noted:
            self._remember(note)
            rule = self.rules.get(type(note))
            if rule is not None:
                rule(note)

    # --- the story

    def _remember(self, note: notes.Note) -> None:
        """Under the thing that it is about: the first of its fields. Rows are not kept alive by a story."""
        thing = getattr(note, note.__struct_fields__[0])
        story = self._stories.get(thing)
        if story is None:
            if len(self._stories) >= STORIES_MAX:
                self._stories.pop(next(iter(self._stories)))
            story = self._stories[thing] = deque(maxlen=STORY_MAX)
        story.append(str(note) if _BULKY.intersection(note.__struct_fields__) else note)

    def story(self, thing: object) -> list[str]:
        """The last notes about a shard, a stage, a consumer or a node, oldest first."""
        return [str(note) for note in self._stories.get(thing, ())]

    def _fail(self, rule: str, note: notes.Note, known: object) -> None:
        thing = getattr(note, note.__struct_fields__[0])
        story = "\n    ".join(self.story(thing))
        raise InvariantError(
            rule,
            detail=f"{note}, after {known}. What happened to {thing}, oldest first:\n    {story}",
            hint="This is a bug in Holdfast: please report it with this text.",
        )

    # --- copies

    def _promoted(self, note: notes.Promoted) -> None:
        self._grow("an epoch went back or was used twice", note, ("epoch", note.shard), note.epoch, again=False)
        self._running[note.shard] = note.epoch
        if note.shard in self._twins:
            self._twins.discard(note.shard)
            del self._beside[note.shard]
        self._marks = {key: mark for key, mark in self._marks.items() if key[:2] != ("run", note.shard)}

    def _stopped(self, note: notes.Joining | notes.Demoted | notes.Dropped) -> None:
        self._running.pop(note.shard, None)
        if note.shard in self._twins:
            self._twins.discard(note.shard)
            del self._beside[note.shard]
        if not isinstance(note, notes.Demoted):  # its input is gone, too
            self._sealed_to = {key: mark for key, mark in self._sealed_to.items() if key[0] != note.shard}

    def _runs(self, note: notes.Emitted | notes.SetAside | notes.Captured | notes.Acked, rule: str) -> None:
        if self._running.get(note.shard) != note.epoch:
            self._fail(rule, note, f"epoch {self._running.get(note.shard)}")

    def _emitted(self, note: notes.Emitted) -> None:
        self._runs(note, "emitted by a copy that is not primary")
        key, block = ("run", note.shard, note.edge, "emitted"), note.block
        known = self._marks.get(key, block.start)
        if not _follows(block, known):
            self._fail("positions have a hole", note, known)
        self._marks[key] = block.end

    def _stands_in(self, note: notes.StandsIn) -> None:
        """It begins where its image stands, however far an earlier one came."""
        if note.shard in self._running or note.shard in self._beside:
            self._fail("stands in for a shard that runs here", note, self._running.get(note.shard))
        self._beside[note.shard] = (note.epoch, {})
        self._accepted = {key: mark for key, mark in self._accepted.items() if key[0] != note.shard}

    def _runs_beside(self, note: notes.RunsBeside) -> None:
        """A twin begins where its image stands, or goes on at another epoch."""
        epoch = max(self._running.pop(note.shard, 0), self._beside.get(note.shard, (0, {}))[0])
        if note.epoch < epoch:
            self._fail("an epoch went back or was used twice", note, epoch)
        self._beside[note.shard] = (note.epoch, {})
        self._twins.add(note.shard)
        self._accepted = {key: mark for key, mark in self._accepted.items() if key[0] != note.shard}

    def _emitted_beside(self, note: notes.EmittedBeside) -> None:
        epoch, ends = self._beside.get(note.shard, (0, {}))
        if epoch != note.epoch:
            self._fail("emitted by a copy that does not stand in", note, epoch)
        if not _follows(note.block, ends.get(note.edge, note.block.start)):
            self._fail("positions have a hole", note, ends)
        ends[note.edge] = note.block.end

    def _stands_down(self, note: notes.StandsDown) -> None:
        if self._beside.pop(note.shard, (0, {}))[0] != note.epoch:
            self._fail("stands down without standing in", note, None)

    def _set_aside(self, note: notes.SetAside) -> None:
        self._runs(note, "set aside by a copy that is not primary")
        key, block = ("run", note.shard, "set aside"), note.block
        if not self._marks.get(key, 0) <= block.start:
            self._fail("dead letters went back", note, self._marks[key])
        self._marks[key] = block.end

    def _captured(self, note: notes.Captured) -> None:
        self._runs(note, "captured by a copy that is not primary")
        self._grow("a round went back", note, ("run", note.shard, "round"), note.round)

    def _acked(self, note: notes.Acked) -> None:
        self._runs(note, "acknowledged by a copy that is not primary")
        self._grow("an acknowledgement went back", note, ("run", note.shard, note.edge, "acked"), note.position)

    def _trimmed(self, note: notes.Trimmed) -> None:
        if note.shard in self._twins:
            return
        if note.shard not in self._running:
            self._fail("trimmed by a copy that is not primary", note, None)
        self._grow("a queue grew at its old end", note, ("run", note.shard, note.edge, "trimmed"), note.trimmed)

    def _sealed(self, note: notes.Sealed) -> None:
        """Batches in order; a whole capture may take an image further, so a hole is not a bug here."""
        key, block = (note.shard, note.edge), note.block
        batch, end = self._sealed_to.get(key, (-1, 0))
        if block.batch <= batch or block.start < end:
            self._fail("sealed out of order", note, f"batch {batch}, which ends at {end}")
        self._sealed_to[key] = (block.batch, block.end)

    # --- edges and records

    def _took(self, note: notes.Accepted) -> None:
        key, block = (note.consumer, note.edge, note.life), note.block
        at, newest = self._accepted.get(key, (block.start, 0))
        if note.epoch < newest:
            self._fail("rows from a fenced copy", note, f"epoch {newest}")
        if not _follows(block, at):
            self._fail("positions have a hole", note, at)
        self._accepted[key] = (block.end, note.epoch)

    def _reader_acked(self, note: notes.ReaderAcked) -> None:
        self._grow("an offset went back", note, ("offset", note.consumer, note.edge), note.position)
        for key, (at, newest) in self._accepted.items():
            if key[:2] == (note.consumer, note.edge):
                self._accepted[key] = (max(at, note.position), newest)

    def _decided(self, note: notes.Decided) -> None:
        self._grow("a record went back", note, ("version",), note.version, again=False)
        self._grow("a term went back", note, ("term",), note.term)

    def _ledgered(self, note: notes.Ledgered) -> None:
        self._grow("a ledger went back", note, ("ledger", note.stage), note.rank)

    def _grow(self, rule: str, note: notes.Note, key: tuple[str, ...], mark: Any, *, again: bool = True) -> None:
        """The mark of a thing is higher than it was; `again`: or the same."""
        known = self._marks.get(key)
        if known is not None and (mark < known or (mark == known and not again)):
            self._fail(rule, note, known)
        self._marks[key] = mark

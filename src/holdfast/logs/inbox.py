"""Input that a stage handed over: held by the primary and by the backup until it is safe.

A batch goes through three steps on each holder: delivered (per task attempt; vanishes unless named), prepared (the
named attempts are frozen, in the order of their tasks) and sealed (it gets its positions, and counts). A batch that
comes twice counts once, because batch ids have no holes and `last` only grows. Sealing is by the commit record: a
holder seals exactly the try that was committed, whoever asks.

A copy that has no image yet has no base: it keeps what it is told, and `rebase` puts it in order when the whole
capture comes. The primary drops a block when it has taken it; the backup when its image covers it.
"""

from __future__ import annotations

from collections import deque

from holdfast.errors import check
from holdfast.model.block import Block, Rows, batch_block
from holdfast.model.ids import Edge
from holdfast.model.messages import CommitRecord, HandedPart, PreparedBatch


class Inbox:
    __slots__ = ("based", "commits", "edge", "last", "next", "parts", "prepared", "sealed")

    def __init__(self, edge: Edge, based: bool) -> None:
        self.edge = edge
        #: False until a whole capture says where this edge stands.
        self.based = based
        #: Position of the next block to be sealed. Never goes back.
        self.next = 0
        #: Last sealed batch.
        self.last = -1
        #: Rows per (batch, stage epoch, task, attempt), until they are prepared or overtaken.
        self.parts: dict[tuple[int, int, int, int], Rows] = {}
        self.prepared: dict[int, PreparedBatch] = {}
        #: Commits heard of before there was a base.
        self.commits: dict[int, CommitRecord] = {}
        self.sealed: deque[Block] = deque()

    @property
    def retained(self) -> int:
        return self.sealed[-1].end - self.sealed[0].start if self.sealed else 0

    def deliver(self, batch: int, epoch: int, task: int, attempt: int, rows: Rows) -> None:
        if batch <= self.last:
            return
        if any(key[1] < epoch for key in self.parts):  # of drivers that are over: nothing can name them any more
            self.parts = {key: held for key, held in self.parts.items() if key[1] >= epoch}
        self.parts[(batch, epoch, task, attempt)] = rows

    def prepare(self, batch: int, epoch: int, attempt: int, accepted: dict[int, int], watermark: int) -> bool:
        """Freeze a try of the driver; false if rows of it are missing."""
        if batch <= self.last:
            return True
        held = self.prepared.get(batch)
        if held is not None and (held.epoch, held.attempt) >= (epoch, attempt):
            return (held.epoch, held.attempt) == (epoch, attempt)
        rows: Rows = ()
        for task in sorted(accepted):
            part = self.parts.get((batch, epoch, task, accepted[task]))
            if part is None:
                return False
            rows = rows + part
        self.prepared[batch] = PreparedBatch(batch, epoch, attempt, rows, watermark)
        return True

    def seal(self, commit: CommitRecord) -> Block | None:
        """Give the committed batch its positions. None: it already had them, or there is no base yet."""
        if not self.based:
            self.commits[commit.batch] = commit
            return None
        if commit.batch <= self.last:
            return None
        check(commit.batch == self.last + 1, "a batch is missing", f"{self.edge}: {commit.batch} after {self.last}")
        held = self.prepared.get(commit.batch)
        right = held is not None and (held.epoch, held.attempt) == (commit.epoch, commit.attempt)
        check(right, "a committed batch was not prepared here", f"{self.edge}: {commit} but {held}")
        block = batch_block(self.next, held.rows if held else (), commit.watermark, commit.batch)
        self.sealed.append(block)
        self.next = block.end
        self.last = commit.batch
        self._forget()
        return block

    def _forget(self) -> None:
        last = self.last
        self.parts = {key: rows for key, rows in self.parts.items() if key[0] > last}
        self.prepared = {batch: held for batch, held in self.prepared.items() if batch > last}

    def drop(self, position: int) -> None:
        """The image covers everything before `position`."""
        while self.sealed and self.sealed[0].end <= position:
            self.sealed.popleft()

    def part(self) -> HandedPart:
        return HandedPart(self.next, self.last, tuple(self.sealed), tuple(self.prepared.values()))

    def rebase(self, part: HandedPart) -> list[Block]:
        """Stand where the primary stands; what this copy heard meanwhile comes on top. Returns what is sealed by it."""
        self.based = True
        own = [block for block in self.sealed if block.start >= part.next]
        self.sealed = deque((*part.sealed, *own))
        self.next = max(part.next, self.next)
        self.last = max(part.last, self.last)
        for held in part.prepared:
            mine = self.prepared.get(held.batch)
            if mine is None or (mine.epoch, mine.attempt) < (held.epoch, held.attempt):
                self.prepared[held.batch] = held
        self._forget()
        heard = [self.commits[batch] for batch in sorted(self.commits) if batch > self.last]
        self.commits = {}
        return [block for block in map(self.seal, heard) if block]

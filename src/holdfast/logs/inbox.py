"""Input that a stage handed over: held by the primary and by the backup until it is safe.

A batch goes through two steps on each holder: held (one try of it, the newest that was delivered) and sealed (it gets
its positions, and counts). A batch that comes twice counts once, because batch ids have no holes and `last` only
grows. Sealing is by the commit record: a holder seals exactly the try that was committed, and only if it has the rows
that the record names, whoever asks.

A copy that has no image yet has no base: it keeps what it is told, and `rebase` puts it in order when the whole capture
comes. One that starts empty (`landing`) stands where the first commit says that it hears of: before that batch, if it
holds the very try, else after it. Until it has sealed a block of its own a later commit moves it again: the first may
have come from a driver that was overtaken. The primary drops a block when it has taken it; the backup when its image
covers it.

Where the stage logs its batches in the stable store (`logged`), a copy may be told of a commit whose rows it never got:
all copies were gone, and this one started from a checkpoint. It keeps the commit, and seals when the rows have been
loaded (`fill`). The log has them: a batch counts only once it is there.
"""

from __future__ import annotations

from collections import deque

from holdfast.errors import WrongMessageError, refuse_if
from holdfast.model.block import Block, Digest, Gap, Rows, batch_block, batch_length, digest_of
from holdfast.model.ids import Edge
from holdfast.model.parts import CommitRecord, HandedPart, HeldBatch, LoggedBatch


class Inbox:
    __slots__ = ("based", "commits", "edge", "held", "landing", "last", "logged", "next", "sealed")

    def __init__(self, edge: Edge, based: bool) -> None:
        self.edge = edge
        #: False until a whole capture says where this edge stands.
        self.based = based
        #: This copy started empty, and has sealed no block of its own.
        self.landing = False
        #: Position of the next block to be sealed. Never goes back.
        self.next = 0
        #: Last sealed batch.
        self.last = -1
        #: The newest try of each batch that is not sealed. (More than one batch only where there is no base.)
        self.held: dict[int, HeldBatch] = {}
        #: The stage keeps its batches in the store, too.
        self.logged = False
        #: Commits heard of before there was a base, or before the rows were here.
        self.commits: dict[int, CommitRecord] = {}
        self.sealed: deque[Block] = deque()

    @property
    def retained(self) -> int:
        return self.sealed[-1].end - self.sealed[0].start if self.sealed else 0

    def hold(self, batch: int, epoch: int, attempt: int, rows: Rows) -> Digest | None:
        """Keep this try until it is sealed or a newer one comes; which rows are held for it. None: it is overtaken."""
        if batch <= self.last:
            return None
        held = self.held.get(batch)
        if held is None or (held.epoch, held.attempt) < (epoch, attempt):
            held = self.held[batch] = HeldBatch(batch, epoch, attempt, rows, digest_of(rows))
        return held.digest if (held.epoch, held.attempt) == (epoch, attempt) else None

    def seal(self, commit: CommitRecord) -> Block | None:
        """Give the committed batch its positions. None: it already had them, or there is no base yet."""
        if self.landing:
            self._stand(commit)
        if not self.based:
            self.commits[commit.batch] = commit
            return None
        if commit.batch <= self.last:
            return None
        if self.logged and (commit.batch != self.last + 1 or not self._is_right(commit)):
            self.commits[commit.batch] = commit
            return None
        where = f"{self.edge}, batch {commit.batch} after {self.last}"
        refuse_if(commit.batch != self.last + 1, "a batch is missing", where)
        held = self.held.get(commit.batch)
        if held is None or not self._is_right(commit):
            raise WrongMessageError("a committed batch is not held here", detail=where)
        gap = Gap(commit.gap) if commit.gap else None
        block = batch_block(self.next, held.rows, commit.watermark, commit.batch, commit.highest, gap)
        refuse_if(block.end != commit.ends.get(self.edge), "a batch ends elsewhere than its commit says", where)
        self.sealed.append(block)
        self.next = block.end
        self.last = commit.batch
        self.landing = False
        self._forget()
        return block

    @property
    def owed(self) -> tuple[int, int] | None:
        """First and last of the batches that count and cannot be sealed, since they never came here."""
        return (self.last + 1, max(self.commits)) if self.based and self.commits else None

    def fill(self, found: tuple[LoggedBatch, ...]) -> list[Block]:
        """Seal what is owed with batches out of the log. Each names the commit before it; of the last one the commit is
        here. Whatever of it is missing stays owed."""
        for one in found:
            if one.last is not None and one.last.batch > self.last:
                self.commits[one.last.batch] = one.last
        tries = {(one.held.batch, one.held.epoch, one.held.attempt): one.held for one in found}
        sealed: list[Block] = []
        while (commit := self.commits.get(self.last + 1)) is not None:
            if not self._is_right(commit) and (commit.batch, commit.epoch, commit.attempt) in tries:
                self.held[commit.batch] = tries[commit.batch, commit.epoch, commit.attempt]
            if not self._is_right(commit):
                break
            block = self.seal(commit)
            if block is not None:
                sealed.append(block)
        return sealed

    def pass_over(self, position: int) -> list[Block]:
        """The log has not what is owed: it was let go of, since every copy has consumed it. What an image has taken by
        captures it need not have. Returns what can be sealed then."""
        behind = [c for c in self.commits.values() if c.ends.get(self.edge, position + 1) <= position]
        if not behind:
            return []
        newest = max(behind, key=lambda commit: commit.batch)
        self.last, self.next = newest.batch, newest.ends[self.edge]
        self._forget()
        return self.fill(())

    def _is_right(self, commit: CommitRecord) -> bool:
        """Is the committed try held here, with the rows that were committed?"""
        held = self.held.get(commit.batch)
        named = (commit.epoch, commit.attempt, commit.digests.get(self.edge))
        return held is not None and (held.epoch, held.attempt, held.digest) == named

    def _stand(self, commit: CommitRecord) -> None:
        """An empty start: let the edge go on from this commit."""
        if self.based and commit.batch <= self.last:
            return
        self.based, self.last, self.next = True, commit.batch, commit.ends[self.edge]
        if self._is_right(commit):
            self.last -= 1
            self.next -= batch_length(commit.digests[self.edge].rows)
        self._forget()

    def begin(self) -> None:
        """An empty start, and the stage has committed nothing yet."""
        self.based = True

    def _forget(self) -> None:
        self.held = {batch: held for batch, held in self.held.items() if batch > self.last}
        self.commits = {batch: commit for batch, commit in self.commits.items() if batch > self.last}

    def drop(self, position: int) -> None:
        """The image covers everything before `position`."""
        while self.sealed and self.sealed[0].end <= position:
            self.sealed.popleft()

    def part(self) -> HandedPart:
        return HandedPart(self.next, self.last, tuple(self.sealed), tuple(self.held.values()), self.landing)

    def rebase(self, part: HandedPart) -> list[Block]:
        """Stand where the primary stands; what this copy heard meanwhile comes on top. Returns what is sealed by it."""
        self.based, self.landing = True, part.landing
        own = [block for block in self.sealed if block.start >= part.next]
        self.sealed = deque((*part.sealed, *own))
        self.next = max(part.next, self.next)
        self.last = max(part.last, self.last)
        for held in part.held:
            mine = self.held.get(held.batch)
            if mine is None or (mine.epoch, mine.attempt) < (held.epoch, held.attempt):
                self.held[held.batch] = held
        self._forget()
        heard = [self.commits[batch] for batch in sorted(self.commits) if batch > self.last]
        self.commits = {}
        return [block for block in map(self.seal, heard) if block]

"""Messages of ledgers: what a driver asks, and what they tell each other; `model/messages.py` has the others."""

from __future__ import annotations

from holdfast.model.block import batch_length
from holdfast.model.ids import Address, Asset, Edge, ledger_of, stage_edge, stage_of
from holdfast.model.message import FOREIGN_STEP, FencedBy, Message, SaidBy, View, ahead, epoch_ahead
from holdfast.model.parts import CommitRecord, LedgerPage
from holdfast.model.ranges import Number, NumberOrNone


class LedgerOpen(Message, frozen=True, kw_only=True):
    """A new driver takes over: from now on refuse older ones, and tell me the last commit."""

    fenced_by = (FencedBy.NOT_AHEAD, FencedBy.OWN)
    said_by = SaidBy.DRIVER
    key = ("stage", "epoch")
    stage: Asset
    epoch: Number
    query: str

    @property
    def ledger(self) -> Asset:
        return ledger_of(self.stage)

    def objection(self, source: Address, view: View) -> str:
        if self.stage not in view.record.places:
            return ahead(f"epoch of {self.stage}", self.epoch, view.fence_of(self.stage), FOREIGN_STEP)
        return epoch_ahead(view, self.stage, self.epoch)


class LedgerWrite(Message, frozen=True, kw_only=True):
    """To every disk of the ledger: keep this commit. `since` is the version of the ledger's place."""

    fenced_by = (FencedBy.NOT_AHEAD, FencedBy.THIS_PLACE, FencedBy.OWN)
    said_by = SaidBy.DRIVER
    key = ("stage", "epoch")
    stage: Asset
    epoch: Number
    since: Number
    commit: CommitRecord

    @property
    def ledger(self) -> Asset:
        return ledger_of(self.stage)

    def objection(self, source: Address, view: View) -> str:
        if self.commit.epoch != self.epoch:
            return f"a driver of epoch {self.epoch} writes what one of {self.commit.epoch} has delivered"
        return commit_objection(self.commit, self.epoch, edges_of(self.stage, view))


class LedgerWritten(Message, frozen=True, kw_only=True):
    """To the driver: this commit is on my disk, put there under this version of the ledger's place."""

    fenced_by = (FencedBy.ASKED,)
    said_by = SaidBy.MEMBER
    stage: Asset
    epoch: Number
    since: Number
    commit: CommitRecord

    def objection(self, source: Address, view: View) -> str:
        return commit_objection(self.commit, self.epoch, edges_of(self.stage, view))


class LedgerState(Message, frozen=True, kw_only=True):
    """To a driver that opens: what every disk has now."""

    fenced_by = (FencedBy.ASKED,)
    said_by = SaidBy.MEMBER
    stage: Asset
    epoch: Number
    commit: CommitRecord | None

    def objection(self, source: Address, view: View) -> str:
        return commit_objection(self.commit, self.epoch, edges_of(self.stage, view)) if self.commit else ""


class LedgerCopy(Message, frozen=True, kw_only=True):
    fenced_by = (FencedBy.THIS_PLACE,)
    said_by = SaidBy.PRIMARY
    ledger: Asset
    since: Number
    page: LedgerPage

    def objection(self, source: Address, view: View) -> str:
        return _page_objection(self.ledger, self.page, view)


class LedgerCopied(Message, frozen=True, kw_only=True):
    """A page of this rank is on my disk."""

    fenced_by = (FencedBy.THIS_PLACE,)
    said_by = SaidBy.HOLDER
    ledger: Asset
    since: Number
    rank: tuple[Number, NumberOrNone]
    #: The page, if it is not the one that was sent: the primary died while it wrote, and has an older one.
    ahead: LedgerPage | None = None

    def objection(self, source: Address, view: View) -> str:
        return _page_objection(self.ledger, self.ahead, view) if self.ahead else ""


def edges_of(stage: Asset, view: View) -> set[Edge]:
    return {stage_edge(stage, shard) for shard in view.topology.stage[stage].shards}


def commit_objection(commit: CommitRecord, epoch: int, edges: set[Edge]) -> str:
    """Could a driver of this epoch know of it, or have written it? It says where each of these edges stands."""
    if commit.epoch > epoch or commit.attempt < 1:
        return f"batch {commit.batch} is of epoch {commit.epoch}, try {commit.attempt}"
    for edge in edges:
        digest, end = commit.digests.get(edge), commit.ends.get(edge)
        if digest is None or end is None:
            return f"batch {commit.batch} does not say where {edge} stands"
        if end < batch_length(digest.rows) + 2 * commit.batch:
            return f"{edge} cannot end at {end} after batch {commit.batch}"
    return ""


def _page_objection(ledger: Asset, page: LedgerPage, view: View) -> str:
    stage = stage_of(ledger)
    why = epoch_ahead(view, stage, page.fence)
    return why or (commit_objection(page.commit, page.fence, edges_of(stage, view)) if page.commit else "")

"""Notes about the hand-over from stages; `model/notes.py` has the others, and brings all of them together."""

from __future__ import annotations

from holdfast.model.block import Block
from holdfast.model.ids import Asset, Edge, Seat
from holdfast.model.note import Note, Told
from holdfast.model.parts import CommitRecord
from holdfast.model.reasons import HandOverReason


class Delivered(Note, frozen=True):
    checked = False
    stage: Asset
    batch: int
    seat: Seat
    epoch: int
    attempt: int


class Differs(Note, frozen=True):
    """A holder got other rows than were sent to it: this try must not be committed."""

    checked = False
    stage: Asset
    epoch: int
    batch: int
    attempt: int
    seat: Seat


class Sealed(Note, frozen=True):
    checked = True
    shard: Asset
    edge: Edge
    seat: Seat
    block: Block


class TurnedAway(Note, frozen=True):
    checked = False
    told = Told("turned-away", "Batch {batch} of {stage} was turned away by {seat}: {reason}.", 1)
    stage: Asset
    epoch: int
    batch: int
    seat: Seat
    reason: HandOverReason


class CommitTaken(Note, frozen=True):
    """A disk of the ledger takes a driver's commit of this batch."""

    checked = False
    stage: Asset
    epoch: int
    batch: int
    seat: Seat


class Ledgered(Note, frozen=True):
    """A driver has opened the ledger, and every disk of it has this page: (fence, last batch)."""

    checked = True
    stage: Asset
    epoch: int
    rank: tuple[int, int]


class StageOpen(Note, frozen=True):
    checked = False
    stage: Asset
    epoch: int
    batch: int


class AllDelivered(Note, frozen=True):
    checked = False
    stage: Asset
    epoch: int
    batch: int
    attempt: int


class Committed(Note, frozen=True):
    checked = True
    stage: Asset
    epoch: int
    commit: CommitRecord


class AllSealed(Note, frozen=True):
    """Every holder has told the driver that this batch has its positions."""

    checked = False
    stage: Asset
    epoch: int
    batch: int


class BatchDone(Note, frozen=True):
    checked = False
    stage: Asset
    epoch: int
    batch: int


class StageOver(Note, frozen=True):
    checked = False
    stage: Asset
    epoch: int
    reason: HandOverReason

"""What a step decided about the stable store: notes of `model/notes.py`."""

from __future__ import annotations

from holdfast.model.ids import Asset, Edge, Seat
from holdfast.model.note import Note, Told


class Stored(Note, frozen=True):
    """A checkpoint that has consumed this much of every input is in the stable store."""

    checked = True
    shard: Asset
    epoch: int
    to: tuple[tuple[Edge, int], ...]


class StoreRefused(Note, frozen=True):
    """The store did not take a checkpoint, or does not answer. The next one is tried after the interval."""

    checked = False
    told = Told("checkpoint-failed", "A checkpoint of {shard} could not be stored: {why}", 5)
    shard: Asset
    epoch: int
    why: str


class Restoring(Note, frozen=True):
    """All copies of a shard are gone: the store is asked for its newest checkpoint."""

    checked = False
    told = Told("restoring", "{seat} asks the store for the newest checkpoint of {shard}.")
    shard: Asset
    seat: Seat
    epoch: int


class Restored(Note, frozen=True):
    """A shard goes on from a checkpoint that has consumed this much of every input."""

    checked = True
    shard: Asset
    seat: Seat
    epoch: int
    to: tuple[tuple[Edge, int], ...]


class RestoreFailed(Note, frozen=True):
    """The store has no checkpoint that can be read, or does not answer. It is asked again."""

    checked = False
    told = Told("restore-failed", "{shard} cannot be restored: {why} It is tried again.", 5)
    shard: Asset
    epoch: int
    why: str


class LookedUp(Note, frozen=True):
    """The batches of an edge that count and never came here were had from the log, and there are no more of them."""

    checked = False
    shard: Asset
    edge: Edge


class LookupFailed(Note, frozen=True):
    """Batches that count could not be had from the log of their stage. It is asked again."""

    checked = False
    told = Told("restore-failed", "{shard} lacks batches {first} to {last} of {edge}: {why} It is tried again.", 5)
    shard: Asset
    edge: Edge
    first: int
    last: int
    why: str


class LogRefused(Note, frozen=True):
    """The store did not take a batch, or does not answer. It is tried again."""

    checked = False
    told = Told("log-failed", "Batch {batch} of {stage} could not be stored: {why} It is tried again.", 5)
    stage: Asset
    epoch: int
    batch: int
    why: str


class Logged(Note, frozen=True):
    """A try of a batch is in the store."""

    checked = True
    stage: Asset
    epoch: int
    batch: int
    attempt: int

"""What a step decided about work that a disk does: notes of `model/notes.py`."""

from __future__ import annotations

from holdfast.model.ids import Asset, Edge
from holdfast.model.note import Note, Told


class Spilled(Note, frozen=True):
    """Output before this position is on the node's disk, and no longer in memory."""

    checked = True
    shard: Asset
    edge: Edge
    to: int


class SpillRefused(Note, frozen=True):
    """The disk did not take what a queue wanted to put there, or does not answer. It is tried again."""

    checked = False
    told = Told("disk-full", "Output of {edge} cannot be spilled: {why}", 5)
    shard: Asset
    edge: Edge
    why: str


class DeadKept(Note, frozen=True):
    """What a shard has set aside before this position is in files."""

    checked = True
    shard: Asset
    to: int


class DeadRefused(Note, frozen=True):
    """The disk did not take what a shard has set aside, or does not answer. It is tried again."""

    checked = False
    told = Told("disk-full", "What {shard} has set aside cannot be written: {why}", 5)
    shard: Asset
    why: str


class SpillAgain(Note, frozen=True):
    checked = False
    told = Told("disk-again", "Output of {edge} can be spilled again.")
    shard: Asset
    edge: Edge

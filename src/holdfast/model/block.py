"""The elements of an edge, in the runs in which they are made.

A block is a run of elements with consecutive positions: its rows, then one watermark, then (on an edge from a stage)
one batch end. It may also say that rows are missing (`Gap`). Blocks are the atom of everything: a shard takes a whole
block from one edge, so the order of its input is a function of the edges alone, and a copy that replays makes the same
blocks at the same positions. Positions never point into a block.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model.ranges import NumberOrNone, Position, Time

#: A row of the modelled operator: (key, time, value).
Row = tuple[int, int, int]
#: Rows as the core sees them: opaque, immutable, with a length and a hash (`digest_of`); `()` is none. Tuples of `Row`
#: in the simulator, Arrow batches on real nodes.
Rows = Any

#: Watermark of an edge on which nothing was sealed yet, and of one that is finished.
WATERMARK_MIN = -1
WATERMARK_MAX = 1 << 62


class Digest(msgspec.Struct, frozen=True, array_like=True):
    """Which rows they are: how many, and a hash of them in their order. Runs of rows with one digest are the same."""

    rows: Position
    hash: int


NO_DIGEST = Digest(0, 0)


def digest_of(rows: Rows) -> Digest:
    """Tuples are hashed here (of integers: the same in every process); other rows bring a `hash64` of their own."""
    if not len(rows):
        return NO_DIGEST
    return Digest(len(rows), hash(rows) if isinstance(rows, tuple) else rows.hash64)


class Gap(msgspec.Struct, frozen=True, array_like=True):
    """Rows that lie before event time `to`, and have not come by here, may never come."""

    to: Time
    #: An empty start: whatever came between where a consumer stands and here is lost, and it goes on from here.
    jump: bool = False


class Block(msgspec.Struct, frozen=True, array_like=True):
    """Elements [start, end) of an edge."""

    start: Position
    end: Position
    rows: Rows
    watermark: Time
    #: Batch id on an edge from a stage, where the batch end is an element of its own; -1 on an edge from a shard.
    batch: NumberOrNone = -1
    #: No row up to here lies beyond this event time.
    highest: Time = WATERMARK_MIN
    gap: Gap | None = None

    @property
    def jumps(self) -> bool:
        return self.gap is not None and self.gap.jump


def shard_block(start: int, rows: Rows, watermark: int, highest: int = WATERMARK_MIN, gap: Gap | None = None) -> Block:
    return Block(start, start + len(rows) + 1, rows, watermark, -1, highest, gap)


def cut_rows(rows: Rows, most: int) -> list[Rows]:
    """The rows in runs of at most so many each; at least one run."""
    return [rows[at : at + most] for at in range(0, len(rows), most)] if len(rows) > most else [rows]


#: A shard that starts empty numbers its output from `epoch << EPOCH_SHIFT`. Whatever it emitted before was numbered
#: from a lower epoch's base on, or from 0, and no epoch lives for 2**40 elements: nobody need be asked how far it was.
EPOCH_SHIFT = 40


def base_of(epoch: int) -> int:
    """Where the output of a shard begins that starts empty at this epoch."""
    return epoch << EPOCH_SHIFT


def elements(start: int, end: int) -> int:
    """How many elements [start, end) can have: not those that an empty start has passed over."""
    return end - max(start, base_of(end >> EPOCH_SHIFT))


def batch_length(rows: int) -> int:
    """Elements of a batch: its rows, the watermark and the batch end."""
    return rows + 2


def batch_block(
    start: int, rows: Rows, watermark: int, batch: int, highest: int = WATERMARK_MIN, gap: Gap | None = None
) -> Block:
    return Block(start, start + batch_length(len(rows)), rows, watermark, batch, highest, gap)

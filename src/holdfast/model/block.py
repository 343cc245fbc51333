"""The elements of an edge, in the runs in which they are made.

A block is a run of elements with consecutive positions: its rows, then one watermark, then (on an edge from a
stage) one batch end. Blocks are the atom of everything: a shard takes a whole block from one edge, so the order of
its input is a function of the edges alone, and a copy that replays makes the same blocks at the same positions.
Positions never point into a block.
"""

from __future__ import annotations

from typing import Any

import msgspec

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

    rows: int
    hash: int


def digest_of(rows: Rows) -> Digest:
    """Tuples are hashed here (of integers: the same in every process); other rows bring a `hash64` of their own."""
    if not len(rows):
        return Digest(0, 0)
    return Digest(len(rows), hash(rows) if isinstance(rows, tuple) else rows.hash64)


class Block(msgspec.Struct, frozen=True, array_like=True):
    """Elements [start, end) of an edge."""

    start: int
    end: int
    rows: Rows
    watermark: int
    #: Batch id on an edge from a stage, where the batch end is an element of its own; -1 on an edge from a shard.
    batch: int = -1


def shard_block(start: int, rows: Rows, watermark: int) -> Block:
    return Block(start, start + len(rows) + 1, rows, watermark)


def batch_length(rows: int) -> int:
    """Elements of a batch: its rows, the watermark and the batch end."""
    return rows + 2


def batch_block(start: int, rows: Rows, watermark: int, batch: int) -> Block:
    return Block(start, start + batch_length(len(rows)), rows, watermark, batch)

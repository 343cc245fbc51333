"""A skip: one block that a shard does not step, because its operator cannot take it and a person has said so.

It changes what comes out of the shard, so it is in the record, by edge and position, before any copy passes over the
block, and it comes with a new epoch. Every copy that meets the block treats it alike: its rows become dead letters,
its watermark counts. When every place that keeps the shard's state stands behind it, the record forgets it.
"""

from __future__ import annotations

import msgspec

from holdfast.model.ids import Asset, Edge, producer_stage
from holdfast.model.ranges import NumberOrNone, Position

#: A shard may have so many in the record: each makes it larger, and every node keeps it.
SKIPS_MAX = 32
#: So much of the reason is kept.
WHY_MAX = 300


class Skip(msgspec.Struct, frozen=True, array_like=True):
    """The block [start, end) of an edge, and why the operator could not take it."""

    edge: Edge
    start: Position
    end: Position
    #: On an edge from a stage; -1 on one from a shard.
    batch: NumberOrNone = -1
    why: str = ""

    @property
    def key(self) -> tuple[Edge, int]:
        return (self.edge, self.start)

    @property
    def source(self) -> str:
        """What a person calls where it came from: the stage, whose batches have numbers, or the edge of a shard."""
        return producer_stage(self.edge) or self.edge

    @property
    def number(self) -> int:
        """What a person calls it: the number of a batch, or its position."""
        return self.start if self.batch < 0 else self.batch

    @property
    def reason(self) -> str:
        """Of each of its rows, as dead letters."""
        return f"{SKIPPED}: {self.why}"

    def __str__(self) -> str:
        span = f"[{self.start}, {self.end}) of {self.edge}"
        return span if self.batch < 0 else f"batch {self.batch} of {self.source}"


#: How the reason of a row begins that was skipped.
SKIPPED = "skipped by hand"


def command(shard: Asset, skip: Skip) -> str:
    """What a person types to have it skipped."""
    return f"holdfast skip {shard} {skip.source} {skip.number}"


def objection(skips: tuple[Skip, ...], inputs: tuple[Edge, ...] | None) -> str:
    """Why a shard with these inputs cannot have these skips; empty: it can. (A driver does not know all of them.)"""
    if len(skips) > SKIPS_MAX or len({skip.key for skip in skips}) < len(skips):
        return "it has too many skips, or one twice"
    for skip in skips:
        batches = producer_stage(skip.edge) != ""
        foreign = inputs is not None and skip.edge not in inputs
        if foreign or skip.end <= skip.start or (skip.batch < 0) is batches:
            return "it skips what it cannot have"
        if len(skip.why) > WHY_MAX or not skip.why.isprintable():
            return "it skips for a reason that cannot be shown"
    return ""

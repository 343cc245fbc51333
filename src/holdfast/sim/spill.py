"""Spill files of the virtual world: a disk that takes its time, answers in any order, refuses, and falls silent.

What is written is there when the write has ended, not before, and goes with the life of its node. Rows that this disk
has taken know it: so a checker can tell what is on disk from what a queue only counts as such.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from holdfast.core.ready import DropSpill, Spill
from holdfast.model.block import Block, Row
from holdfast.model.ids import Edge


class SpilledRows:
    """Rows in a file of one disk; equal to the same rows anywhere else."""

    __slots__ = ("_rows", "disk")

    def __init__(self, disk: SpillDisk, rows: tuple[Row, ...]) -> None:
        self.disk = disk
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    def __eq__(self, other: object) -> bool:
        return self._rows == (other._rows if isinstance(other, SpilledRows) else other)

    def __hash__(self) -> int:
        return hash(self._rows)

    def __repr__(self) -> str:
        return repr(self._rows)  # a trace shows the rows, which are the same in every run, and not an address


class SpillDisk:
    """The spill files of one life of a node."""

    __slots__ = ("_asked", "_drops", "files")

    def __init__(self) -> None:
        #: Files of each edge: where each begins and ends.
        self.files: dict[Edge, list[tuple[int, int]]] = {}
        #: How many effects came, and what was to be dropped after how many: a drop means what was asked for before.
        self._asked = 0
        self._drops: dict[Edge, list[tuple[int, int]]] = {}

    def ask(self) -> int:
        """A write is asked for: its number among all effects."""
        self._asked += 1
        return self._asked

    def drop(self, effect: DropSpill) -> None:
        self._drops.setdefault(effect.edge, []).append((self.ask(), effect.to))
        kept = [file for file in self.files.get(effect.edge, ()) if file[1] > effect.to]
        self.files[effect.edge] = kept

    def write(self, number: int, effect: Spill) -> tuple[object, ...]:
        """The write has ended: what stands for the rows of its blocks."""
        start, end = effect.blocks[0].start, effect.blocks[-1].end
        if not any(at > number and end <= to for at, to in self._drops.get(effect.edge, ())):
            self.files.setdefault(effect.edge, []).append((start, end))
        return tuple(SpilledRows(self, tuple(block.rows)) for block in effect.blocks)

    def has(self, block: Block) -> bool:
        """Do the rows of this block come from here?"""
        return isinstance(block.rows, SpilledRows) and block.rows.disk is self

    @property
    def elements(self) -> int:
        return sum(end - start for files in self.files.values() for start, end in files)


class LetterBox:
    """The dead letters of one shard, in a directory that outlives every node: one file a block, by its position."""

    __slots__ = ("clash", "files")

    def __init__(self) -> None:
        self.files: dict[int, Block] = {}
        #: What was written over something else.
        self.clash: Block | None = None

    def write(self, blocks: tuple[Block, ...]) -> None:
        for block in blocks:
            if self.files.setdefault(block.start, block) != block:
                self.clash = block


def delay_ns(rng: Random, sync_ns: int) -> int:
    """How long a write takes: now and then very much longer than the one after it."""
    return sync_ns * rng.choice((1, 1, 2, 5, 20))

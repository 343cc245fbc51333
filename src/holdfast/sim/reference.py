"""What every edge must carry, computed without nodes, faults or time: the same input, one copy, in order.

The reference takes a batch as soon as the first copy seals it; every other copy, every emission and every row that a
consumer accepts is then compared with it, element by element. `recompute` goes further: it throws away even the
operator and computes all windows from the source's rows in one batch, as a Spark batch job would.
"""

from __future__ import annotations

from collections.abc import Collection

from holdfast.model.block import WATERMARK_MIN, Block, Row, Rows, cut_rows, shard_block
from holdfast.model.ids import Asset, Edge, dead_edge, maker_of
from holdfast.model.parts import CommitRecord
from holdfast.model.topology import Topology
from holdfast.sim.costs import Costs
from holdfast.sim.operators import SUM_MAX, Meter, WindowSum


class Reference:
    def __init__(
        self, topology: Topology, window_ns: int, sum_max: int = SUM_MAX, poison: Collection[Row] = ()
    ) -> None:
        self.topology = topology
        self.window_ns = window_ns
        self.sum_max = sum_max
        self.readers: dict[Edge, list[Asset]] = {}
        for shard in topology.shards:
            for edge in shard.inputs:
                self.readers.setdefault(edge, []).append(shard.id)
        #: Rows that some operator cannot take; and which blocks that have one are skipped (False: taken).
        self.poison = poison
        self.skips: dict[tuple[Asset, Edge, int], bool] = {}
        #: Where the shards have left it, by edge: behind a gap others have to say what is right.
        self.left_at: dict[Edge, int] = {}
        #: What stages have handed over, in this order.
        self.added: list[tuple[Edge, Block]] = []
        self._begin()

    def _begin(self) -> None:
        topology = self.topology
        edges = [*topology.producer, *map(dead_edge, topology.shard)]
        self.blocks: dict[Edge, list[Block]] = {edge: [] for edge in edges}
        #: The same by position, to compare with.
        self.at: dict[Edge, dict[int, Block]] = {edge: {} for edge in edges}
        self.next: dict[Edge, int] = dict.fromkeys(edges, 0)
        self.taken: dict[Asset, dict[Edge, int]] = {u.id: dict.fromkeys(sorted(u.inputs), 0) for u in topology.shards}
        self.watermarks = {u.id: dict.fromkeys(sorted(u.inputs), WATERMARK_MIN) for u in topology.shards}
        self.highest = dict.fromkeys(self.taken, WATERMARK_MIN)
        self.ops = {u.id: WindowSum(u, self.window_ns, Costs(), Meter(), self.sum_max) for u in topology.shards}

    def add(self, edge: Edge, block: Block) -> None:
        self.added.append((edge, block))
        self._emit(edge, block)
        self._run(edge)

    def _run(self, edge: Edge) -> None:
        """Step everything downstream of an edge, as far as it goes."""
        open_edges = [edge]
        while open_edges:
            for shard in self.readers.get(open_edges.pop(), ()):
                while self._step(shard):
                    open_edges.extend(e for e in self.topology.shard[shard].outputs if e not in open_edges)

    def decide(self, shard: Asset, at: tuple[Edge, int], *, skip: bool) -> bool:
        """A block is skipped, or it was taken; false: the other is known. What waited for it goes on."""
        known = self.skips.setdefault((shard, *at), skip)
        self._run(at[0])
        return known is skip

    def redo(self, shard: Asset, at: tuple[Edge, int]) -> dict[Edge, int]:
        """A block that was taken is skipped after all. From which position on does each edge carry something else? What
        was known of blocks of other shards' output that were taken has to be found out again."""
        before = self.blocks
        self.skips = {key: skip for key, skip in self.skips.items() if skip or self.topology.is_stage_edge(key[1])}
        self.skips[(shard, *at)] = True
        self._begin()
        for edge, block in self.added:
            self._emit(edge, block)
            self._run(edge)
        return {
            edge: parted for edge, known in before.items() if (parted := _parted(known, self.blocks[edge])) is not None
        }

    def block_at(self, edge: Edge, start: int) -> Block | None:
        """What must be at this position. Whoever asks has seen a block there: if the reference waits to hear what
        became of a block before it, that one was taken. (Also before an input of its maker: one that started empty has
        other positions, and its own output is not asked for.)"""
        while start not in self.at[edge] and (found := self._waits(maker_of(edge))) is not None:
            shard, at = found
            self.decide(shard, at, skip=False)
        return self.at[edge].get(start)

    def is_open(self, edge: Edge, start: int) -> bool:
        """Is it not known yet what belongs there, because a block before it may be skipped?"""
        is_mine = start < self.left_at.get(edge, start + 1)
        return is_mine and start not in self.at[edge] and self._waits(maker_of(edge)) is not None

    def _waits(self, shard: Asset) -> tuple[Asset, tuple[Edge, int]] | None:
        """Which block of this shard, or of one that feeds it, waits for a decision?"""
        at = self._open(shard)
        if at is not None:
            return shard, at
        makers = [maker_of(edge) for edge in self.taken.get(shard, ()) if not self.topology.is_stage_edge(edge)]
        return next((found for maker in makers if (found := self._waits(maker)) is not None), None)

    def _open(self, shard: Asset) -> tuple[Edge, int] | None:
        """The block before which it waits for a decision."""
        found = self._next(shard) if shard in self.taken else None
        if found is None:
            return None
        edge, block = found
        is_open = (shard, edge, block.start) not in self.skips and any(row in self.poison for row in block.rows)
        return (edge, block.start) if is_open else None

    def _next(self, shard: Asset) -> tuple[Edge, Block] | None:
        marks = self.watermarks[shard]
        edge = min(marks, key=lambda e: marks[e])  # they are sorted: the first of equals
        index = self.taken[shard][edge]
        return (edge, self.blocks[edge][index]) if index < len(self.blocks[edge]) else None

    def _step(self, shard: Asset) -> bool:
        found = self._next(shard)
        if found is None or self._open(shard) is not None:
            return False
        edge, block = found
        marks = self.watermarks[shard]
        lowest = min(marks.values())
        self.taken[shard][edge] += 1
        skip = self.skips.get((shard, edge, block.start), False)
        marks[edge] = block.watermark
        self.highest[shard] = max(self.highest[shard], block.highest)
        after = min(marks.values())
        rows = self.ops[shard].step(edge, () if skip else block.rows, after)
        dead = dead_edge(shard)
        for letters in (block.rows if skip else (), self.ops[shard].aside):
            for part in cut_rows(letters, self.topology.block_rows_max) if letters else ():
                self._emit(dead, shard_block(self.next[dead], part, lowest))
        if after > lowest:
            for out, made in zip(self.topology.shard[shard].outputs, rows, strict=True):
                highest = self.ops[shard].after(self.highest[shard] + 1) - 1
                *first, last = cut_rows(made, self.topology.block_rows_max)
                for part in first:
                    self._emit(out, shard_block(self.next[out], part, lowest, highest))
                self._emit(out, shard_block(self.next[out], last, after, highest))
        return True

    def _emit(self, edge: Edge, block: Block) -> None:
        self.blocks[edge].append(block)
        self.at[edge][block.start] = block
        self.next[edge] = block.end

    def rows(self, edge: Edge) -> list[Row]:
        return [row for block in self.blocks[edge] for row in block.rows]


def _parted(before: list[Block], after: list[Block]) -> int | None:
    """Where two sequences of blocks begin to differ, as far as both go."""
    return next((one.start for one, other in zip(before, after, strict=False) if one != other), None)


def recompute(
    topology: Topology,
    window_ns: int,
    commits: dict[Asset, list[CommitRecord]],
    taken: dict[Asset, list[list[Row]]],
    sum_max: int = SUM_MAX,
    skipped: dict[Asset, list[Row]] | None = None,
) -> tuple[dict[Edge, Rows], int]:
    """All windows of every shard from the sources alone (`taken`: the rows of each batch), less the late rows and those
    that shards have skipped; and how many rows were late."""
    late = 0
    inputs: dict[Asset, list[Row]] = {shard.id: [] for shard in topology.shards}
    for stage in topology.stages:
        watermark = WATERMARK_MIN
        for commit, rows in zip(commits.get(stage.id, ()), taken.get(stage.id, ()), strict=True):
            for row in rows:
                if row[1] < watermark:
                    late += 1
                else:
                    inputs[stage.shards[row[0] % len(stage.shards)]].append(row)
            watermark = commit.watermark
    result: dict[Edge, Rows] = {}
    for shard in topology.shards:  # shards come in the order of the graph: producers first
        for edge in shard.inputs:
            inputs[shard.id].extend(result.get(edge, ()))
        aside = (skipped or {}).get(shard.id, [])
        for row in aside:
            inputs[shard.id].remove(row)
        sums: dict[tuple[int, int], int] = {}
        for key, time, value in inputs[shard.id]:
            at = (time - time % window_ns + window_ns, key)
            sums[at] = sums.get(at, 0) + value
        rows = tuple((key, end - 1, sums[(end, key)]) for end, key in sorted(sums))
        result[dead_edge(shard.id)] = (*aside, *(row for row in rows if row[2] > sum_max))
        for edge in shard.outputs:
            result[edge] = tuple(row for row in rows if row[2] <= sum_max)
    return result, late

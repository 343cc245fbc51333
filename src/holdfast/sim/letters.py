"""Dead letters, checked: what a shard sets aside is what the reference sets aside, and every one is in a file, once.

Behind a gap the reference does not know what belongs there: then the copies are compared with each other, and what is
set aside must be what a batch computation sets aside, every row at most once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from holdfast.model import notes
from holdfast.model.block import EPOCH_SHIFT, Block, Rows, base_of
from holdfast.model.ids import Address, Asset, Edge, dead_edge, maker_of
from holdfast.sim.reference import Reference
from holdfast.sim.skips import SkipRules
from holdfast.sim.world import World


class LetterRules:
    """A part of the checker; `fail` is the checker's."""

    def __init__(
        self,
        world: World,
        reference: Reference,
        fail: Callable[[str, str], None],
        skips: SkipRules,
    ) -> None:
        self.world = world
        self.reference = reference
        self.fail = fail
        self.skips = skips
        #: What was set aside, by whoever came there first; every row of it; and where each shard left the reference.
        self.seen: dict[Asset, dict[int, Block]] = {shard: {} for shard in world.topology.shard}
        self.rows_at: dict[tuple[Asset, int, int], int] = {}
        self.left_at: dict[Asset, int] = {}
        #: What was set aside of a block of which nobody knows whether it will count, with its epoch.
        self.open: list[notes.SetAside] = []
        skips.on_undone = self._forget

    def on_emitted(self, note: notes.Emitted) -> None:
        """Behind a gap the reference has rows that this shard does not."""
        if note.block.gap is not None:
            seen = self.seen[note.shard]
            self.left_at.setdefault(note.shard, seen[max(seen)].end if seen else 0)

    def _forget(self, edge: Edge, start: int) -> None:
        """From here on other rows belong on this edge: a block was skipped after all that a copy had taken."""
        shard = maker_of(edge)
        if edge != dead_edge(shard):
            return
        for at in [at for at in self.seen[shard] if at >= start]:
            if self.world.letters[shard].files.get(at) is not None:
                self.fail("skipped what was taken", f"{shard}: dead letters at {at} are in a file")
            del self.seen[shard][at]
        self.rows_at = {key: at for key, at in self.rows_at.items() if key[0] != shard or at < start}

    def rules(self) -> dict[type[notes.Note], Callable[..., None]]:
        return {notes.SetAside: self.on_set_aside, notes.DeadKept: self.on_kept}

    def on_set_aside(self, source: Address, note: notes.SetAside) -> None:
        self._settle()
        if self._is_open(note):
            self.open.append(note)  # it is in no file, and perhaps never will be
        elif not self.skips.is_overtaken(note.shard, note.epoch):
            self._right(note)

    def _is_open(self, note: notes.SetAside) -> bool:
        left = note.block.start >= self.left_at.get(note.shard, note.block.start + 1)
        return not left and self.reference.is_open(dead_edge(note.shard), note.block.start)

    def _settle(self) -> None:
        """What was set aside of blocks that count, as is known by now, was right. The others were skipped."""
        for note in [note for note in self.open if not self._is_open(note)]:
            self.open.remove(note)
            if not self.skips.is_overtaken(note.shard, note.epoch):
                self._right(note)

    def _right(self, note: notes.SetAside) -> None:
        shard, block = note.shard, note.block
        if block.start >= self.left_at.get(shard, block.start + 1):
            right = self.seen[shard].get(block.start, block)
        else:
            right = self.reference.block_at(dead_edge(shard), block.start)
        if right != block:
            self.fail("wrong rows set aside", f"{shard} (epoch {note.epoch}) has {block}; right is {right}")
        self.seen[shard].setdefault(block.start, block)
        for key, time, value in block.rows:
            if self.skips.has_row(shard, (key, time, value)):
                continue  # of input several rows may have one key and time
            if self.rows_at.setdefault((shard, key, time), block.start) != block.start:
                self.fail("a row was set aside twice", f"{shard}: {key} {time} at {block.start} and before")

    def on_kept(self, source: Address, note: notes.DeadKept) -> None:
        """What counts as written is in a file, as it was set aside; the block that it came of was taken then."""
        for other in [o for o in self.open if o.shard == note.shard and o.block.end <= note.to]:
            if self._is_open(other):
                self.reference.block_at(dead_edge(note.shard), other.block.start)
        self._settle()
        lost = [block for block in self._missing(note.shard) if block.end <= note.to]
        base = base_of(note.to >> EPOCH_SHIFT)  # what lies before an empty start is lost with it
        lost = [block for block in lost if block.start >= base]
        if lost:
            self.fail("dead letters count as written and are not", f"{note}: {lost[:3]}")

    def _missing(self, shard: Asset) -> list[Block]:
        box = self.world.letters[shard]
        if box.clash is not None:
            self.fail("a dead letter was written over another", f"{shard}: {box.clash}")
        return [block for at, block in self.seen[shard].items() if box.files.get(at) != block]

    def unwritten(self) -> list[Asset]:
        """Shards whose dead letters are not all in files. (An empty start may lose some.)"""
        self._settle()
        return [shard for shard in self.seen if shard not in self.left_at and self._missing(shard)]

    def check_end(self, right: dict[Edge, Rows]) -> None:
        """All dead letters are there, once, and no other."""
        for shard, box in self.world.letters.items():
            found = sorted(row for block in box.files.values() for row in block.rows)
            expected = sorted(right[dead_edge(shard)])
            wrong = list(Counter(found) - Counter(expected))  # (of input, several rows may be the same)
            if any(row in expected for row in wrong):
                self.fail("a dead letter is there twice", f"{shard}: {wrong[:3]}")
            if shard in self.left_at or self._is_behind_a_gap(shard):
                if wrong:
                    self.fail("wrong dead letters", f"{shard}: {wrong[:3]}")
            elif found != expected:
                self.fail("the dead letters are not those of the batch result", f"{shard}: {found} != {expected}")

    def _is_behind_a_gap(self, shard: Asset) -> bool:
        """Did something before it start empty, so that its input is not that of the reference?"""
        topology = self.world.topology
        above = [topology.producer[edge] for edge in topology.shard[shard].inputs]
        return any(asset in topology.shard and (asset in self.left_at) for asset in above)

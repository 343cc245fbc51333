"""Skips, checked: nothing is passed over that the record does not name, and nothing that any copy has taken.

Which batches are skipped is decided while a run goes on, by whoever sees a shard stand still. So the reference waits
before a batch that some operator cannot take, until a record skips it or a copy shows that it has taken it.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.model import notes
from holdfast.model.block import Block, Row
from holdfast.model.ids import Address, Asset, Edge, name_of
from holdfast.model.record import Place
from holdfast.model.skips import Skip
from holdfast.sim.reference import Reference
from holdfast.sim.world import World


class SkipRules:
    """A part of the checker; `fail` is the checker's."""

    def __init__(
        self,
        world: World,
        reference: Reference,
        fail: Callable[[str, str], None],
        place_of: Callable[[Asset], Place],
    ) -> None:
        self.world = world
        self.reference = reference
        self.fail = fail
        self.place_of = place_of
        #: Told from which position on an edge carries something else, because a block was skipped after all.
        self.on_undone: Callable[[Edge, int], None] = lambda edge, start: None
        #: What a primary has given up, at which epoch; what records have skipped, from which epoch on.
        self.given_up: dict[tuple[Asset, Edge, int], int] = {}
        self.in_force: dict[tuple[Asset, Edge, int], int] = {}
        #: What a primary has made of a block of which nobody knows whether it will count, by edge, position and epoch.
        self.made: dict[tuple[Edge, int, int], Block] = {}
        #: What was handed over: an operator may come to be unable to take a batch that was sealed before.
        self.sealed: dict[tuple[Edge, int], Block] = {}

    def compare_made(self, edge: Edge) -> None:
        """What was made of a block that may have been skipped was right, now that it is known that it was taken."""
        for at, block in [(at, block) for at, block in self.made.items() if at[0] == edge]:
            right = self.reference.at[edge].get(at[1])
            if right is not None:
                del self.made[at]
                if right != block:
                    self.fail("wrong rows", f"epoch {at[2]} has made {block} on {edge}; the reference has {right}")

    def on_sealed(self, note: notes.Sealed) -> None:
        self.sealed[note.edge, note.block.start] = note.block

    def rules(self) -> dict[type[notes.Note], Callable[..., None]]:
        return {notes.GaveUp: self.on_gave_up, notes.Skipped: self.on_skipped}

    def on_gave_up(self, source: Address, note: notes.GaveUp) -> None:
        self.given_up[note.shard, note.edge, note.start] = note.epoch

    def on_skipped(self, source: Address, note: notes.Skipped) -> None:
        since = self.in_force.get((note.shard, note.edge, note.start))
        if since is None or note.epoch < since:
            self.fail("passed over what the record does not skip", f"{note} on {source}")

    def on_place(self, shard: Asset, before: Place, after: Place) -> None:
        """New skips come with a new epoch, for what was given up; none is forgotten that a copy could meet."""
        for skip in after.skips:
            if skip not in before.skips:
                self._on_new(shard, skip, before, after)
        for skip in before.skips:
            if skip not in after.skips:
                self._on_forgotten(shard, skip, after)

    def _on_new(self, shard: Asset, skip: Skip, before: Place, after: Place) -> None:
        if after.epoch == before.epoch:
            self.fail("a skip without a new epoch", f"{shard}: {skip}, {before} -> {after}")
        if self.given_up.get((shard, *skip.key)) != before.epoch:
            self.fail("skipped what its primary has not given up", f"{shard}: {skip}, {before} -> {after}")
        self.in_force[(shard, *skip.key)] = after.epoch
        outputs = self.world.topology.shard[shard].outputs
        self.made = {at: block for at, block in self.made.items() if at[0] not in outputs or at[2] >= after.epoch}
        if not self.reference.decide(shard, skip.key, skip=True):
            self._undone(shard, skip)

    def _undone(self, shard: Asset, skip: Skip) -> None:
        """Some copy had taken it. That was right only if all who had read what came of it are gone, and with them what
        they knew. (Sinks have what they have written: at the end it is compared.)"""
        for edge, parted in self.reference.redo(shard, skip.key).items():
            for reader in self.reference.readers.get(edge, ()):
                if (at := self._holds_to(reader, edge)) > parted:
                    self.fail("skipped what was taken", f"{shard}: {skip}; {reader} has read {edge} to {at}")
            self.on_undone(edge, parted)

    def _holds_to(self, shard: Asset, edge: Edge) -> int:
        """How far what is known of an edge reaches, of the copies that the record names."""
        place = self.place_of(shard)
        found = 0
        for seat in place.holders:
            node = self.world.node(name_of(seat))
            copy = node.host.copies.get(shard) if node is not None and node.seat == seat else None
            if copy is not None and copy.based and not copy.landing:
                found = max(found, copy.holds_to(edge))
        return found

    def _on_forgotten(self, shard: Asset, skip: Skip, after: Place) -> None:
        for seat in (after.primary, after.backup):
            node = self.world.node(name_of(seat)) if seat else None
            copy = node.host.copies.get(shard) if node is not None and node.seat == seat else None
            if copy is not None and copy.based and not copy.landing and copy.holds_to(skip.edge) < skip.end:
                where = f"on {seat} it is at {copy.holds_to(skip.edge)}"
                self.fail("a skip was forgotten that a copy may meet", f"{shard}: {skip}, {where}")

    def is_overtaken(self, shard: Asset, epoch: int) -> bool:
        """Has a later epoch skipped something? A primary that has slept through it may have taken that; whoever takes
        its rows is found when it does."""
        return any(since > epoch for (skipped, _, _), since in self.in_force.items() if skipped == shard)

    def has_row(self, shard: Asset, row: Row) -> bool:
        return any(row in self.sealed[at[1:]].rows for at in self.in_force if at[0] == shard)

    def rows(self) -> dict[Asset, list[Row]]:
        """What every shard has passed over, or will if it comes there."""
        found: dict[Asset, list[Row]] = {}
        for shard, edge, start in self.in_force:
            found.setdefault(shard, []).extend(self.sealed[edge, start].rows)
        return found

    def is_stuck(self, shard: Asset, place: Place) -> bool:
        """Is its state torn, and no copy of it anywhere? Or cannot this node alone take what was taken, and perhaps
        read? That is more than a skip can mend (a drain can, where another node has a copy)."""
        node = self.world.node(name_of(place.primary)) if place.primary else None
        runner = node.host.runners.get(shard) if node is not None else None
        if runner is None:
            return False
        torn = runner.copy.op.torn and place.backup is None
        return torn or (runner.skips.stands and bool(runner.skips.was_read() or runner.skips.stood_in(place)))

"""Spilled output, checked: what counts as on disk is there, with the right rows, and no file outlives what is in it."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core.ready import DropSpill
from holdfast.logs.output_queue import OutputQueue
from holdfast.model import notes
from holdfast.model.ids import Address, name_of
from holdfast.sim.reference import Reference
from holdfast.sim.world import World


class SpillRules:
    """A part of the checker; `fail` is the checker's, and `same` compares a block with the reference."""

    def __init__(
        self, world: World, reference: Reference, fail: Callable[[str, str], None], same: Callable[..., None]
    ) -> None:
        self.world = world
        self.reference = reference
        self.fail = fail
        self.same = same

    def on_spilled(self, source: Address, note: notes.Spilled) -> None:
        copy = self.world.processes[name_of(source)].machine.host.copies[note.shard]  # type: ignore[attr-defined]
        self.check(source, next(q for q in copy.outputs if q.edge == note.edge))

    def check(self, source: Address, queue: OutputQueue) -> None:
        """What a queue counts as spilled its disk has taken, and those are the right rows."""
        disk = self.world.processes[name_of(source)].spill
        for block in queue.blocks:
            if block.start >= queue.spilled_to:
                return
            if not disk.has(block):
                self.fail("counted as on disk before it was", f"{queue.edge} on {source}: {block}, {queue.spilled_to}")
            if not self.reference.is_open(queue.edge, block.start):
                self.same(queue.edge, block, f"the disk of {source}")

    def check_end(self) -> None:
        """At the end: no file is left of what was trimmed, or of a copy that is gone."""
        for name in self.world.names:
            node = self.world.node(name)
            if node is None:
                continue
            process = self.world.processes[name]
            if any(isinstance(effect, DropSpill) for held in process.held for effect in held.apply):
                continue  # some are to go as soon as the disk has synced
            queues = {q.edge: q for copy in node.host.copies.values() for q in copy.outputs}
            for edge, files in process.spill.files.items():
                trimmed = queues[edge].trimmed if edge in queues else 1 << 62
                if any(end <= trimmed for _, end in files):
                    self.fail("a file outlived what is in it", f"{edge} on {name}: {files}, trimmed to {trimmed}")

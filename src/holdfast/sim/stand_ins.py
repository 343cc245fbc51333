"""Stand-ins, checked: who stands in may, makes what its primary makes, and is its image again when it stands down."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core.copy import Copy
from holdfast.core.roles import Condition
from holdfast.model import notes
from holdfast.model.ids import Address, Asset, name_of
from holdfast.sim.operators import FORKED
from holdfast.sim.world import World


class StandInRules:
    """A part of the checker; `fail` is the checker's, and `compare` says whether a block is right."""

    def __init__(
        self,
        world: World,
        fail: Callable[[str, str], None],
        compare: Callable[..., None],
        runs: Callable[[Asset, int, Address], bool],
    ) -> None:
        self.world = world
        self.fail = fail
        self.compare = compare
        #: Does a twin run there?
        self.runs = runs
        #: Who stands in, for which shard and at which epoch; and what its image was.
        self.standing: dict[tuple[Asset, int, Address], tuple] = {}
        self.count = 0

    def rules(self) -> dict[type[notes.Note], Callable[..., None]]:
        return {
            notes.StandsIn: self.on_stands_in,
            notes.EmittedBeside: self.on_emitted_beside,
            notes.StandsDown: self.on_stands_down,
        }

    def on_stands_in(self, source: Address, note: notes.StandsIn) -> None:
        node = self.world.processes[name_of(source)].machine
        place = node.record.places[note.shard]  # type: ignore[attr-defined]
        if (place.stand_in, place.epoch, place.primary) != (source, note.epoch, note.primary):
            self.fail("stands in where it may not", f"{note}: {place}")
        copy = node.host.copies[note.shard]  # type: ignore[attr-defined]
        self.standing[note.shard, note.epoch, source] = (copy.pasted, _image(copy, forked=True))
        self.count += 1

    def on_emitted_beside(self, source: Address, note: notes.EmittedBeside) -> None:
        if not self.stands(note.shard, note.epoch, source):
            self.fail("emitted by a copy that does not stand in", f"{note} on {source}")
        self.compare(note.shard, note.edge, note.epoch, note.block, source)

    def on_stands_down(self, source: Address, note: notes.StandsDown) -> None:
        pasted, before = self.standing.pop((note.shard, note.epoch, source))
        copy = self.world.processes[name_of(source)].machine.host.copies.get(note.shard)  # type: ignore[attr-defined]
        if note.kept or copy is None or copy.condition not in (Condition.COMPLETE, Condition.HOLDING):
            return  # the same step has promoted or dropped it
        if copy.pasted != pasted or (copy.pasting is not None and len(copy.pasting.left) < copy.pasting.head.pieces):
            return  # or has pasted what waited
        now = _image(copy, forked=False)
        if now != before:
            self.fail("a stand-in has changed its image", f"{note}: {before} -> {now}")

    def stands(self, shard: Asset, epoch: int, source: Address) -> bool:
        return (shard, epoch, source) in self.standing or self.runs(shard, epoch, source)

    def still_stands(self) -> list[Asset]:
        """Shards that somebody stands in for now."""
        nodes = [node for node in map(self.world.node, self.world.names) if node is not None]
        return [shard for node in nodes for shard in node.host.stand_ins.running]


def _image(copy: Copy, *, forked: bool) -> tuple:
    """All of an image that a stand-in could change."""
    op, fork = copy.op, copy.fork
    names = [name for name in FORKED if name not in ("aside", "moved", "hidden")]
    if forked and fork is not None:
        state = {name: op.forked[name] for name in names}  # type: ignore[attr-defined]
        queues = [*fork.outputs, fork.dead]
        inputs, marks = fork.inputs, fork.marks
    else:
        state = {name: getattr(op, name) for name in names}
        queues, marks = list(copy.queues), (copy.watermark, copy.gap, copy.highest)
        inputs = {i.edge: (i.position, i.watermark) for i in copy.inputs}
    held = [(queue.trimmed, queue.next, len(queue.blocks)) for queue in queues]
    return tuple(map(str, (sorted(state.items(), key=lambda x: x[0]), held, inputs, marks)))

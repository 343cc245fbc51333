"""A node that stalls is replaced; then it wakes up and goes on where it was, until it hears of it. It tries to write
rows, captures and commits, and nobody anywhere takes any of them (hybrid-ha §IV-B: fail-stop after a stall)."""

from __future__ import annotations

from collections import Counter

import pytest

from holdfast.model import messages as m
from holdfast.model import notes
from holdfast.model.config import MS, Config
from holdfast.model.ids import Address, Name
from holdfast.model.message import Message
from holdfast.model.note import Note
from holdfast.model.protection import Protection
from holdfast.model.record import Record
from holdfast.model.topology import layered
from holdfast.sim.faults import Fault
from holdfast.sim.process import Process
from holdfast.sim.simulation import Setup, Simulation

STALL_MS, FOR_MS, NODES = 900, 1_500, 5
#: What changes something at whoever takes it.
WRITES = (
    m.Data, m.Capture, m.CapturePiece, m.LedgerOpen, m.LedgerWrite, m.Deliver, m.Delivered, m.Seal, m.Sealed, m.Held,
    m.Pasted, m.StandIn, m.Back, m.Abreast, m.Subscribe, m.Suspect, m.Joined,
)  # fmt: skip


class WokenNode:
    """What the woken node and its drivers send by their old record, and what anybody takes of that."""

    def __init__(self, run: Simulation, stalled: Name) -> None:
        self.run, self.stalled = run, stalled
        self.tried: Counter[str] = Counter()
        self.stale: list[str] = []
        run.world.watches.append(self.on_message)
        run.world.notices.append(self.on_notes)

    @property
    def record(self) -> Record:
        return self.run.checker.record

    def is_awake_again(self) -> bool:
        return self.run.world.now_ns >= (STALL_MS + FOR_MS) * MS

    def on_message(self, source: Process, target: Address, message: Message) -> None:
        if source.host != self.stalled or not self.is_awake_again() or not isinstance(message, WRITES):
            return
        if source.machine.record.version < self.record.version:  # type: ignore[attr-defined]
            self.tried[type(message).__name__] += 1

    def on_notes(self, at_ns: int, source: Address, noted: list[Note]) -> None:
        if not self.is_awake_again() or source.startswith(f"{self.stalled}"):
            return
        for note in noted:
            asset = _asset(note, self.run)
            if asset is not None and note.epoch < self.record.places[asset].epoch:  # type: ignore[attr-defined]
                self.stale.append(f"{source}: {note}")


def _asset(note: Note, run: Simulation):
    """Of whom it speaks, if it says that something was taken."""
    if isinstance(note, notes.Accepted):
        return run.setup.topology.producer.get(note.edge)
    if isinstance(note, notes.Pasted | notes.Captured):
        return note.shard
    return note.stage if isinstance(note, notes.CommitTaken | notes.Committed | notes.Ledgered) else None


def watched(mode: str, number: int, seed: int) -> WokenNode:
    stalled = Name(f"n{number}")
    faults = [Fault(kind="stall", node=stalled, at_ms=STALL_MS, for_ms=FOR_MS)]
    if seed % 2:  # its drivers, too
        faults.append(Fault(kind="stall-stage", stage="s0", at_ms=STALL_MS, for_ms=FOR_MS))  # type: ignore[arg-type]
    setup = Setup(
        seed=seed,
        nodes=NODES,
        topology=layered(stages=1, shards=2, tops=2, placed=True),
        config=Config(misses_max=3, protection=Protection(mode=mode, period_ns=100 * MS)),
        faults=tuple(faults),
        safety_ms=3_500,
        trigger_ms=60,
        reader_trigger_ms=60,
    )
    watch = WokenNode(Simulation(setup), stalled)
    outcome = watch.run.run()
    assert outcome.violation == ""
    return watch


@pytest.mark.parametrize("mode", ["passive", "hybrid", "active", "none"])
def test_nothing_that_a_replaced_node_writes_when_it_wakes_up_is_taken_by_anybody(mode: str):
    tried: Counter[str] = Counter()
    for number in range(NODES):
        for seed in (0, 1):
            watch = watched(mode, number, seed)
            assert watch.stale == []
            tried += watch.tried
    print(mode, dict(tried))
    assert tried["Data"] > 0
    assert len(tried) >= 3


def test_the_watch_sees_what_is_taken_from_a_node_that_was_replaced():
    """Or what is above would show nothing."""
    watch = watched("passive", 1, 0)
    edge = next(iter(watch.run.setup.topology.producer))
    place = watch.record.places[watch.run.setup.topology.producer[edge]]
    block = next(b for s in watch.run.sinks.values() for b in s.blocks(s.spec.edges[0]))
    for epoch in (place.epoch, place.epoch - 1):
        note = notes.Accepted(consumer="r0", edge=edge, epoch=epoch, block=block, life=1)  # type: ignore[arg-type]
        watch.on_notes(0, "n4#1", [note])
    assert len(watch.stale) == 1

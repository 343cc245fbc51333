"""Captures and pastes as tasks, checked: whatever a scheduler picks, nothing starves, runs twice or changes its order.

pastes from one sender are first in, first out (cooperative-ha §5.2), but for those of a copy that begins to run
a capture that is held, and has waited beyond its bound, is pasted within some ticks
no capture for a target is taken while the one before is under way
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.core.host import Host
from holdfast.core.roles import State
from holdfast.model import messages as m
from holdfast.model import notes
from holdfast.model.ids import Address, Asset, name_of
from holdfast.model.protection import STRETCH_MAX
from holdfast.sim.process import Process
from holdfast.sim.world import World

#: A tick pastes for some budgets of an idle moment: large captures take several of them.
LATE_TICKS_MAX = 60


@dataclass
class HeldCapture:
    shard: Asset
    round: int
    source: Address
    number: int
    at_ns: int
    #: Ticks of its node since it should have been pasted.
    late: int = 0


class TaskRules:
    """A part of the checker; `fail` is the checker's."""

    def __init__(self, world: World, fail: Callable[[str, str], None]) -> None:
        self.world = world
        self.fail = fail
        self.held: dict[Address, dict[Asset, HeldCapture]] = {}
        self.count = 0
        self.ticked: dict[Address, int] = {}
        #: Captures under way: (source, shard, target) -> (epoch, round, version of the place).
        self.sent: dict[tuple[Address, Asset, Address], tuple[int, int, int]] = {}

    def rules(self) -> dict[type[notes.Note], Callable[..., None]]:
        return {notes.Captured: self.on_captured, notes.ScanAgain: self.on_scan_again}

    # --- captures

    def on_captured(self, source: Address, note: notes.Captured) -> None:
        host = self._host(source)
        since = host.record.places[note.shard].since if host else 0
        known = self.sent.get((source, note.shard, note.seat))
        if known is not None and known[0] == note.epoch and known[2] == since:
            self.fail("a capture was taken while one was under way", f"{note}, after round {known[1]}")
        self.sent[source, note.shard, note.seat] = (note.epoch, note.round, since)

    def on_scan_again(self, source: Address, note: notes.ScanAgain) -> None:
        self.sent.pop((source, note.shard, note.seat), None)

    # --- pastes

    def on_send(self, process: Process, target: Address, message: m.Message) -> None:
        seat = process.address
        if isinstance(message, m.Heartbeat):
            self._on_tick(process)
        elif isinstance(message, m.Held):
            known = self.held.setdefault(seat, {})
            if not message.fits:
                known.pop(message.shard, None)
                self.sent.pop((target, message.shard, seat), None)
            elif message.shard not in known or known[message.shard].round != message.round:
                self.count += 1
                now_ns = process.clock(self.world.now_ns)
                known[message.shard] = HeldCapture(message.shard, message.round, target, self.count, now_ns)
        elif isinstance(message, m.Pasted):
            self.sent.pop((target, message.shard, seat), None)
            found = self.held.get(seat, {}).pop(message.shard, None)
            if found is not None and found.round == message.round:
                self._check_order(seat, found)

    def _check_order(self, seat: Address, pasted: HeldCapture) -> None:
        host = self._host(seat)
        is_image = host is not None and host.states.get(pasted.shard) in (State.BACKUP, State.JOINING)
        if host is None or not is_image or pasted.shard in host.stand_ins.running:
            return  # it runs now: what it held was pasted first
        older = [
            one.shard
            for one in self.held.get(seat, {}).values()
            if one.source == pasted.source and one.number < pasted.number and _is_held(host, one)
        ]
        if older:
            self.fail("pastes from one sender are out of order", f"{seat} pasted {pasted}, but holds {older}")

    def _on_tick(self, process: Process) -> None:
        seat, now_ns = process.address, process.clock(self.world.now_ns)
        host = self._host(seat)
        if host is None or self.ticked.get(seat) == now_ns:
            return
        self.ticked[seat] = now_ns
        waiting = [one for one in self.held.get(seat, {}).values() if _is_held(host, one)]
        if not waiting:
            return
        first = min(waiting, key=lambda one: one.number)
        bound_ns = STRETCH_MAX * host.record.protection_of(first.shard).period_ns
        first.late += now_ns - first.at_ns >= bound_ns
        if first.late > LATE_TICKS_MAX:
            self.fail("a held capture is not pasted", f"{first} on {seat}")

    def _host(self, seat: Address) -> Host | None:
        node = self.world.node(name_of(seat))
        return node.host if node is not None and node.seat == seat else None


def _is_held(host: Host, one: HeldCapture) -> bool:
    copy = host.copies.get(one.shard)
    return copy is not None and copy.pasting is not None and copy.pasting.head.round == one.round

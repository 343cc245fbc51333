"""Balance, checked: backups are moved one at a time, not more often than is set, and only where that makes sense.

Those that an assignor moves: once per epoch, only where the segment that takes a unit stays shorter than the one that
gives it was, and not before every primary has told that it finished a cycle. And whatever joins shares as little with
its primary as it could.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core.node import Node
from holdfast.model import messages as m
from holdfast.model import notes
from holdfast.model.config import SECOND
from holdfast.model.domains import shared
from holdfast.model.ids import Address, Asset, name_of
from holdfast.model.record import Record
from holdfast.sim.world import World

#: A core, and what a clock that drifts makes of it.
LOAD_MAX = SECOND * 103 // 100


class BalanceRules:
    """A part of the checker; `fail` is the checker's."""

    def __init__(self, world: World, fail: Callable[[str, str], None]) -> None:
        self.world = world
        self.fail = fail
        #: When (by its own clock) each coordinator last moved a backup for balance.
        self.balanced: dict[Address, int] = {}
        #: When each coordinator's last epoch ended, which one it was, and what moved in it to where.
        self.epochs: dict[Address, tuple[int, int]] = {}
        self.moved: dict[tuple[Address, int, Asset], str] = {}
        #: Cycles of each seat: as last told, and when an epoch last ended.
        self.cycles: dict[Address, int] = {}
        self.cycles_before: dict[tuple[Address, Address], int] = {}

    def on_loads(self, source: Address, message: m.Loads) -> None:
        # a restored copy steps over all that it has looked up in one event: the clock shows it only afterwards
        most = 8 * LOAD_MAX if self.world.topology.has_store else LOAD_MAX
        if max([0, *message.running.values(), *message.images.values()]) > most:
            self.fail("busier than a core can be", f"{source}: {message}")
        if message.cycles < self.cycles.get(source, 0):
            self.fail("checkpoint cycles are uncounted", f"{source}: {message.cycles} < {self.cycles[source]}")
        self.cycles[source] = message.cycles

    def on_balanced(self, source: Address, note: notes.Balanced) -> None:
        config, what = self.world.config, f"{note.asset} from {note.source} to {note.target} by {source}"
        high, low, weight = note.loads
        if high - low - weight < config.imbalance_ns:
            self.fail("a backup is moved for nothing", f"{what}: {note.loads}")
        now_ns = self.world.processes[name_of(source)].clock(self.world.now_ns)
        passed_ns = now_ns - self.balanced.get(source, now_ns - config.balance_ns)
        if passed_ns < config.balance_ns:
            self.fail("backups are moved too often", f"{what}, {passed_ns / 1e6:.0f} ms after the last")
        self.balanced[source] = now_ns
        # what ends its way with this very record is not on its way any more
        proposed = self.world.processes[name_of(source)].machine.election.accepted  # type: ignore[attr-defined]
        others = [asset for asset in proposed.places if asset != note.asset]
        open_places = [asset for asset in others if proposed.places[asset].joining or proposed.places[asset].moving]
        if proposed.version == note.version and open_places:
            self.fail("a backup is moved while others are on their way", f"{what}: {open_places}")

    def on_reassigned(self, source: Address, note: notes.Reassigned) -> None:
        what = f"{note.asset} from {note.source} to {note.target} by {source}"
        high_ns, low_ns, unit_ns = note.times
        if not 0 < unit_ns < high_ns - low_ns:
            self.fail("a backup is moved for nothing", f"{what}: {note.times}")
        place = self._node(source).election.accepted.places[note.asset]
        if not place.joining or name_of(place.joining) != note.target or name_of(place.backup or "") != note.source:
            self.fail("a backup is given away before another node has its image", f"{what}: {place}")
        if name_of(place.primary or "") == note.target:
            self.fail("a node is to back up itself", what)
        if self.moved.setdefault((source, note.epoch, note.asset), note.target) != note.target:
            self.fail("a backup is moved twice in an epoch", what)
        self._on_epoch(source, note.epoch, what)

    def _on_epoch(self, source: Address, epoch: int, what: str) -> None:
        """The first move of an epoch."""
        now_ns = self.world.processes[name_of(source)].clock(self.world.now_ns)
        known, at_ns = self.epochs.get(source, (0, now_ns - self.world.config.balance_ns))
        if epoch == known:
            return
        if now_ns - at_ns < self.world.config.balance_ns:
            self.fail("epochs are too short", f"{what}, {(now_ns - at_ns) / 1e6:.0f} ms after the last")
        self.epochs[source] = (epoch, now_ns)
        for name, life in self._node(source).record.members.items():
            seat = f"{name}#{life}"
            if seat != source and self.cycles.get(seat, 0) <= self.cycles_before.get((source, seat), 0):
                self.fail("an epoch ends before every node has finished a cycle", f"{what}: {seat}")
            self.cycles_before[source, seat] = self.cycles.get(seat, 0)

    def on_spread_out(self, source: Address, note: notes.SpreadOut) -> None:
        place = self._node(source).election.accepted.places[note.asset]
        home, domains = name_of(place.primary or ""), self.world.config.domains
        if shared(home, note.target, domains) >= shared(home, note.source, domains):
            self.fail("a backup is moved for nothing", f"{note}: {domains}")

    def on_record(self, before: Record, record: Record) -> None:
        """Whatever joins shares as little with its primary as it could. (Where links are cut, in reach comes first.)"""
        domains, nodes = self.world.config.domains, map(self.world.node, self.world.names)
        if not domains or any(node is not None and node.links.cuts() for node in nodes):
            return
        for asset, place in record.places.items():
            if not (place.primary and place.joining) or place.joining in before.places[asset].holders:
                continue
            home, taken = name_of(place.primary), (name_of(place.primary), name_of(place.backup or ""))
            free = [name for name in record.members if name not in (*taken, *record.draining)]
            least = min((shared(home, name, domains) for name in free), default=0)
            joiner = name_of(place.joining)
            if joiner in free and shared(home, joiner, domains) > least:
                self.fail("a backup is too near its primary", f"{asset} on {place.joining}, of {place.primary}")

    def _node(self, source: Address) -> Node:
        return self.world.processes[name_of(source)].machine  # type: ignore[return-value]

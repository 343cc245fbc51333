"""Balance, checked: backups are moved one at a time, not more often than is set, and only where that makes sense."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.model import messages as m
from holdfast.model import notes
from holdfast.model.config import SECOND
from holdfast.model.ids import Address, name_of
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

    def on_loads(self, source: Address, message: m.Loads) -> None:
        # a restored copy steps over all that it has looked up in one event: the clock shows it only afterwards
        most = 8 * LOAD_MAX if self.world.topology.has_store else LOAD_MAX
        if max([0, *message.running.values(), *message.images.values()]) > most:
            self.fail("busier than a core can be", f"{source}: {message}")

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

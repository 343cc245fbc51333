"""Which stages stand by warm on this node, which moves wait for that, and where driver processes are still starting.

A stage that is well is moved (from a node that is drained, or one that has too much to do) only when its standby can
take over at once: the record says that it moves, the standby's node says that it is warm, and only then the record
names it. The wait has a limit: what is not warm after `warm_wait_ns` takes over as it is. A stage whose node or driver
is dead does not come by here.

Every member knows from the records since when each seat has had stages, so that whoever is coordinator next knows where
a JVM may not be up yet. The first record that a node hears says nothing about that, and light stages need none.
"""

from __future__ import annotations

from holdfast.core.ready import StandbyReady
from holdfast.model.config import SECOND, Config
from holdfast.model.ids import Asset, Seat
from holdfast.model.messages import Warmed
from holdfast.model.record import Record

#: A driver process counts as starting for this long after its first stage, if its node has not told whether it is up.
#: (A JVM takes 12 s on two cores that have other work, and does not begin at once for a standby.)
START_NS = 20 * SECOND


class Standbys:
    def __init__(self, seat: Seat, config: Config, light: frozenset[Asset] = frozenset()) -> None:
        self.seat = seat
        self.config = config
        #: Stages that need no JVM.
        self.light = light
        #: Those that have said so, since they were last wanted.
        self.warm: dict[Asset, None] = {}
        #: Stages that shall move here: the version of their place, and since when this node knows.
        self.awaited: dict[Asset, tuple[int, int]] = {}
        #: Seats with stages in a JVM, and since when, as far as this node knows; None: it has heard no record yet.
        self.hosts: dict[Seat, int] | None = None

    def on_record(self, record: Record, now_ns: int) -> None:
        awaited: dict[Asset, tuple[int, int]] = {}
        for asset, place in record.places.items():
            if place.is_stage and place.moving and place.backup == self.seat:
                known = self.awaited.get(asset, (0, now_ns))
                awaited[asset] = (place.since, known[1])
        self.awaited = awaited
        held = {a for a, place in record.places.items() if place.is_stage and place.backup == self.seat}
        self.warm = {asset: None for asset in self.warm if asset in held}
        stages = [place for asset, place in record.places.items() if place.is_stage and asset not in self.light]
        seats = [seat for place in stages for seat in (place.primary, place.backup) if seat]
        since_ns = now_ns if self.hosts is not None else now_ns - START_NS
        self.hosts = {seat: (self.hosts or {}).get(seat, since_ns) for seat in seats}

    def drivers(self, up: dict[Seat, bool], now_ns: int) -> dict[Seat, bool]:
        """Seats with a driver process that has a JVM: is it up? By what their nodes have told; else by the time."""
        return {seat: up.get(seat, now_ns - since >= START_NS) for seat, since in (self.hosts or {}).items()}

    def passed_over(self, record: Record, now_ns: int) -> list[Asset]:
        """Stages that stand by here and would not start here now (`core/placement.py`): this node's driver process is
        still starting, and another one is up."""
        drivers = self.drivers({}, now_ns)
        up = [seat for seat, is_up in drivers.items() if is_up]
        held = [a for a, place in record.places.items() if place.is_stage and place.backup == self.seat]
        is_cold = drivers.get(self.seat) is False
        return [a for a in held if is_cold and any(seat != record.places[a].primary for seat in up)]

    def on_ready(self, event: StandbyReady, record: Record) -> None:
        """Word of one that is not wanted any more may come late."""
        place = record.places.get(event.stage)
        if event.ready and place is not None and place.backup == self.seat:
            self.warm[event.stage] = None
        elif not event.ready:
            self.warm.pop(event.stage, None)

    def reports(self, now_ns: int) -> list[Warmed]:
        return [
            Warmed(stage=stage, since=since, seat=self.seat)
            for stage, (since, began_ns) in self.awaited.items()
            if stage in self.warm or now_ns - began_ns >= self.config.warm_wait_ns
        ]

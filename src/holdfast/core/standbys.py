"""Which stages stand by warm on this node, and which moves wait for that.

A stage that is well is moved (from a node that is drained, or one that has too much to do) only when its standby can
take over at once: the record says that it moves, the standby's node says that it is warm, and only then the record
names it. The wait has a limit: what is not warm after `warm_wait_ns` takes over as it is. A stage whose node or driver
is dead does not come by here.
"""

from __future__ import annotations

from holdfast.core.ready import StandbyReady
from holdfast.model.config import Config
from holdfast.model.ids import Asset, Seat
from holdfast.model.messages import Warmed
from holdfast.model.record import Record


class Standbys:
    def __init__(self, seat: Seat, config: Config) -> None:
        self.seat = seat
        self.config = config
        #: Those that have said so, since they were last wanted.
        self.warm: dict[Asset, None] = {}
        #: Stages that shall move here: the version of their place, and since when this node knows.
        self.awaited: dict[Asset, tuple[int, int]] = {}

    def on_record(self, record: Record, now_ns: int) -> None:
        awaited: dict[Asset, tuple[int, int]] = {}
        for asset, place in record.places.items():
            if place.is_stage and place.moving and place.backup == self.seat:
                known = self.awaited.get(asset, (0, now_ns))
                awaited[asset] = (place.since, known[1])
        self.awaited = awaited
        held = {a for a, place in record.places.items() if place.is_stage and place.backup == self.seat}
        self.warm = {asset: None for asset in self.warm if asset in held}

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

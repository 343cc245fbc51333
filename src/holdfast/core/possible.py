"""Whether a copy can be what a record asks of it, looked at before the record is taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.roles import TRANSITIONS, Action, Change, State, role_of
from holdfast.model.ids import Asset
from holdfast.model.record import Place

if TYPE_CHECKING:
    from holdfast.core.host import Host


def can_be(host: Host, shard: Asset, place: Place) -> bool:
    known = TRANSITIONS.get((host.states.get(shard, State.ABSENT), role_of(host.seat, place)))
    copy, runner = host.copies.get(shard), host.runners.get(shard)
    match known[1] if known else None:
        case None:
            return False
        case Action.FOUND:
            return place.since == host.first_version
        case Action.KEEP | Action.PROMOTE:
            return copy is not None and copy.can(Change.NAMED)
        case Action.RETARGET:
            return runner is not None and (
                place.epoch == runner.epoch or runner.skips.is_granted(place) or runner.place.moving
            )
        case Action.DEMOTE:
            return copy is not None and copy.can(Change.STOPS)
        case _:
            return True

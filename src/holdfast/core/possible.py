"""Whether a copy can be what a record asks of it, looked at before the record is taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.roles import TRANSITIONS, Action, Change, State, role_of
from holdfast.model.ids import Asset
from holdfast.model.record import Place, Record

if TYPE_CHECKING:
    from holdfast.core.host import Host


def why_not(host: Host, record: Record) -> str:
    """Why the copies of a node could not do what this record asks of them, if they could not."""
    before = host.record.places
    for shard in host.topology.shard:
        place = record.places[shard]
        if place != before.get(shard) and not can_be(host, shard, place):
            role = role_of(host.seat, place).value
            return f"{shard} on {host.seat} is {host.states.get(shard, State.ABSENT).value}, and cannot be {role}"
    return ""


def can_be(host: Host, shard: Asset, place: Place) -> bool:
    known = TRANSITIONS.get((host.states.get(shard, State.ABSENT), role_of(host.seat, place)))
    copy, runner = host.copies.get(shard), host.runners.get(shard)
    match known[1] if known else None:
        case None:
            return False
        case Action.FOUND:
            return place.since == host.first_version
        case Action.KEEP | Action.PROMOTE | Action.RUN_BESIDE:
            return copy is not None and copy.can(Change.NAMED)
        case Action.RETARGET:
            if runner is None:  # a twin that could not run
                return copy is not None and copy.can(Change.NAMED)
            return place.epoch == runner.epoch or runner.may_go_on(place) or runner.place.moving
        case Action.DEMOTE:
            return copy is not None and copy.can(Change.STOPS)
        case _:
            return True

"""What a node is to a shard, and what it does when the placement record says otherwise.

The table is the whole of it: every state a copy can be in, every role the record can give it, and the one action
that follows. A pair that is not in it cannot come from a correct coordinator: it is refused loudly. A node may miss
records in between (a joining copy finds itself primary), but never one under which it had to take part.
"""

from __future__ import annotations

from enum import Enum

from holdfast.model.ids import Seat
from holdfast.model.record import Place


class State(Enum):
    ABSENT = "absent"
    JOINING = "joining"
    BACKUP = "backup"
    PRIMARY = "primary"
    YIELDING = "yielding"


class Role(Enum):
    NONE = "none"
    JOINING = "joining"
    BACKUP = "backup"
    PRIMARY = "primary"
    MOVING = "primary, moving"


class Action(Enum):
    NOTHING = "nothing"
    FOUND = "start empty (first record only)"
    JOIN = "start without a base; wait for a whole capture"
    REJOIN = "drop, then join"
    KEEP = "keep the image"
    PROMOTE = "step the image over the retained input, at the new epoch"
    RETARGET = "go on; capture for the new targets"
    DEMOTE = "stop; the state at the hand-over is the image"
    DROP = "drop the copy"


TRANSITIONS: dict[tuple[State, Role], tuple[State, Action]] = {
    (State.ABSENT, Role.NONE): (State.ABSENT, Action.NOTHING),
    (State.ABSENT, Role.JOINING): (State.JOINING, Action.JOIN),
    (State.ABSENT, Role.BACKUP): (State.BACKUP, Action.FOUND),
    (State.ABSENT, Role.PRIMARY): (State.PRIMARY, Action.FOUND),
    (State.JOINING, Role.NONE): (State.ABSENT, Action.DROP),
    (State.JOINING, Role.JOINING): (State.JOINING, Action.REJOIN),
    (State.JOINING, Role.BACKUP): (State.BACKUP, Action.KEEP),
    (State.JOINING, Role.PRIMARY): (State.PRIMARY, Action.PROMOTE),
    (State.JOINING, Role.MOVING): (State.YIELDING, Action.PROMOTE),
    (State.BACKUP, Role.NONE): (State.ABSENT, Action.DROP),
    (State.BACKUP, Role.JOINING): (State.JOINING, Action.REJOIN),
    (State.BACKUP, Role.BACKUP): (State.BACKUP, Action.KEEP),
    (State.BACKUP, Role.PRIMARY): (State.PRIMARY, Action.PROMOTE),
    (State.BACKUP, Role.MOVING): (State.YIELDING, Action.PROMOTE),
    (State.PRIMARY, Role.NONE): (State.ABSENT, Action.DROP),
    (State.PRIMARY, Role.JOINING): (State.JOINING, Action.REJOIN),
    (State.PRIMARY, Role.PRIMARY): (State.PRIMARY, Action.RETARGET),
    (State.PRIMARY, Role.MOVING): (State.YIELDING, Action.RETARGET),
    (State.YIELDING, Role.NONE): (State.ABSENT, Action.DROP),
    (State.YIELDING, Role.JOINING): (State.JOINING, Action.REJOIN),
    (State.YIELDING, Role.BACKUP): (State.BACKUP, Action.DEMOTE),
    (State.YIELDING, Role.PRIMARY): (State.PRIMARY, Action.RETARGET),
    (State.YIELDING, Role.MOVING): (State.YIELDING, Action.RETARGET),
}


def role_of(seat: Seat, place: Place) -> Role:
    if place.primary == seat:
        return Role.MOVING if place.moving else Role.PRIMARY
    if place.backup == seat:
        return Role.BACKUP
    if place.joining == seat:
        return Role.JOINING
    return Role.NONE

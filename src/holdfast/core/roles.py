"""What a node is to a shard, and what it does when the placement record says otherwise.

Two tables are the whole of it. `TRANSITIONS`: every state a copy can be in, every role the record can give it, and the
one action that follows. A pair that is not in it cannot come from a correct coordinator: it is refused loudly. A node
may miss records in between (a joining copy finds itself primary), but never one under which it had to take part.

`CHANGES`: what a copy's own state is good for, whatever its role, and what happens to it. Only what is `COMPLETE` may
run. An image in the middle of its scan may not even be named by the record; one that a failed paste has left hollow
may, until its primary has reported it. One that stands in runs on a fork, and is its image again before anything else
happens to it. A pair that is not in it is a bug, and stops the node before anything leaves it.
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
    TWIN = "twin"


class Role(Enum):
    NONE = "none"
    JOINING = "joining"
    BACKUP = "backup"
    TWIN = "twin"
    PRIMARY = "primary"
    MOVING = "primary, moving"
    EMPTY = "primary, empty"
    EMPTY_MOVING = "primary, empty, moving"
    RESTORED = "primary, from the store"
    RESTORED_MOVING = "primary, from the store, moving"


class Action(Enum):
    NOTHING = "nothing"
    FOUND = "start empty (first record only)"
    JOIN = "start without a base; wait for a scan of the primary's state"
    REJOIN = "drop, then join"
    KEEP = "keep the image"
    PROMOTE = "step the image over the retained input, at the new epoch"
    RUN_BESIDE = "step the image over the retained input, beside the primary"
    LAND = "start empty behind a gap (if it has at this epoch: go on)"
    RESTORE = "start from the store (if it has at this epoch: go on)"
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
    (State.ABSENT, Role.TWIN): (State.TWIN, Action.FOUND),
    (State.JOINING, Role.TWIN): (State.TWIN, Action.RUN_BESIDE),
    (State.BACKUP, Role.TWIN): (State.TWIN, Action.RUN_BESIDE),
    (State.PRIMARY, Role.TWIN): (State.TWIN, Action.RETARGET),
    (State.YIELDING, Role.TWIN): (State.TWIN, Action.RETARGET),
    (State.TWIN, Role.NONE): (State.ABSENT, Action.DROP),
    (State.TWIN, Role.JOINING): (State.JOINING, Action.REJOIN),
    (State.TWIN, Role.PRIMARY): (State.PRIMARY, Action.RETARGET),
    (State.TWIN, Role.TWIN): (State.TWIN, Action.RETARGET),
    **{(state, Role.EMPTY): (State.PRIMARY, Action.LAND) for state in State},
    **{(state, Role.EMPTY_MOVING): (State.YIELDING, Action.LAND) for state in State},
    **{(state, Role.RESTORED): (State.PRIMARY, Action.RESTORE) for state in State},
    **{(state, Role.RESTORED_MOVING): (State.YIELDING, Action.RESTORE) for state in State},
}


class Condition(Enum):
    """What the state of a copy is good for. (Where it stands in the record is its `State`: YIELDING is frozen, too.)"""

    EMPTY = "empty"
    SCANNING = "scanning"
    FILLING = "holds a part of its scan"
    HOLDING = "holds what completes it"
    COMPLETE = "complete"
    HOLLOW = "hollow"
    LANDING = "started empty, asks where its inputs go on"
    RESTORING = "waits for the store"
    RUNNING = "running"
    CUT_OFF = "input that it must take again is lost"
    WAITING = "waits for memory"
    FAILED = "stands still"
    TORN = "torn"
    STANDING_IN = "stands in"
    STUCK = "stands in, and cannot go on"


class Change(Enum):
    HELD_PART = "a capture of its scan is held, not the last"
    HELD_LAST = "a capture is held with which it is complete"
    PASTED = "all of it is pasted"
    PASTE_FAILED = "a paste fails: the state is of no position"
    NAMED = "the record names it"
    RUNS = "it runs"
    STARTS_EMPTY = "it starts empty in the middle of its stream"
    LANDS = "it is known where every input goes on"
    ASKS_THE_STORE = "all copies are gone: the store is asked"
    LOADED = "the store has answered"
    CUT_OFF = "input that it must take again is lost"
    NO_ROOM = "its operator has no memory for the next block"
    TRIES_AGAIN = "it tries the same block again"
    REFUSED = "its operator cannot take the next block"
    TORN = "its operator fails in the middle of a block: the state is of no position"
    GIVES_UP = "it will not try the block again: it shall be skipped"
    SKIPS = "the record says that the block is skipped"
    STOPS = "it hands over and becomes an image"
    STANDS_IN = "it runs on from its image, beside its primary"
    STANDS_DOWN = "it is its image again, or what came of it is kept"
    KEEPS_INPUT = "it lets go of its state: what it keeps of the input can make it again"


CHANGES: dict[tuple[Condition, Change], Condition] = {
    (Condition.EMPTY, Change.HELD_PART): Condition.FILLING,
    (Condition.EMPTY, Change.HELD_LAST): Condition.HOLDING,
    (Condition.SCANNING, Change.HELD_PART): Condition.FILLING,
    (Condition.SCANNING, Change.HELD_LAST): Condition.HOLDING,
    (Condition.FILLING, Change.PASTED): Condition.SCANNING,
    (Condition.FILLING, Change.PASTE_FAILED): Condition.HOLLOW,
    (Condition.HOLDING, Change.PASTED): Condition.COMPLETE,
    (Condition.HOLDING, Change.PASTE_FAILED): Condition.HOLLOW,
    (Condition.HOLDING, Change.NAMED): Condition.HOLDING,
    (Condition.COMPLETE, Change.HELD_PART): Condition.FILLING,
    (Condition.COMPLETE, Change.HELD_LAST): Condition.HOLDING,
    (Condition.COMPLETE, Change.NAMED): Condition.COMPLETE,
    (Condition.COMPLETE, Change.RUNS): Condition.RUNNING,
    (Condition.COMPLETE, Change.STARTS_EMPTY): Condition.LANDING,
    (Condition.CUT_OFF, Change.STARTS_EMPTY): Condition.LANDING,
    (Condition.LANDING, Change.LANDS): Condition.RUNNING,
    (Condition.EMPTY, Change.ASKS_THE_STORE): Condition.RESTORING,
    (Condition.RESTORING, Change.LOADED): Condition.COMPLETE,
    (Condition.RUNNING, Change.CUT_OFF): Condition.CUT_OFF,
    (Condition.HOLLOW, Change.HELD_PART): Condition.FILLING,
    (Condition.HOLLOW, Change.HELD_LAST): Condition.HOLDING,
    (Condition.HOLLOW, Change.NAMED): Condition.HOLLOW,
    (Condition.RUNNING, Change.REFUSED): Condition.FAILED,
    (Condition.RUNNING, Change.TORN): Condition.TORN,
    (Condition.RUNNING, Change.NO_ROOM): Condition.WAITING,
    (Condition.WAITING, Change.TRIES_AGAIN): Condition.RUNNING,
    (Condition.WAITING, Change.GIVES_UP): Condition.FAILED,
    (Condition.FAILED, Change.GIVES_UP): Condition.FAILED,
    (Condition.TORN, Change.GIVES_UP): Condition.TORN,
    (Condition.FAILED, Change.SKIPS): Condition.RUNNING,
    (Condition.WAITING, Change.STOPS): Condition.COMPLETE,
    (Condition.RUNNING, Change.STOPS): Condition.COMPLETE,
    (Condition.FAILED, Change.STOPS): Condition.COMPLETE,
    (Condition.TORN, Change.STOPS): Condition.HOLLOW,
    (Condition.COMPLETE, Change.STANDS_IN): Condition.STANDING_IN,
    (Condition.STANDING_IN, Change.NAMED): Condition.STANDING_IN,
    (Condition.STANDING_IN, Change.STANDS_DOWN): Condition.COMPLETE,
    (Condition.STANDING_IN, Change.CUT_OFF): Condition.STUCK,
    (Condition.STANDING_IN, Change.REFUSED): Condition.STUCK,
    (Condition.STANDING_IN, Change.TORN): Condition.STUCK,
    (Condition.STANDING_IN, Change.NO_ROOM): Condition.STUCK,
    (Condition.STUCK, Change.NAMED): Condition.STUCK,
    (Condition.STUCK, Change.STANDS_DOWN): Condition.COMPLETE,
    (Condition.COMPLETE, Change.KEEPS_INPUT): Condition.COMPLETE,
    (Condition.HOLLOW, Change.KEEPS_INPUT): Condition.COMPLETE,
}
#: An image in one of these is only being brought up: it could not take over, and the record does not name it.
RISING = frozenset((Condition.EMPTY, Condition.SCANNING, Condition.FILLING, Condition.RESTORING))


def role_of(seat: Seat, place: Place) -> Role:
    if place.primary == seat and place.starts_empty:
        return Role.EMPTY_MOVING if place.moving else Role.EMPTY
    if place.primary == seat and place.starts_restored:
        return Role.RESTORED_MOVING if place.moving else Role.RESTORED
    if place.primary == seat:
        return Role.MOVING if place.moving else Role.PRIMARY
    if place.backup == seat:
        return Role.TWIN if place.twin else Role.BACKUP
    if place.joining == seat:
        return Role.JOINING
    return Role.NONE

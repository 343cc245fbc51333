"""Mode `replay`: no state is kept, but the input from which it can be made again (`core/replays.py`).

The guard notes *points* of its shard's history, one per capture period: where every input and output stood, and the
watermarks. It names two of them to the keeper:

* the last point before which all output is behind every consumer, dead letters in files included. From there on output
  has to be made again after a failure;
* the *horizon*: the last point at which no row had been consumed that belongs to a window still open at the first one.
  Whoever begins there, knowing nothing, has all rows of all those windows.

Both follow from numbers that every copy has (`Copy.highest`, `Operator.after`, its watermark), so nothing is looked up
in the state. Input is acknowledged up to the horizon when the keeper has said that it begins there. Until it has said
so once it begins at the image that it had, and so much is acknowledged: what comes after is all that this mode keeps.

What is kept grows with the longest window. If it comes to half of what a producer or a keeper may hold, the shard would
wait forever: no input, no watermark, no horizon. So the guard asks for mode `passive` then, for its operator.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from holdfast.core.copy import Copy
from holdfast.core.protect.guard import Guard
from holdfast.core.protect.images import Images
from holdfast.core.ready import Ready
from holdfast.core.roles import Condition
from holdfast.errors import InvariantError
from holdfast.model import notes
from holdfast.model.block import WATERMARK_MIN
from holdfast.model.config import Config
from holdfast.model.ids import Asset, Edge, Seat, operator_of
from holdfast.model.messages import Held, Horizon, HorizonKept, Message, Pasted, SetProtection
from holdfast.model.parts import OutputPart
from holdfast.model.protection import Protection
from holdfast.model.record import Place

#: So many ticks in a row too much must be kept: what has only just come does not count.
TICKS_MAX = 5
#: With more points than this every second one is let go of: the horizon is then a little earlier than it could be.
POINTS_MAX = 4_096
#: So many rounds are remembered until the keeper answers: it may need longer for that than until the next one.
ROUNDS_MAX = 256
NEVER_NS = -(1 << 62)
#: A shard in one of these has no state that its input explains.
UNKNOWN = (Condition.TORN, Condition.LANDING, Condition.CUT_OFF)


class Waypoint(NamedTuple):
    to: dict[Edge, int]
    watermarks: dict[Edge, int]
    gap: tuple[int, int]
    #: The shard's own; and from when on no window can have a row that was consumed before.
    watermark: int
    reach: int
    outputs: dict[Edge, int]


class Horizons:
    name = "horizon"

    __slots__ = (
        "config", "copy", "keeper", "named", "noted_ns", "number", "others", "over", "place", "points", "protection",
        "safe_at", "sent_ns", "start", "ticks", "to", "waiting",
    )  # fmt: skip

    def __init__(self, copy: Copy, place: Place, config: Config, now_ns: int) -> None:
        self.copy = copy
        self.config = config
        self.place = place
        self.protection = Protection()
        #: All guards of its shard.
        self.others: Iterable[Guard] = ()
        self.keeper: Seat | None = None
        #: Points from the horizon on, in their order; and when the last one was noted.
        self.points: list[Waypoint] = []
        self.noted_ns = now_ns
        #: What was last named to the keeper, in which round, when, and whether it has still to answer.
        self.start: Waypoint | None = None
        self.to: Waypoint | None = None
        self.number = 0
        #: Where it begins by each round that it has not answered.
        self.named: dict[int, dict[Edge, int]] = {}
        self.sent_ns = 0
        self.waiting = False
        #: Where it begins: as it has said, and before that where its image stands. (At the start it stands where this
        #: copy stands, or further.)
        self.safe_at = copy.positions()
        #: For how many ticks too much has been kept; and whether that was told.
        self.ticks = 0
        self.over = False

    def retarget(self, place: Place) -> None:
        self.place = place
        if place.keeper == self.keeper:
            return
        self.keeper, self.ticks, self.over = place.keeper, 0, False
        self._forget()
        for guard in self.others:
            if isinstance(guard, Images):  # by which it was brought up
                self.safe_at = guard.safe_at

    def start_over(self) -> None:
        """The shard starts empty: what was kept is of another history."""
        self._forget()

    def _forget(self) -> None:
        self.points, self.start, self.to, self.named, self.waiting = [], None, None, {}, False

    # --- points

    def on_tick(self, now_ns: int, ready: Ready) -> None:
        if self.keeper is None:
            return
        if self.protection.mode != "replay":
            self.ticks, self.over = 0, False
        if now_ns - self.noted_ns >= self.protection.period_ns or not self.points:
            self._note(now_ns)
        self._choose()
        if self.waiting and now_ns - self.sent_ns >= 2 * self.config.retry_ns:
            self.sent_ns = now_ns
            ready.send.append((self.keeper, self._message()))
        self.ticks = self.ticks + 1 if self._is_too_much() else 0
        if self.ticks >= TICKS_MAX and not self.over and self.protection.mode == "replay":
            self.over = True
            ready.notes.append(notes.ReplayOver(self.copy.id, self.place.epoch))

    def _note(self, now_ns: int) -> None:
        copy = self.copy
        if copy.condition in UNKNOWN or copy.expects_batch or copy.quiet_to is not None:
            return
        self.noted_ns = now_ns
        if self.points and self.points[-1].gap[0] != copy.gap:
            self.points.clear()  # input before that is lost, and cannot be taken again
        if self.points and self.points[-1].to == copy.positions():
            return
        self.points.append(
            Waypoint(
                to=copy.positions(),
                watermarks={i.edge: i.watermark for i in copy.inputs},
                gap=(copy.gap, copy.highest),
                watermark=copy.watermark,
                reach=copy.reach() if copy.highest > WATERMARK_MIN else WATERMARK_MIN,
                outputs={queue.edge: queue.next for queue in copy.queues},
            )
        )
        if len(self.points) > POINTS_MAX:
            self.points = [*self.points[:-1:2], self.points[-1]]

    def _choose(self) -> None:
        """The newest of both points, if that says more than what was named before."""
        last = bisect_left(self.points, True, key=lambda point: not self._is_read(point)) - 1
        if last < 0:
            return
        to = self.points[last]
        first = min(last, bisect_right(self.points, to.watermark, key=lambda point: point.reach) - 1)
        if first < 0 or (self.points[first], to) == (self.start, self.to):
            return
        self.start, self.to = self.points[first], to
        self.points = self.points[first:]
        self.number += 1
        self.named[self.number] = self.start.to
        self.named.pop(self.number - ROUNDS_MAX, None)
        self.waiting, self.sent_ns = True, NEVER_NS

    def _is_read(self, point: Waypoint) -> bool:
        """Is all output before it behind every consumer? If so, it was at every point before this one."""
        return all(queue.trimmed >= point.outputs[queue.edge] for queue in self.copy.queues)

    def _is_too_much(self) -> bool:
        """Is so much kept that there may soon be no room for what would let the horizon move on?"""
        config = self.config
        for i in self.copy.inputs:
            bound = config.retained_hard_max if i.inbox else config.queue_memory_max + config.queue_spill_max
            if i.position - self.safe_at[i.edge] >= bound // 2:
                return True
        return False

    # --- the keeper

    def _message(self) -> Horizon:
        start, to = self.start, self.to
        if start is None or to is None:
            raise InvariantError("a horizon is told that was not chosen", detail=self.copy.id)
        outputs = {
            queue.edge: OutputPart(at, at, at, (), dict(queue.acks))
            for queue in self.copy.queues
            for at in (to.outputs[queue.edge],)
        }
        return Horizon(
            shard=self.copy.id,
            since=self.place.since,
            round=self.number,
            start=start.to,
            watermarks=start.watermarks,
            gap=start.gap,
            to=to.to,
            outputs=outputs,
        )

    def hear(self, seat: Seat, message: HorizonKept) -> None:
        """It begins where this round said, or later, since a horizon never goes back: so the answer to an earlier round
        counts. (Of a keeper that is slow there may never be another.)"""
        if seat == self.keeper and message.round in self.named:
            self.safe_at = self.named[message.round]
            self.named = {number: at for number, at in self.named.items() if number > message.round}
            self.waiting = self.waiting and message.round < self.number

    # --- as a guard

    def safe(self) -> dict[Edge, int] | None:
        """Where the keeper begins."""
        return self.safe_at if self.keeper is not None else None

    def is_settled(self) -> bool:
        """Whoever takes over begins at the horizon, or the image, that it has: nothing has to reach it first. (What a
        frozen shard named may lie before its keeper's image, and would never be answered.)"""
        return True

    def has_news(self) -> bool:
        return self.over

    def reports(self, shard: Asset) -> list[Message]:
        if not self.over or self.protection.mode != "replay":
            return []
        protection = msgspec.structs.replace(self.protection, mode="passive")
        return [SetProtection(operator=operator_of(shard), protection=protection)]

    def due(self, now_ns: int, *, frozen: bool) -> bool:
        """It takes no captures."""
        return False

    def is_pressing(self, now_ns: int, *, frozen: bool) -> bool:
        return False

    def take(self, now_ns: int, ready: Ready) -> None: ...

    def hurry(self) -> None: ...

    def on_held(self, seat: Seat, message: Held, now_ns: int, ready: Ready) -> None: ...

    def on_pasted(self, seat: Seat, message: Pasted, now_ns: int, ready: Ready) -> None: ...

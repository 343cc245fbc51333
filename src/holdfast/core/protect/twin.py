"""Two copies that run at once tell each other how far they are (hybrid-ha §III: active standby).

Both make the same rows at the same positions, so whoever reads the shard takes each from whichever has it first. Input
is acknowledged by the primary alone, for both: what its twin has told that it has consumed. So a producer need not know
who runs: whatever record it has, it trims nothing that a copy, or one that has just joined, still needs. (Each copy
acknowledging for itself would need every producer to know of a new copy before the old rule ends.)

A copy that falls back by half of what a producer may keep would soon stop everything: nothing is acknowledged beyond
it. The other one says so, and the record lets it join anew.

It is a guard of the primary; a twin has one too, to see how far its primary is, and acknowledges nothing.
"""

from __future__ import annotations

from holdfast.core.copy import DEAD_LETTERS, Copy
from holdfast.core.ready import Ready
from holdfast.core.roles import Condition
from holdfast.model import notes
from holdfast.model.config import Config
from holdfast.model.ids import Asset, Edge, Seat
from holdfast.model.messages import Abreast, FellBack, Held, Message, Pasted
from holdfast.model.protection import Protection
from holdfast.model.record import Place

#: So many ticks in a row a copy must be too far behind: what it has just been sent does not count.
TICKS_MAX = 5
#: A copy in one of these does not go on by itself.
STOPPED = (Condition.TORN, Condition.CUT_OFF)


class Twin:
    name = "twin"

    __slots__ = (
        "base",
        "config",
        "copy",
        "noted",
        "other",
        "over",
        "place",
        "protection",
        "said",
        "seat",
        "ticks",
        "to",
    )

    def __init__(self, copy: Copy, place: Place, seat: Seat, config: Config) -> None:
        self.copy = copy
        self.seat = seat
        self.config = config
        self.protection = Protection()
        self.place = place
        #: The other copy that runs, if there is one.
        self.other: Seat | None = None
        #: What it has consumed, as far as it has told; and where this copy stood when there came to be two.
        self.to: dict[Edge, int] = {}
        self.base: dict[Edge, int] = {}
        #: What was last told to it.
        self.said: dict[Edge, int] = {}
        #: For how many ticks it has been too far behind.
        self.ticks = 0
        #: This copy has started empty: the other one does not continue it.
        self.over = False
        #: Somebody shall join anew, and that was noted.
        self.noted = False

    def retarget(self, place: Place) -> None:
        other = next((seat for seat in place.running if seat != self.seat), None) if place.twin else None
        if (other, place.epoch) != (self.other, self.place.epoch):
            self.to, self.ticks, self.over, self.noted = {}, 0, False, False
            self.base = self.copy.positions()
        self.other, self.place, self.said = other, place, {}

    def start_over(self) -> None:
        self.over = self.other is not None

    # --- how far they are

    def hear(self, source: Seat, message: Abreast) -> None:
        if source == self.other:
            self.to = {edge: max(at, self.to.get(edge, 0)) for edge, at in message.to.items()}
            if source == self.place.primary:
                self.copy.dead.ack(DEAD_LETTERS, message.kept)

    def tell(self, ready: Ready) -> None:
        """Tell the other one, if there is something new."""
        if self.other is not None and self.said != (to := self.copy.positions()):
            self.said = to
            kept = self.copy.dead.trimmed
            message = Abreast(shard=self.copy.id, since=self.place.since, to=to, kept=kept)
            ready.send.append((self.other, message))

    def on_tick(self, now_ns: int, ready: Ready) -> None:
        self.said = {}
        self.tell(ready)
        self.ticks = self.ticks + 1 if self._is_behind() else 0
        seat, why = self._who()
        if seat is not None and not self.noted:
            self.noted = True
            ready.notes.append(notes.Lags(self.copy.id, seat, self.place.epoch, why))

    def _is_behind(self) -> bool:
        if self.other is None:
            return False
        config = self.config
        for i in self.copy.inputs:
            bound = config.retained_hard_max if i.inbox else config.queue_memory_max + config.queue_spill_max
            if i.position - max(self.to.get(i.edge, 0), self.base[i.edge]) >= bound // 2:
                return True
        return False

    def _who(self) -> tuple[Seat | None, str]:
        """Who shall join anew, and why."""
        if self.other is None:
            return None, ""
        if self.copy.condition in STOPPED:
            return self.seat, "it cannot go on from what it has"
        blocked = self.copy.blocked if self.copy.condition is Condition.FAILED else None
        if blocked is not None and self.to.get(blocked.edge, 0) >= blocked.end:
            return self.seat, "it cannot take what the other one has taken"
        if self.over:
            return self.other, "the primary had to start empty"
        if self.ticks >= TICKS_MAX:
            return self.other, "it does not keep up"
        return None, ""

    # --- as a guard

    def safe(self) -> dict[Edge, int] | None:
        """What both have consumed. Until the other has spoken, nothing new is."""
        if self.other is None:
            return None
        return {edge: 0 if self.over else min(at, self.to.get(edge, 0)) for edge, at in self.copy.positions().items()}

    def has_news(self) -> bool:
        condition = self.copy.condition
        return self.other is not None and (self.noted or self.over or condition in (*STOPPED, Condition.FAILED))

    def reports(self, shard: Asset) -> list[Message]:
        seat, _ = self._who()
        return [FellBack(shard=shard, since=self.place.since, seat=seat)] if seat else []

    def due(self, now_ns: int, *, frozen: bool) -> bool:
        """It takes no captures."""
        return False

    def is_pressing(self, now_ns: int, *, frozen: bool) -> bool:
        return False

    def take(self, now_ns: int, ready: Ready) -> None: ...

    def hurry(self) -> None: ...

    def on_held(self, seat: Seat, message: Held, now_ns: int, ready: Ready) -> None: ...

    def on_pasted(self, seat: Seat, message: Pasted, now_ns: int, ready: Ready) -> None: ...

    def is_settled(self) -> bool:
        """It keeps nobody from handing over: there is nothing on its way."""
        return True

"""Checkpoints in the stable store: what survives the loss of every node.

One is under way at a time. The shard is suspended only while its state is marked (`Operator.image`); the write goes on
beside it, under a ticket. Input is acknowledged when a checkpoint that has consumed it is in the store: so whatever
comes after the newest one can be had again, from the output queues of other shards, which are in their checkpoints, or
from the log of the stage.

A copy that takes over does not know what the store has of its shard. Until its own first checkpoint is there it
acknowledges nothing new.
"""

from __future__ import annotations

from holdfast.core.copy import Copy
from holdfast.core.ready import Done, PutCheckpoint, Ready
from holdfast.core.roles import Condition
from holdfast.core.tickets import Tickets
from holdfast.errors import HoldfastError, InvariantError, one_line
from holdfast.model import notes
from holdfast.model.ids import Asset, Edge, Seat
from holdfast.model.messages import Held, Message, Pasted
from holdfast.model.parts import CheckpointHead
from holdfast.model.protection import Protection
from holdfast.model.record import Place

UNSTORABLE = (Condition.TORN, Condition.LANDING, Condition.CUT_OFF)


class Paged:
    name = "paged"

    __slots__ = (
        "copy",
        "epoch",
        "head",
        "hurried",
        "protection",
        "refused",
        "safe_at",
        "started_ns",
        "ticket",
        "tickets",
    )

    def __init__(self, copy: Copy, place: Place, tickets: Tickets, now_ns: int) -> None:
        self.copy = copy
        self.tickets = tickets
        self.epoch = place.epoch
        self.protection = Protection()
        #: When the last one was begun; and the one under way.
        self.started_ns = now_ns
        self.ticket = 0
        self.head: CheckpointHead | None = None
        #: Somebody wants one now.
        self.hurried = False
        #: The last one failed, and that was told.
        self.refused = False
        #: What the newest checkpoint of this copy has consumed.
        self.safe_at: dict[Edge, int] = dict.fromkeys(copy.positions(), 0)

    @property
    def is_on(self) -> bool:
        return self.protection.checkpoint == self.name

    def retarget(self, place: Place) -> None:
        self.epoch = place.epoch

    def start_over(self) -> None:
        """The shard starts empty: what is under way is of another history."""
        self._give_up()

    def due(self, now_ns: int, *, frozen: bool) -> bool:
        copy = self.copy
        if self.ticket or not self.is_on or copy.condition in UNSTORABLE or copy.quiet_to is not None:
            return False
        is_time = self.hurried or now_ns - self.started_ns >= self.protection.checkpoint_ns
        return is_time and copy.positions() != self.safe_at

    def is_pressing(self, now_ns: int, *, frozen: bool) -> bool:
        """Its interval is its own: it is due when it is over, and not before."""
        return self.due(now_ns, frozen=frozen)

    def hurry(self) -> None:
        """Once. One that is under way does not count: it may not have what is wanted. Whoever needs it asks again."""
        self.hurried = True

    def take(self, now_ns: int, ready: Ready) -> None:
        copy = self.copy
        self.started_ns, self.hurried = now_ns, False
        try:
            image = copy.op.image()
        except InvariantError:
            raise
        except HoldfastError as error:  # at the limit of its memory even a mark may not fit
            self._refused(one_line(error), ready)
            return
        self.head = copy.checkpoint_head()
        self.ticket = self.tickets.issue(self, long=True)
        put = PutCheckpoint(ticket=self.ticket, shard=copy.id, epoch=self.epoch, head=self.head, image=image)
        ready.apply.append(put)

    def on_done(self, done: Done, now_ns: int, ready: Ready) -> None:
        head, self.head, self.ticket = self.head, None, 0
        if head is None or not done.ok:
            self._refused(done.why, ready)
            return
        self.refused = False
        self.safe_at = head.to
        ready.notes.append(notes.Stored(self.copy.id, self.epoch, tuple(head.to.items())))
        ready.idle = True

    def on_missed(self, ticket: int, now_ns: int, ready: Ready) -> None:
        self.head, self.ticket = None, 0
        self._refused("The store does not answer.", ready)

    def _refused(self, why: str, ready: Ready) -> None:
        """Told once, until the store takes one again. The next one is tried after the interval."""
        if not self.refused:
            self.refused = True
            ready.notes.append(notes.StoreRefused(self.copy.id, self.epoch, why))

    def _give_up(self) -> None:
        self.tickets.cancel(self.ticket)
        self.head, self.ticket = None, 0

    def on_held(self, seat: Seat, message: Held, now_ns: int, ready: Ready) -> None:
        pass

    def on_pasted(self, seat: Seat, message: Pasted, now_ns: int, ready: Ready) -> None:
        pass

    def on_tick(self, now_ns: int, ready: Ready) -> None:
        pass

    def safe(self) -> dict[Edge, int] | None:
        return self.safe_at if self.is_on else None

    def is_settled(self) -> bool:
        """It keeps nobody from handing over: whoever goes on makes the next one."""
        return True

    def has_news(self) -> bool:
        return False

    def reports(self, shard: Asset) -> list[Message]:
        return []

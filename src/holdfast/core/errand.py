"""One piece of an edge, fetched for a task from whoever is primary: whom to ask, when to ask again, when to give up.

A node's death must never end a query: an errand follows the placement record and waits for the new primary. It ends at
its limit, and at once where waiting does not help (`HOPELESS`). What comes is all of the piece or nothing, so that
asking twice never doubles a row. Like a consumer of a stream, it takes no rows from a copy that it knows to be fenced.

The machine is the same in both worlds: the simulator carries its messages over its network; in a Spark task
`spark/fetch.py` carries a `Fetch` as a ticket of Flight and a `Pull` as the action `record`.
"""

from __future__ import annotations

import msgspec

from holdfast.core.fence import Behind, Fence
from holdfast.core.gate import Gate, hand_to
from holdfast.core.ready import Ready, Received, Tick
from holdfast.errors import refuse_if
from holdfast.model import notes
from holdfast.model.config import MS, SECOND
from holdfast.model.ids import Address, Asset, Name, name_of
from holdfast.model.message import FencedBy
from holdfast.model.messages import Fetch, Fetched, FetchRefused, Pull, Push
from holdfast.model.reasons import FetchReason
from holdfast.model.record import Record
from holdfast.model.topology import edge_alone

NO_NAME = Name("")
#: Asking again, here or elsewhere, changes nothing about these.
HOPELESS = frozenset((FetchReason.FENCED, FetchReason.TRIMMED, FetchReason.FOREIGN, FetchReason.POSITION))


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    #: How long a node may keep the question while its shard has yet to make the rows (again).
    wait_ns: int = 2 * SECOND
    #: A node that hangs answers nothing and refuses nothing: it is waited for this long at first, twice as long then.
    patience_ns: int = 4 * SECOND
    #: Where somebody may stand in for the primary, one of the two is waited for this long, then the other is asked;
    #: after both, twice as long.
    turn_ns: int = 250 * MS
    #: After a refusal, the same node is asked again after this.
    pause_ns: int = 100 * MS
    #: The whole errand.
    limit_ns: int = 120 * SECOND


#: On real nodes.
LIMITS = Limits()


class Errand:
    def __init__(
        self,
        asked: Fetch,
        shard: Asset,
        home: Name,
        version: int,
        names: tuple[Name, ...],
        limits: Limits,
        now_ns: int,
        standby: Name = NO_NAME,
    ) -> None:
        #: What is asked, but for ticket, wait and the producer's epoch.
        self.asked = asked
        self.shard = shard
        #: Who is primary, in which epoch, by the newest record that this errand knows (only its version is kept).
        self.home = home
        #: Who runs beside it, or may; and whether that one is asked now.
        self.standby = standby
        self.aside = False
        self.fence = Fence({asked.edge: shard})
        self.fence.hear(FencedBy.PRODUCER, shard, asked.producer_epoch)
        self.gate = Gate(asked.consumer, edge_alone(asked.edge, shard), self.fence, lambda m: hasattr(self, m.handler))
        self.version = version
        self.names = names
        self.limits = limits
        self.until_ns = now_ns + limits.limit_ns
        self.patience_ns = limits.turn_ns if standby else limits.patience_ns
        #: A question is out; otherwise the errand pauses. Either ends at `due_ns`.
        self.asking = False
        self.due_ns = now_ns
        self.ticket = 0
        self.answer: Fetched | None = None
        #: Why it ended without rows: what it was told, if waiting does not help; `late`: the limit passed.
        self.gone: FetchRefused | None = None
        self.late = False

    @property
    def producer_epoch(self) -> int:
        return self.fence.newest(FencedBy.PRODUCER, self.shard)

    @property
    def over(self) -> bool:
        return self.answer is not None or self.gone is not None or self.late

    def step(self, event: Received | Tick, now_ns: int) -> Ready:
        ready = Ready()
        if self.over:
            return ready
        if isinstance(event, Received):
            hand_to(self, self.gate, event.source, event.message, now_ns, ready)
        elif now_ns >= self.until_ns:
            self.late = True
        elif now_ns >= self.due_ns:
            if self.asking and self.standby:
                self._turn(now_ns, ready)
            elif self.asking:  # a large piece, a slow way, or a node that hangs
                self.patience_ns = max(self.limits.patience_ns, min(2 * self.patience_ns, self.until_ns - now_ns))
                self._look(now_ns, ready)
            else:
                self._ask(now_ns, ready)
        if not self.over:
            ready.wake_ns = min(self.due_ns, self.until_ns)
        return ready

    def _ask(self, now_ns: int, ready: Ready) -> None:
        if not self.home:
            self._look(now_ns, ready)
            return
        self.asking = True
        self.due_ns = now_ns + self.patience_ns
        self.ticket += 1
        question = msgspec.structs.replace(
            self.asked, ticket=self.ticket, producer_epoch=self.producer_epoch, wait_ns=self.limits.wait_ns
        )
        ready.send.append((self.standby if self.aside and self.standby else self.home, question))

    def _turn(self, now_ns: int, ready: Ready) -> None:
        """Ask the other one: the primary may hang, and its stand-in have the rows. After both, see where they are."""
        self.aside = not self.aside
        if self.aside:
            self._ask(now_ns, ready)
        else:
            self.patience_ns = min(2 * self.patience_ns, max(self.limits.turn_ns, self.until_ns - now_ns))
            self._look(now_ns, ready)

    def _look(self, now_ns: int, ready: Ready) -> None:
        """Is there a newer record? Whoever has one says so; else the same node is asked again."""
        self.asking = False
        self.due_ns = now_ns + self.limits.pause_ns
        ready.send.extend((name, Pull(version=self.version)) for name in self.names)

    # --- messages

    def on_fetched(self, source: Address, message: Fetched, now_ns: int, ready: Ready) -> None:
        """Rows for an earlier ticket are as good: a position always has the same rows."""
        asked = self.asked
        blocks = message.blocks
        if blocks:  # none: all of the piece was lost with a shard that had to start empty
            whole = blocks[-1].end == asked.end and (blocks[0].start == asked.start or blocks[0].jumps)
            refuse_if(not whole, "it is not all that was asked for", asked.edge)
        self.answer = message
        span = (asked.start, asked.end)
        ready.notes.append(notes.Fetched(asked.consumer, asked.edge, span, message.epoch, message.blocks))

    def refuse_fetched(self, source: Address, message: Fetched, behind: Behind, ready: Ready) -> None:
        ready.notes.append(notes.Refused(self.asked.consumer, self.asked.edge, behind.said, behind.known))

    def on_fetch_refused(self, source: Address, message: FetchRefused, now_ns: int, ready: Ready) -> None:
        if message.ticket != self.ticket or not self.asking:
            return  # an old question's: another is out, or the pause runs
        if message.reason in HOPELESS and not self.aside:
            self.gone = message
        elif self.aside:
            self._turn(now_ns, ready)
        else:
            self._look(now_ns, ready)

    def on_push(self, source: Address, message: Push, now_ns: int, ready: Ready) -> None:
        before = self.home
        self.learn(message.record)
        if self.home != before:
            self._ask(now_ns, ready)

    def learn(self, record: Record) -> None:
        """Take a newer record's word for where the shard runs."""
        if record.version <= self.version:
            return
        self.version = record.version
        place = record.places.get(self.shard)
        if place is not None:
            self.home = name_of(place.primary) if place.primary else NO_NAME
            self.standby = name_of(place.beside) if place.beside else NO_NAME
            self.fence.hear(FencedBy.PRODUCER, self.shard, place.epoch)

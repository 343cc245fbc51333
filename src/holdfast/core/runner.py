"""A shard at work: it steps its copy over what it is fed, streams what comes of it, and acknowledges what guards keep.

A shard that starts empty asks before it lands where its inputs go on, and up to which event time the copy before it
may have consumed them: a stage says so with the next commit or delivery that reaches it, a shard when it is asked. So
that what it is told covers every earlier copy, a producer that was promoted has asked the same before it answers
(`bounds`).

Acknowledgement is the minimum over the guards (`core/protect`). Where none of them holds anything back (mode `none`, or
no second node exists) there is no other copy that it could harm: then what was consumed is acknowledged.

In mode `active` a twin of the primary is at work like this, too (`core/twins.py`): it makes the same rows at the same
epoch and serves them, but captures, acknowledges and writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core.copy import Copy
from holdfast.core.dead_letters import DeadLetters
from holdfast.core.feed import Feed
from holdfast.core.operator import Operator
from holdfast.core.outlet import Outlet
from holdfast.core.protect import Eventual, Guard, Horizons, MakeGuard, Twin, guard_names
from holdfast.core.ready import Ready
from holdfast.core.roles import Change, Condition
from holdfast.core.skips import Skips
from holdfast.core.spills import Spills
from holdfast.core.stood import Stood
from holdfast.errors import refuse_if
from holdfast.logs.output_queue import OutputQueue
from holdfast.model import notes
from holdfast.model.block import Block, base_of, elements
from holdfast.model.config import Config
from holdfast.model.ids import NO_SEAT, Address, Asset, Consumer, Edge, Seat
from holdfast.model.messages import (
    Abreast,
    Back,
    Data,
    FellBack,
    Held,
    Here,
    Message,
    Pasted,
    SkipWanted,
    StandIn,
    StoodDown,
    Subscribe,
    Yielded,
)
from holdfast.model.parts import CommitRecord
from holdfast.model.protection import Protection
from holdfast.model.record import Place, Record
from holdfast.model.skips import Skip
from holdfast.model.topology import Topology


class Runner:
    __slots__ = (
        "barred", "beside", "bounds", "config", "copy", "epoch", "feeds", "guards", "letters", "make_guard",
        "make_op", "outlet", "place", "producers", "seat", "skips", "topology", "tries_again_ns", "two_at",
    )  # fmt: skip

    def __init__(
        self,
        copy: Copy,
        place: Place,
        seat: Seat,
        topology: Topology,
        config: Config,
        make_guard: MakeGuard,
        make_op: Callable[[], Operator],
        spills: Spills,
        letters: DeadLetters,
        *,
        stored: bool = False,
    ) -> None:
        self.copy = copy
        self.place = place
        self.seat = seat
        self.epoch = place.epoch
        self.topology = topology
        self.config = config
        self.make_guard = make_guard
        self.make_op = make_op
        self.letters = letters
        #: Input from these event times on was not consumed by any earlier copy: as producers said at this epoch.
        self.bounds: dict[Edge, int] = {}
        self.guards: tuple[Guard, ...] = ()
        #: While it waits for memory: when it tries again; 0: it does not.
        self.tries_again_ns = 0
        #: The last epoch at which there were two: what lies before an empty start is not known at that one.
        self.two_at = 0
        #: Of a twin: the blocks that it has promised not to take at this epoch.
        self.barred: tuple[tuple[Edge, int], ...] = ()
        self.outlet = Outlet(copy, place.epoch, topology, config, spills, is_primary=self.is_primary)
        self.beside = Stood(copy)
        self.skips = Skips(copy, self.outlet, letters, self.beside)
        self.feeds: dict[Edge, Feed] = {
            i.edge: Feed(i.edge, copy.id, place.epoch, i.position, config.credit_max, seat=seat, paused=copy.landing)
            for i in copy.inputs
            if i.inbox is None
        }
        if stored or not self.is_primary:  # what it stands at is not in the store, as far as it knows
            for feed in self.feeds.values():
                feed.ack = 0
        #: Where each producer sits, as this shard last turned to it.
        self.producers: dict[Edge, Seat | None] = {}

    @property
    def id(self) -> Asset:
        return self.copy.id

    @property
    def is_primary(self) -> bool:
        """Otherwise it is a twin."""
        return self.place.primary == self.seat

    # --- placement

    def on_place(self, place: Place, protection: Protection, now_ns: int, ready: Ready) -> None:
        """First produce, then protect: captures for new targets are taken in an idle moment after this."""
        if place.mode != self.place.mode and place.primary == self.seat:
            ready.notes.append(notes.ModeChanged(self.id, place.mode, self.epoch, place.since))
        was_two, self.place = self.place.twin is not None, place
        self.outlet.is_primary = self.is_primary
        if place.twin:  # it may have to make again what the other one has made already
            self.copy.replays, self.two_at = True, place.epoch
        if place.epoch != self.epoch:
            self._go_on(place, now_ns, ready, one_of_two=was_two)
        self.on_protection(protection, now_ns)
        for guard in self.guards:
            guard.retarget(place)
        self.pump(now_ns, ready)
        ready.idle = True

    def may_go_on(self, place: Place) -> bool:
        """Can this copy go on at the epoch of this place? It skips what was given up here, or another one of two is the
        primary now."""
        is_two = bool(self.place.twin) or place.twin == self.seat
        return self.skips.is_granted(place) or is_two or self.copy.condition is Condition.CUT_OFF

    def _go_on(self, place: Place, now_ns: int, ready: Ready, *, one_of_two: bool) -> None:
        """The same copy goes on, at the epoch that the record names: what was given up is skipped, or one of two copies
        has become the primary. Then it is as one that was promoted, but it has nothing to do again."""
        self.epoch = self.outlet.epoch = place.epoch
        copy = self.copy
        if copy.condition is Condition.FAILED and copy.blocked is not None and copy.blocked.key in copy.skips:
            copy.change(Change.SKIPS)
        elif copy.condition is Condition.WAITING:
            copy.change(Change.TRIES_AGAIN)
        self.skips.given_up, self.barred = None, ()
        self.skips.look(now_ns)
        self.tries_again_ns = 0
        self.note_start(ready)
        if one_of_two or copy.condition is Condition.CUT_OFF:
            self.bounds = {}
            if self.is_primary:  # what the one before may not have written, it writes
                ready.notes.extend(notes.SetAside(self.id, self.epoch, block) for block in copy.dead.blocks)
        for edge, feed in self.feeds.items():
            feed.epoch, feed.said = place.epoch, {}
            feed.subscribe(self.producers.get(edge), now_ns, ready)

    def note_start(self, ready: Ready) -> None:
        """That it runs at this epoch."""
        positions = tuple(self.copy.positions().values())
        if self.is_primary:
            ready.notes.append(notes.Promoted(self.id, self.seat, self.epoch, positions))
        else:
            primary = self.place.primary or NO_SEAT
            ready.notes.append(notes.RunsBeside(self.id, self.seat, self.epoch, primary, positions))

    def on_protection(self, protection: Protection, now_ns: int) -> None:
        """Settings as the record has them now. A guard stays for as long as the shard runs here, in any mode: without
        a target it holds nothing back, and its rounds are numbered on when it has one again."""
        names = guard_names(protection, self.place) if self.is_primary else (Twin.name,)
        if not self.is_primary:
            self.guards = tuple(guard for guard in self.guards if guard.name in names)
        there = {guard.name: guard for guard in self.guards}
        new = [name for name in names if name not in there]
        self.guards += tuple(self.make_guard(name, self.place, now_ns) for name in new)
        for guard in self.guards:
            guard.protection = protection
            if isinstance(guard, Eventual | Horizons):
                guard.others = self.guards
        if not self.is_primary or protection.checkpoint != Eventual.name:
            self.copy.taken = None  # nobody notes it

    def on_record(self, record: Record, now_ns: int, ready: Ready) -> None:
        """Turn to producers that have moved (at the start: to all)."""
        self.outlet.on_record(record)
        for edge, feed in self.feeds.items():
            place, both = record.places[self.topology.producer[edge]], feed.both
            feed.turn(place)
            if edge not in self.producers or self.producers[edge] != place.primary or feed.both != both:
                self.producers[edge] = place.primary
                feed.subscribe(place.primary, now_ns, ready)

    # --- data

    def on_data(self, message: Data, source: Address, now_ns: int, ready: Ready) -> None:
        feed = self.feeds.get(message.edge)
        if feed is None:
            return
        blocks = feed.take(message, source, now_ns, ready)
        if blocks:
            self.copy.input(message.edge).queue.extend(blocks)
            self.pump(now_ns, ready)

    def on_here(self, source: Address, message: Here, now_ns: int, ready: Ready) -> None:
        """A producer says from where it keeps what this shard wants: never from later on, but for an empty start."""
        edge = message.edge
        feed = self.feeds.get(edge)
        if feed is None:
            return
        if message.next >= 0:
            said = feed.of_all(source, message)
            if said is None:
                return
            message = said
        starts = feed.paused and message.next >= 0
        gone = not starts and elements(feed.next, message.first) > 0
        refuse_if(gone, "what a shard needs is gone", f"{edge}: {message.first}, {feed.next}")
        if starts:
            feed.start(max(message.next, message.first))
            here = self.copy.input(edge)
            here.position, here.watermark = feed.next, message.watermark
            feed.subscribe(self.producers.get(edge), now_ns, ready)
        if message.next >= 0:
            self._bound(edge, message.to, now_ns, ready)

    # --- empty starts

    def on_heard(self, edge: Edge, commit: CommitRecord | None, now_ns: int, ready: Ready) -> None:
        """A stage spoke to the present holders: earlier copies have consumed nothing beyond this commit."""
        inbox = self.copy.inboxes[edge]
        if commit is None and inbox.landing:
            inbox.begin()
        to = max(commit.highest + 1, commit.gap) if commit else 0
        if inbox.landing and not self.copy.landing:
            self._stream(self.copy.pass_over(to), ready)  # an overtaken driver had spoken first
        if self.copy.landing or self.copy.replays:
            self._bound(edge, to, now_ns, ready)

    def on_all_heard(self, heard: dict[Edge, CommitRecord | None], now_ns: int, ready: Ready) -> None:
        """The same, of what was said before this copy ran."""
        for edge, commit in heard.items():
            self.on_heard(edge, commit, now_ns, ready)

    def _bound(self, edge: Edge, to: int, now_ns: int, ready: Ready) -> None:
        self.bounds[edge] = max(to, self.bounds.get(edge, 0))
        self.outlet.bound = max(self.bounds.values())
        if self.copy.landing and self._knows_bounds():
            self._land(now_ns, ready)

    def _knows_bounds(self) -> bool:
        return len(self.bounds) == len(self.copy.inputs)

    def _land(self, now_ns: int, ready: Ready) -> None:
        copy = self.copy
        made = copy.land(max(self.bounds.values()))
        ready.notes.append(notes.Landed(self.id, self.place.primary or NO_SEAT, self.epoch, copy.gap))
        self._stream(made, ready)
        self.pump(now_ns, ready)

    def _start_over(self, now_ns: int, ready: Ready) -> None:
        """Input that the copy before this one has consumed is lost with its producer: what this one knows is of no use,
        since it cannot make again what was made of it. Its inputs go on where they are."""
        self.copy.op = self.make_op()
        self.copy.start_empty(base_of(self.epoch))
        for guard in self.guards:
            guard.start_over()
        ready.notes.append(notes.CutOff(self.id, self.place.primary or NO_SEAT, self.epoch))
        self._ask_bounds(now_ns, ready)
        if self._knows_bounds():
            self._land(now_ns, ready)

    def _ask_bounds(self, now_ns: int, ready: Ready) -> None:
        for edge, feed in self.feeds.items():
            if edge not in self.bounds:
                feed.subscribe(self.producers.get(edge), now_ns, ready, paused=True)

    def _stream(self, made: list[tuple[OutputQueue, Block]], ready: Ready) -> None:
        for queue, block in made:
            if self.is_primary or queue is not self.copy.dead:
                ready.notes.append(self._noted(queue, block))
        if made:
            self.outlet.flush(ready)

    def _noted(self, queue: OutputQueue, block: Block) -> notes.Note:
        if queue is self.copy.dead:
            return notes.SetAside(self.id, self.epoch, block)
        kind = notes.Emitted if self.is_primary else notes.EmittedBeside
        return kind(self.id, queue.edge, self.epoch, block)

    def pump(self, now_ns: int, ready: Ready) -> None:
        """Consume all there is, in order; stream what it made."""
        if self.place.moving:
            return  # it hands over: it serves, but consumes nothing
        made, before = False, self.copy.condition
        while not self._is_barred() and (blocks := self.copy.step()) is not None:
            if self.copy.skipped is not None:
                self._note_skipped(self.copy.skipped, ready)
            for queue, block in blocks:
                made = True
                if self.is_primary or queue is not self.copy.dead:
                    ready.notes.append(self._noted(queue, block))
        if self.copy.condition is Condition.CUT_OFF and self.is_primary and self.two_at != self.epoch:
            self._start_over(now_ns, ready)
        elif self.copy.condition is Condition.WAITING and before is not Condition.WAITING:
            if not self.tries_again_ns:
                way = self._way_on()
                ready.notes.append(notes.WaitsForMemory(self.id, self.epoch, f"{self.copy.why} {way}"))
            self.tries_again_ns = now_ns + self.config.spill_retry_ns
        elif self.copy.blocked is not None and self.copy.condition is not before:
            edge, start = self.copy.blocked.key
            ready.notes.append(notes.Failed(self.id, self.epoch, edge, start, self.copy.why, self._way_on()))
        self.skips.look(now_ns)
        if made:
            self.outlet.flush(ready)
        if self.is_primary:
            self.letters.look(self.copy, ready)
            if self.skips.stands:
                self.letters.find(self.copy, ready)
        if self.copy.consumed_since >= self.config.retained_soft_max:
            self.protect(now_ns, ready)
        self.acknowledge(now_ns, ready)

    def _is_barred(self) -> bool:
        """Is the next block one that this twin has promised not to take?"""
        if not self.barred:
            return False
        source = self.copy.next_input()
        return bool(source.queue) and (source.edge, source.queue[0].start) in self.barred

    def _way_on(self) -> str:
        return self.skips.way_on(self.place) if self.is_primary else "If its primary can take it, this copy joins anew."

    def _note_skipped(self, skip: Skip, ready: Ready) -> None:
        self.skips.past.append(skip)
        rows = skip.end - skip.start - (1 if skip.batch < 0 else 2)
        ready.notes.append(notes.Skipped(self.id, self.epoch, skip.edge, skip.start, rows, str(skip)))

    def on_skip_wanted(self, message: SkipWanted, now_ns: int, ready: Ready) -> None:
        """A person wants the block to be skipped that this shard stands still at."""
        if self.is_primary:
            self.beside.wanted = (message.input, message.start)
            self._give_up(ready)

    def _give_up(self, ready: Ready) -> None:
        """Give up what a person wants to be skipped, once nobody could stand in and take it."""
        wanted, beside = self.beside.wanted, self.beside
        if self.skips.given_up is not None:
            beside.is_firm(self.skips.given_up.key, self.place, ready)  # there may be another backup by now
        if wanted is None or not beside.is_firm(wanted, self.place, ready):
            return
        beside.wanted = None
        skip = self.skips.give_up(*wanted, self.place) if beside.may_skip(*wanted, self.place) else None
        if skip is not None:
            ready.notes.append(notes.GaveUp(self.id, self.epoch, skip.edge, skip.start, str(skip)))

    def on_checkpoint_wanted(self, ready: Ready) -> None:
        for guard in self.guards:
            guard.hurry()
        ready.idle = True

    # --- who stands in for it

    def on_stand_in(self, source: Address, message: StandIn, now_ns: int, ready: Ready) -> None:
        """It goes on until this copy stands where it stands: so output never waits for one that catches up."""
        self.copy.replays = True
        if self.beside.hear(message.to) or self.place.moving or self.copy.condition is not Condition.RUNNING:
            ready.send.append((source, Back(shard=self.id, since=self.place.since)))

    def on_stood_down(self, source: Address, message: StoodDown, now_ns: int, ready: Ready) -> None:
        self.beside.hear(message.to)
        if message.firm and source == self.place.backup:
            self.beside.firm = (Seat(source), self.epoch, message.block)
            self._give_up(ready)
        ready.idle = True  # captures are held again

    def on_abreast(self, source: Address, message: Abreast, now_ns: int, ready: Ready) -> None:
        """The other copy that runs says how far it is."""
        for guard in self.guards:
            if isinstance(guard, Twin):
                guard.hear(Seat(source), message)
        self.beside.hear(message.to)
        if self.barred:  # but for what the primary has taken after all
            self.barred = tuple((edge, start) for edge, start in self.barred if message.to[edge] <= start)
        self.acknowledge(now_ns, ready)

    def on_subscribe(self, source: Address, message: Subscribe, now_ns: int, ready: Ready) -> None:
        if message.paused and (self.copy.landing or (self.copy.replays and not self._knows_bounds())):
            self._ask_bounds(now_ns, ready)
            return  # it asks again
        if self.outlet.on_subscribe(source, message, now_ns, ready):
            self.pump(now_ns, ready)  # there may be room again
            ready.idle = ready.idle or bool(self.place.stand_in)  # a capture right after a trim carries least

    def on_left(self, edge: Edge, consumer: Consumer, now_ns: int, ready: Ready) -> None:
        if self.outlet.on_left(edge, consumer, ready):
            self.pump(now_ns, ready)  # there may be room again

    # --- protection

    def wants_protection(self, now_ns: int) -> bool:
        return any(guard.due(now_ns, frozen=self.place.moving) for guard in self.guards)

    def is_pressing(self, now_ns: int) -> bool:
        return any(guard.is_pressing(now_ns, frozen=self.place.moving) for guard in self.guards)

    def protect(self, now_ns: int, ready: Ready) -> None:
        """Let every guard take what is due."""
        for guard in self.guards:
            if guard.due(now_ns, frozen=self.place.moving):
                guard.take(now_ns, ready)

    def on_answer(self, seat: Seat, message: Held | Pasted, now_ns: int, ready: Ready) -> None:
        """A copy holds, or has pasted, a capture."""
        for guard in self.guards:
            if isinstance(message, Held):
                guard.on_held(seat, message, now_ns, ready)
            else:
                guard.on_pasted(seat, message, now_ns, ready)
        self.acknowledge(now_ns, ready)

    def safe(self) -> dict[Edge, int]:
        """What may be acknowledged: the minimum over all guards that keep anything, else what was consumed."""
        found = [positions for guard in self.guards if (positions := guard.safe()) is not None]
        if not found:
            return self.copy.positions()
        return {edge: min(positions[edge] for positions in found) for edge in found[0]}

    def acknowledge(self, now_ns: int, ready: Ready) -> None:
        """What is safe, by the primary; a twin tells it how far it is."""
        if self.copy.landing:
            return
        if not self.is_primary:
            for guard in self.guards:
                if isinstance(guard, Twin):
                    guard.tell(ready)
            return
        positions = self.safe()
        for edge, feed in self.feeds.items():
            if positions[edge] > feed.ack:
                feed.ack = positions[edge]
                ready.notes.append(notes.Acked(self.id, edge, feed.ack, self.epoch, self.place.since))
                feed.subscribe(self.producers.get(edge), now_ns, ready)

    def on_tick(self, now_ns: int, ready: Ready) -> None:
        """Send again what was not answered, let leases lapse."""
        for guard in self.guards:
            guard.on_tick(now_ns, ready)
        if self.is_primary:
            self._give_up(ready)
        if self.copy.landing:
            self._ask_bounds(now_ns, ready)
        for edge, feed in self.feeds.items():
            if feed.is_silent(now_ns, self.config.retry_ns, patient=self.place.stand_in is not None):
                feed.subscribe(self.producers.get(edge), now_ns, ready)
        self.outlet.on_tick(now_ns, ready)
        if self.copy.condition is Condition.WAITING and now_ns >= self.tries_again_ns:
            self.copy.change(Change.TRIES_AGAIN)
        self.pump(now_ns, ready)
        if self.tries_again_ns and self.copy.condition is Condition.RUNNING:
            self.tries_again_ns = 0
            ready.notes.append(notes.HasMemory(self.id, self.epoch))

    def has_news(self) -> bool:
        """Could `reports` have anything to say? Every shard is asked after every step: it must cost next to nothing."""
        place = self.place
        if place.joining or place.moving or place.skips or self.skips.given_up:
            return True
        return self.copy.condition is Condition.CUT_OFF or any(guard.has_news() for guard in self.guards)

    def reports(self) -> list[Message]:
        """What the coordinator must know, until it has acted on it."""
        found: list[Message] = [message for guard in self.guards for message in guard.reports(self.id)]
        if not self.is_primary:
            return found
        if not found and self.copy.condition is Condition.CUT_OFF:
            found.append(FellBack(shard=self.id, since=self.place.since, seat=self.seat))
        if not found and self.place.moving and self.has_yielded():
            found.append(Yielded(asset=self.id, since=self.place.since))
        skip = self.skips.given_up
        waits = skip is not None and not self.beside.may_skip(*skip.key, self.place)
        if not found and not self.copy.landing and not waits:
            found += self.skips.reports(self.id, self.place, self.safe())
        return found

    def has_yielded(self) -> bool:
        """Frozen, and every copy that is kept stands where this one stands. One whose state is torn stays: it would be
        named as the backup, and whoever took over would be torn by the same block."""
        return (
            self.place.moving
            and not self.copy.landing
            and self.copy.condition is not Condition.TORN
            and bool(self.guards)
            and all(guard.is_settled() for guard in self.guards)
        )

"""Stand-ins: images that run on beside a primary that is late, at its own epoch, until it is back or replaced.

hybrid-ha §IV-B: the second copy is there already, suspended, and is resumed at the first missed heartbeat; that may be
a false alarm, so going back must cost nothing. Here the copy runs on a fork of its image. What it makes is what the
primary makes, at the same positions: output is a function of the input edges and of the record. So it speaks at the
*same epoch*, consumers take whichever block comes first, and no record changes.

Early connection: consumers of a shard in this mode ask its backup for the same as its primary. A backup keeps such
questions (`taps`) and answers them when it stands in. Its own producers stream to it only while it stands in: when it
stands down it says that it rests (`Subscribe.inactive`), again whenever rows come all the same.

What keeps it exact:

* Input is acknowledged by the primary alone, and only what the image holds. A copy that stands in holds no capture.
* It takes what a stage has committed, no more: a batch counts only when every holder has it, so the primary has it too.
* It takes nothing that its primary might never get: no shard stands in behind one that may start empty (mode `none`).
* Whatever changes what a shard makes of its input is in its place. Any change of the place ends a stand-in, and before
  a primary gives up a block, its backup has promised not to stand in at that epoch any more (`Back.firm`).

It ends when the primary says `Back`, which it does when it has come as far; when the place changes (a promotion keeps
what came of it); or when so much input waits for the image that the stage would soon be refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from holdfast.core.copy import Copy
from holdfast.core.feed import Feed, Tap
from holdfast.core.ready import Ready
from holdfast.core.roles import Action, Condition, State
from holdfast.errors import HoldfastError, InvariantError
from holdfast.logs.output_queue import OutputQueue
from holdfast.model import notes
from holdfast.model.block import Block
from holdfast.model.ids import Address, Asset, Consumer, Edge, Seat, name_of, seat_of
from holdfast.model.messages import Back, Data, Missed, StandIn, StoodDown, Subscribe
from holdfast.model.protection import MODES, OnFailure
from holdfast.model.record import Place, Record

if TYPE_CHECKING:
    from holdfast.core.host import Host

#: After so many false alarms in a row the time for which an alarm is not believed grows no more: 32 heartbeats.
ALARMS_MAX = 5


class Beside:
    """One shard that stands in."""

    __slots__ = ("began_ns", "copy", "feeds", "place", "producers", "taps")

    def __init__(
        self,
        copy: Copy,
        place: Place,
        seat: Seat,
        credit_max: int,
        taps: dict[tuple[Edge, Consumer, Seat], Tap],
        now_ns: int,
    ) -> None:
        self.copy = copy
        self.place = place
        self.began_ns = now_ns
        self.taps = taps
        self.feeds = {
            i.edge: Feed(i.edge, copy.id, place.epoch, i.position, credit_max, seat=seat)
            for i in copy.inputs
            if i.inbox is None
        }
        for feed in self.feeds.values():  # what its image has need not be in the store, and its word counts on
            feed.ack = 0  # if it is promoted
        self.producers: dict[Edge, Seat | None] = {}

    def queue(self, edge: Edge) -> OutputQueue:
        return next(q for q in self.copy.outputs if q.edge == edge)

    def turn(self, record: Record, producer: Mapping[Edge, Asset], now_ns: int, ready: Ready) -> None:
        """Turn to producers that have moved (at the start: to all)."""
        for edge, feed in self.feeds.items():
            place = record.places[producer[edge]]
            if edge not in self.producers or self.producers[edge] != place.primary:
                self.producers[edge] = place.primary
                feed.turn(place)
                feed.subscribe(place.primary, now_ns, ready)

    def rest(self, ready: Ready) -> None:
        """Nobody shall stream to it any more."""
        for edge, feed in self.feeds.items():
            producer = self.producers.get(edge)
            feed.rest((*((producer,) if producer else ()), *feed.both), ready)

    def pump(self, ready: Ready) -> None:
        """Consume all there is, in order; stream what it made."""
        self.copy.retake()
        while (blocks := self.copy.step()) is not None:
            for queue, block in blocks:
                if queue is not self.copy.dead:
                    ready.notes.append(notes.EmittedBeside(self.copy.id, queue.edge, self.place.epoch, block))
        self.flush(ready)

    def flush(self, ready: Ready) -> None:
        for (edge, consumer, seat), tap in list(self.taps.items()):
            queue = next((q for q in self.copy.outputs if q.edge == edge), None)
            if queue is None or tap.cursor < queue.trimmed:
                continue  # of another shard; or it stands before what this image has, and its primary has to say so
            if not tap.flush(queue, self.place.epoch, ready):
                del self.taps[edge, consumer, seat]

    def on_tick(self, now_ns: int, retry_ns: int, ready: Ready) -> None:
        for edge, feed in self.feeds.items():
            if now_ns - feed.heard_ns >= 3 * retry_ns:
                feed.subscribe(self.producers.get(edge), now_ns, ready)
        self.pump(ready)
        self.tell(ready)

    def tell(self, ready: Ready) -> None:
        """Tell the primary, again until it says that it is back."""
        if self.place.primary:
            message = StandIn(shard=self.copy.id, since=self.place.since, to=self.copy.positions())
            ready.send.append((self.place.primary, message))


class StandIns:
    """Of one node."""

    __slots__ = ("alarms", "firm", "heard", "host", "kept", "reached", "running", "taps")

    def __init__(self, host: Host) -> None:
        self.host = host
        self.running: dict[Asset, Beside] = {}
        #: What consumers ask of backups here.
        self.taps: dict[tuple[Edge, Consumer, Seat], Tap] = {}
        #: How many false alarms there were in a row, by the primary; and when a seat was last heard here.
        self.alarms: dict[Seat, int] = {}
        self.heard: dict[Seat, int] = {}
        #: Epochs at which a shard is not stood in for any more: its primary may give up a block.
        self.firm: dict[Asset, int] = {}
        #: Dead letters of stand-ins whose output was kept, until they are noted.
        self.kept: dict[Asset, list[Block]] = {}
        #: Up to where a stand-in has taken input, and at which epoch.
        self.reached: dict[Asset, tuple[int, dict[Edge, int]]] = {}

    # --- who is late

    def tell(self, missed: Missed | None, now_ns: int, ready: Ready) -> None:
        """A monitor tells those who could stand in for shards of a node that is late, if one is."""
        if missed is None:
            return
        late = seat_of(missed.name, missed.life)
        places = self.host.record.places.values()
        seats = {place.stand_in: None for place in places if place.primary == late and place.stand_in}
        for seat in seats:
            if seat == self.host.seat:
                self.on_missed(seat, missed, now_ns, ready)
            elif seat is not None:
                ready.send.append((seat, missed))

    def on_missed(self, source: Address, message: Missed, now_ns: int, ready: Ready) -> None:
        late = seat_of(message.name, message.life)
        patience_ns = self.host.config.heartbeat_ns << min(self.alarms.get(late, 0), ALARMS_MAX)
        if now_ns - self.heard.get(late, -(1 << 62)) < patience_ns:
            return  # whoever says so does not hear it; this node does
        for shard, place in self.host.record.places.items():
            if place.primary == late and place.stand_in == self.host.seat and shard not in self.running:
                self._begin(shard, place, now_ns, ready)

    def hear(self, source: Address, now_ns: int) -> None:
        """A primary has said something: it is there."""
        self.heard[Seat(source)] = now_ns

    def _begin(self, shard: Asset, place: Place, now_ns: int, ready: Ready) -> None:
        host = self.host
        copy = host.copies[shard]
        if host.states[shard] is not State.BACKUP or place.moving or self.firm.get(shard) == place.epoch:
            return
        if copy.retained() >= host.config.retained_soft_max or not self._is_certain(shard):
            return
        if any(inbox.landing for inbox in copy.inboxes.values()):
            return  # of one that started empty: the next commit says where it stands
        host.paste_all(shard, ready)
        if copy.condition is not Condition.COMPLETE:
            return
        host.cancel(copy)
        try:
            copy.stand_in()
        except InvariantError:
            raise
        except HoldfastError:
            return  # there is no memory for it: its primary is waited for
        beside = Beside(copy, place, host.seat, host.config.credit_max, self.taps, now_ns)
        self.running[shard] = beside
        ready.notes.append(notes.StandsIn(shard, host.seat, place.epoch, place.primary or host.seat))
        beside.turn(host.record, host.topology.producer, now_ns, ready)
        beside.pump(ready)
        beside.tell(ready)

    def _is_certain(self, shard: Asset) -> bool:
        """Will its primary get all that a stand-in could? Not where something before it may start empty."""
        topology, record = self.host.topology, self.host.record
        for edge in topology.shard[shard].inputs:
            maker = topology.producer[edge]
            if maker not in topology.shard:
                continue
            modes = (record.places[maker].mode, record.protection_of(maker).mode)
            if any(MODES[mode].on_failure is OnFailure.EMPTY for mode in modes) or not self._is_certain(maker):
                return False
        return True

    # --- the end

    def on_place(self, shard: Asset, place: Place, action: Action, ready: Ready) -> None:
        """Any change of its place ends it. What came of it is kept if it is promoted, to make the same of its input."""
        beside = self.running.get(shard)
        if beside is not None:
            keep = action is Action.PROMOTE and place.skips == beside.place.skips
            self._end(shard, "its place has changed", ready, keep=keep)

    def _end(self, shard: Asset, why: str, ready: Ready, *, keep: bool = False) -> None:
        """Go back to the image, or keep what came of it."""
        beside = self.running.pop(shard)
        copy, epoch = beside.copy, beside.place.epoch
        keep = keep and copy.condition is Condition.STANDING_IN
        self.reached[shard] = (epoch, self._reached(copy, epoch))
        self.kept[shard] = copy.stand_down(keep=keep)
        ready.notes.append(notes.StandsDown(shard, self.host.seat, epoch, keep, why))
        if not keep and self.host.record.places[shard].epoch == epoch:  # of a later one producers forget it
            beside.rest(ready)
        if not keep:
            self.host.take_all(shard, ready)

    def _reached(self, copy: Copy, epoch: int) -> dict[Edge, int]:
        """The furthest that any stand-in of this shard here has come at this epoch."""
        before, known = self.reached.get(copy.id, (0, {}))
        known = known if before == epoch else {}
        return {edge: max(at, known.get(edge, 0)) for edge, at in copy.positions().items()}

    def on_back(self, source: Address, message: Back, now_ns: int, ready: Ready) -> None:
        shard = message.shard
        place = self.host.record.places[shard]
        if place.backup != self.host.seat or shard not in self.host.copies:
            return
        if place.twin:
            self.host.twins.promise(source, message, now_ns, ready)
            return
        if shard in self.running:
            self._count_alarm(self.running[shard], Seat(source), now_ns)
            self._end(shard, "it is back", ready)
        self.hear(source, now_ns)
        if message.firm:
            self.firm[shard] = place.epoch
        to = self._reached(self.host.copies[shard], place.epoch)
        stood_down = StoodDown(shard=shard, since=place.since, to=to, firm=message.firm)
        ready.send.append((source, stood_down))

    def _count_alarm(self, beside: Beside, seat: Seat, now_ns: int) -> None:
        """Was it a false alarm? After each one in a row the next is believed later, since it may be a link that is cut.
        (Several shards of one node stand down together: that was one.)"""
        heartbeat_ns = self.host.config.heartbeat_ns
        if now_ns - beside.began_ns >= 2 * heartbeat_ns:
            self.alarms[seat] = 0
        elif now_ns - self.heard.get(seat, -(1 << 62)) >= heartbeat_ns:
            self.alarms[seat] = self.alarms.get(seat, 0) + 1

    # --- of a primary

    def on_stand_in(self, source: Address, message: StandIn, now_ns: int, ready: Ready) -> None:
        runner = self.host.runners.get(message.shard)
        if runner is not None:
            runner.on_stand_in(source, message, now_ns, ready)

    def on_stood_down(self, source: Address, message: StoodDown, now_ns: int, ready: Ready) -> None:
        runner = self.host.runners.get(message.shard)
        if runner is not None:
            runner.on_stood_down(source, message, now_ns, ready)

    # --- streams

    def on_subscribe(self, source: Address, message: Subscribe, ready: Ready) -> None:
        """Early connection: what a consumer asks of a backup is kept until it stands in."""
        shard = self.host.topology.producer[message.edge]
        if message.paused or self.host.record.places[shard].stand_in != self.host.seat:
            return
        key = (message.edge, message.consumer, message.seat)
        for other in [k for k, tap in self.taps.items() if k[:2] == key[:2] and tap.epoch < message.epoch]:
            del self.taps[other]
        if any(tap.epoch > message.epoch for k, tap in self.taps.items() if k[:2] == key[:2]):
            return
        if message.inactive:
            self.taps.setdefault(key, Tap()).rest()
            return
        self.taps.setdefault(key, Tap()).point(source, message, self.host.config.credit_max)
        if shard in self.running:
            self.running[shard].flush(ready)

    def on_data(self, shard: Asset, source: Address, message: Data, now_ns: int, ready: Ready) -> None:
        beside = self.running.get(shard)
        if beside is None:
            self._rest(shard, message.edge, source, ready)
            return
        blocks = beside.feeds[message.edge].take(message, source, now_ns, ready)
        if blocks:
            beside.copy.input(message.edge).queue.extend(blocks)
            beside.pump(ready)

    def _rest(self, shard: Asset, edge: Edge, source: Address, ready: Ready) -> None:
        """Rows have come to a backup that only stands by, and are for nobody else here: whoever has sent them did not
        hear that it does."""
        host = self.host
        place, copy = host.record.places[shard], host.copies.get(shard)
        if place.stand_in != host.seat or copy is None:
            return
        if not any(s in host.runners or s in self.running for s in host.topology.readers_of(edge)):
            Feed(edge, copy.id, place.epoch, copy.holds_to(edge), 0, seat=host.seat).rest((source,), ready)

    # --- record and time

    def on_record(self, record: Record, now_ns: int, ready: Ready) -> None:
        """Stand-ins whose place has changed have ended; the others follow their producers."""
        gone = [k for k in self.taps if record.places[self.host.topology.producer[k[0]]].stand_in != self.host.seat]
        for key in gone:
            del self.taps[key]
        self.heard = {seat: at for seat, at in self.heard.items() if name_of(seat) in record.members}
        for shard, beside in list(self.running.items()):
            if self._is_certain(shard):
                beside.turn(record, self.host.topology.producer, now_ns, ready)
            else:
                self._end(shard, "what it reads may start empty", ready)

    def on_again(self, ready: Ready) -> None:
        for beside in self.running.values():
            beside.pump(ready)

    def on_tick(self, now_ns: int, ready: Ready) -> None:
        config = self.host.config
        for shard, beside in list(self.running.items()):
            if 2 * beside.copy.retained() >= config.retained_hard_max:
                self._end(shard, "too much input waits for its image", ready)
            else:
                beside.on_tick(now_ns, config.retry_ns, ready)

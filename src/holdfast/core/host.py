"""The shards of one node: copies in their roles, fed by the record, by other shards and by captures.

Fencing happens here, at the border: whatever carries an epoch or a place version is compared with the record before
a copy sees it. The copies themselves know nothing of other nodes.
"""

from __future__ import annotations

import msgspec

from holdfast.core.checkpoint import method_of
from holdfast.core.copy import Copy
from holdfast.core.operator import OperatorFactory
from holdfast.core.primary import Primary, spill
from holdfast.core.ready import Left, Ready, Spill
from holdfast.core.roles import TRANSITIONS, Action, State, role_of
from holdfast.errors import HoldfastError, InvariantError
from holdfast.model import notes
from holdfast.model.config import Config
from holdfast.model.ids import Address, Asset, Consumer, Edge, Seat
from holdfast.model.messages import Capture, Data, EdgeState, Joined, Message, Pasted, Subscribe, Yielded
from holdfast.model.record import NO_RECORD, Place, Record
from holdfast.model.topology import Topology


class Host:
    __slots__ = (
        "config", "copies", "disk_full", "early", "factory", "first_version", "method", "primaries", "record",
        "seat", "states", "topology", "tuned",
    )  # fmt: skip

    def __init__(self, seat: Seat, topology: Topology, config: Config, factory: OperatorFactory) -> None:
        self.seat = seat
        self.topology = topology
        self.config = config
        self.factory = factory
        self.method = method_of(config)
        self.record: Record = NO_RECORD
        #: Version of the record a pipeline starts with: only under it may a shard start empty.
        self.first_version = 1
        self.states: dict[Asset, State] = {}
        #: Every copy on this node, whatever its role; and those that run.
        self.copies: dict[Asset, Copy] = {}
        self.primaries: dict[Asset, Primary] = {}
        #: Captures that came before the record they belong to: one per shard, the newest.
        self.early: dict[Asset, tuple[Seat, Capture]] = {}
        self.disk_full = False
        #: Settings of shards that differ from the node's.
        self.tuned: dict[Asset, Config] = {}

    def config_of(self, shard: Asset) -> Config:
        return self.tuned.get(shard, self.config)

    def tune(self, shards: tuple[Asset, ...], capture_period_ns: int) -> None:
        """Capture these shards so often from now on, whether they run here now or later."""
        for shard in shards:
            self.tuned[shard] = msgspec.structs.replace(self.config, capture_period_ns=capture_period_ns)
            if shard in self.primaries:
                self.primaries[shard].config = self.tuned[shard]

    # --- the record

    def on_record(self, record: Record, now_ns: int, ready: Ready) -> None:
        before = self.record
        self.record = record
        for shard in self.topology.shard:
            place = record.places[shard]
            if place != before.places.get(shard):
                self._on_place(shard, place, now_ns, ready)
        for primary in self.primaries.values():
            primary.on_record(record, now_ns, ready)
        early, self.early = self.early, {}
        for source, capture in early.values():
            self.on_capture(source, capture, now_ns, ready)

    def _on_place(self, shard: Asset, place: Place, now_ns: int, ready: Ready) -> None:
        state = self.states.get(shard, State.ABSENT)
        role = role_of(self.seat, place)
        known = TRANSITIONS.get((state, role))
        if known is None:
            raise InvariantError(
                "the placement gives a shard to a copy that cannot have it",
                detail=f"{shard} on {self.seat}: {state.value} -> {role.value} by {place}",
            )
        self.states[shard], action = known
        if place.primary is None:
            ready.notes.append(notes.Lost(shard, self.seat, place.epoch))
        if action is not Action.NOTHING:
            self._act(shard, place, action, now_ns, ready)

    def _act(self, shard: Asset, place: Place, action: Action, now_ns: int, ready: Ready) -> None:
        match action:
            case Action.FOUND:
                if place.since != self.first_version:
                    raise InvariantError(
                        "a shard would start empty in the middle of its stream",
                        detail=f"{shard} on {self.seat}: {place}",
                    )
                self.copies[shard] = self._new_copy(shard, based=True)
                if place.primary == self.seat:
                    self._run(shard, place, now_ns, ready)
            case Action.JOIN | Action.REJOIN:
                self.primaries.pop(shard, None)
                self._unspill(shard, ready)
                self.copies[shard] = self._new_copy(shard, based=False)
                ready.notes.append(notes.Joining(shard, self.seat, place.since))
            case Action.KEEP:
                self._check_based(shard, place)
            case Action.PROMOTE:
                self._check_based(shard, place)
                self._promote(shard, place, now_ns, ready)
            case Action.RETARGET:
                self._retarget(shard, place, now_ns, ready)
            case Action.DEMOTE:
                self.primaries.pop(shard)
                self.copies[shard].demote()
                ready.notes.append(notes.Demoted(shard, self.seat, place.epoch))
            case Action.DROP:
                self.primaries.pop(shard, None)
                self._unspill(shard, ready)
                self.copies.pop(shard, None)
                ready.notes.append(notes.Dropped(shard, self.seat, place.epoch))

    def _check_based(self, shard: Asset, place: Place) -> None:
        if not self.copies[shard].based:
            raise InvariantError("a copy without an image is named", detail=f"{shard} on {self.seat}: {place}")

    def _promote(self, shard: Asset, place: Place, now_ns: int, ready: Ready) -> None:
        if self.copies[shard].hollow:
            raise InvariantError(
                "an image that was lost in a failed paste would run", detail=f"{shard} on {self.seat}: {place}"
            )
        self.copies[shard].promote(now_ns + self.config.lease_ns)
        self._run(shard, place, now_ns, ready)

    def _retarget(self, shard: Asset, place: Place, now_ns: int, ready: Ready) -> None:
        primary = self.primaries[shard]
        if place.epoch == primary.epoch:
            primary.on_place(place, now_ns, ready)
            return
        if not primary.frozen:
            raise InvariantError("a primary missed an epoch of its own", detail=f"{shard} on {self.seat}: {place}")
        self.copies[shard].demote()  # it handed over, missed that it was backup, and is primary again
        self._promote(shard, place, now_ns, ready)

    def _unspill(self, shard: Asset, ready: Ready) -> None:
        """A copy goes: so do its files."""
        for queue in self.copies[shard].outputs if shard in self.copies else ():
            if queue.spilled_to:
                ready.apply.append(Spill(edge=queue.edge, trimmed=queue.next, to=0))

    def _new_copy(self, shard: Asset, *, based: bool) -> Copy:
        spec = self.topology.shard[shard]
        copy = Copy(spec, self.topology, self.factory(spec), self.config, based=based)
        for queue in copy.outputs:
            queue.disk_full = self.disk_full
        return copy

    def _run(self, shard: Asset, place: Place, now_ns: int, ready: Ready) -> None:
        copy = self.copies[shard]
        ready.notes.append(notes.Promoted(shard, self.seat, place.epoch, tuple(copy.positions().values())))
        primary = Primary(copy, place, self.topology, self.config_of(shard), self.method, now_ns)
        self.primaries[shard] = primary
        primary.on_record(self.record, now_ns, ready)
        primary.on_place(place, now_ns, ready)

    # --- messages

    def on_subscribe(self, source: Address, message: Subscribe, now_ns: int, ready: Ready) -> None:
        primary = self.primaries.get(self.topology.producer[message.edge])
        if primary is None:
            return  # the consumer turns to the right node when it has the record
        consumer = self.record.places.get(message.consumer)
        primary.on_subscribe(source, message, consumer.epoch if consumer else 0, now_ns, ready)

    def renew_leases(self, consumer: Consumer, now_ns: int) -> None:
        """A guest is there: nothing that is kept for it here lapses for another lease."""
        for primary in self.primaries.values():
            for queue in primary.copy.outputs:
                if consumer in queue.leases:
                    queue.lease(consumer, now_ns + self.config.lease_ns)

    def on_left(self, event: Left, now_ns: int, ready: Ready) -> None:
        for edge in event.edges:
            primary = self.primaries.get(self.topology.producer.get(edge, ""))
            if primary is not None:
                primary.on_left(edge, event.consumer, now_ns, ready)

    def on_data(self, source: Address, message: Data, now_ns: int, ready: Ready) -> None:
        for shard in self.topology.consumers[message.edge]:
            primary = self.primaries.get(shard)
            if primary is not None:
                primary.on_data(message, source, now_ns, ready)

    def on_capture(self, source: Address, message: Capture, now_ns: int, ready: Ready) -> None:
        """An image takes a capture only from the primary, and only under the place, that the record names."""
        place = self.record.places[message.shard]
        if message.since > place.since:
            self.early[message.shard] = (source, message)
            return
        copy = self.copies.get(message.shard)
        if copy is None or message.since != place.since or place.primary != source or message.epoch != place.epoch:
            ready.notes.append(notes.StaleCapture(message.shard, self.seat, message.epoch, message.since))
            return
        if self.states[message.shard] not in (State.JOINING, State.BACKUP):
            return
        number = (message.epoch, message.round)
        fits = copy.pasted == number
        if number > copy.pasted:
            fits = copy.fits(message)
            if fits:
                try:
                    sealed = copy.paste(message)
                except InvariantError:
                    raise
                except (
                    HoldfastError
                ) as error:  # no answer: it comes again after a while, and then perhaps there is room
                    ready.notes.append(notes.PasteFailed(message.shard, self.seat, str(error)))
                    return
                for edge, block in sealed:
                    ready.notes.append(notes.Sealed(message.shard, edge, self.seat, block))
                spill(copy, ready)  # an image's queues are bounded as its primary's are
            note = notes.Pasted if fits else notes.Misfit
            ready.notes.append(note(message.shard, self.seat, *number, message.whole))
        elif not fits:
            return  # an old round that was overtaken
        ready.send.append((source, Pasted(shard=message.shard, epoch=message.epoch, round=message.round, fits=fits)))

    def on_pasted(self, source: Seat, message: Pasted, now_ns: int, ready: Ready) -> None:
        primary = self.primaries.get(message.shard)
        if primary is not None:
            primary.on_pasted(source, message, now_ns, ready)

    def on_disk(self, full: bool) -> None:
        self.disk_full = full
        for copy in self.copies.values():
            for queue in copy.outputs:
                queue.disk_full = full

    def on_tick(self, now_ns: int, ready: Ready) -> None:
        for primary in self.primaries.values():
            primary.on_tick(now_ns, ready)

    def edges(self) -> dict[Edge, EdgeState]:
        """Where every edge stands that is made here."""
        return {
            queue.edge: EdgeState(trimmed=queue.trimmed, next=queue.next, watermark=primary.copy.watermark)
            for primary in self.primaries.values()
            for queue in primary.copy.outputs
        }

    def reports(self) -> list[Message]:
        """What the coordinator must know, until it has acted on it."""
        found: list[Message] = []
        for shard, primary in self.primaries.items():
            place = primary.place
            if place.joining and place.joining in primary.rounds.made:
                found.append(Joined(asset=shard, since=place.since, seat=place.joining))
            elif place.moving and primary.has_yielded():
                found.append(Yielded(asset=shard, since=place.since))
        return found

"""The shards of one node: copies in their roles, fed by the record, by other shards and by captures.

What comes in has passed the node's fence (`core/fence.py`): no copy sees what is behind the record. The copies
themselves know nothing of other nodes.
"""

from __future__ import annotations

from holdfast.core.agenda import HostAgenda
from holdfast.core.arriving import Arriving, Pasting, key_of
from holdfast.core.copy import Copy
from holdfast.core.dead_letters import DeadLetters
from holdfast.core.fence import Behind, Fence
from holdfast.core.lookups import Lookups
from holdfast.core.operator import OperatorFactory
from holdfast.core.possible import why_not
from holdfast.core.protect import Pace, maker
from holdfast.core.ready import Done, Left, Ready
from holdfast.core.recoveries import Recoveries
from holdfast.core.replays import Replays
from holdfast.core.restores import Restores
from holdfast.core.roles import TRANSITIONS, Action, Change, Condition, State, role_of
from holdfast.core.runner import Runner
from holdfast.core.spills import Spills
from holdfast.core.stand_ins import StandIns
from holdfast.core.tickets import Tickets
from holdfast.core.twins import Twins
from holdfast.errors import HoldfastError, InvariantError, one_line
from holdfast.model import notes
from holdfast.model.block import base_of
from holdfast.model.config import Config
from holdfast.model.ids import Address, Asset, Edge, Seat, life_of, name_of
from holdfast.model.messages import (
    Capture,
    CapturePiece,
    CheckpointWanted,
    Data,
    Held,
    Here,
    Message,
    Pasted,
    SkipWanted,
    Subscribe,
)
from holdfast.model.parts import EdgeState
from holdfast.model.protection import Protection
from holdfast.model.record import Place, Record
from holdfast.model.topology import Topology


class Host:
    __slots__ = (
        "arriving", "config", "copies", "factory", "fence", "first_version", "holds", "letters", "lookups", "pace",
        "recoveries", "replays", "restores", "runners", "seat", "spills", "stand_ins", "states", "tickets", "topology",
        "twins",
    )  # fmt: skip

    def __init__(self, seat: Seat, topology: Topology, config: Config, factory: OperatorFactory) -> None:
        self.seat = seat
        self.topology = topology
        self.config = config
        self.factory = factory
        self.pace = Pace(config.transfer_bytes_per_s)
        #: The fence of this node. Its record is the one that the shards follow.
        self.fence = Fence(topology.producer)
        #: Version of the record a pipeline starts with: only under it may a shard start empty and complete.
        self.first_version = 1
        self.states: dict[Asset, State] = {}
        #: Every copy on this node, whatever its role; and those that run.
        self.copies: dict[Asset, Copy] = {}
        self.runners: dict[Asset, Runner] = {}
        #: The newest capture of each shard from each seat, while pieces of it, or its record, are still to come.
        self.arriving: dict[tuple[Asset, Seat], Arriving] = {}
        #: How many captures were held so far.
        self.holds = 0
        #: Work that a driver does elsewhere, and which part of it is output on its way to disk.
        self.tickets = Tickets(config.spill_limit_ns, config.store_limit_ns)
        self.spills = Spills(config, self.tickets, self._pump)
        self.letters = DeadLetters(config, self.tickets, self._pump)
        self.lookups = Lookups(self.tickets, config, self._pump, seat)
        self.restores = Restores(self.tickets, config, self._on_loaded)
        self.stand_ins = StandIns(self)
        self.recoveries = Recoveries(seat, self.copies, self.runners, config.retry_ns)
        self.twins, self.replays = Twins(self), Replays(self)

    @property
    def record(self) -> Record:
        return self.fence.record

    def on_record(self, record: Record, now_ns: int, ready: Ready) -> None:
        before = self.record
        self.fence.record = record
        for shard in self.topology.shard:
            place = record.places[shard]
            if place != before.places.get(shard):
                self._look_for_failure(shard, before.places.get(shard), now_ns)
                self._on_place(shard, place, now_ns, ready)
            elif record.protection_of(shard) != before.protection_of(shard):
                self._on_protection(shard, now_ns)
        for runner in self.runners.values():
            runner.on_record(record, now_ns, ready)
        self.stand_ins.on_record(record, now_ns, ready)
        for shard, source in list(self.arriving):
            self._take(shard, source, ready)

    def _look_for_failure(self, shard: Asset, before: Place | None, now_ns: int) -> None:
        """Does the record give this shard to its image here because the node of its primary is gone?"""
        gone = before.primary if before else None
        is_next = self.record.places[shard].primary == self.seat and self.states.get(shard) is State.BACKUP
        is_gone = gone is not None and self.record.members.get(name_of(gone)) != life_of(gone)
        if gone and is_gone and is_next and shard not in self.stand_ins.running:
            self.recoveries.begin(shard, name_of(gone), now_ns)

    def take_all(self, shard: Asset, ready: Ready) -> None:
        """Hold what has arrived for this shard meanwhile."""
        for key in [key for key in self.arriving if key[0] == shard]:
            self._take(*key, ready)

    def _on_protection(self, shard: Asset, now_ns: int) -> None:
        protection = self.record.protection_of(shard)
        if shard in self.copies:
            _logs(self.copies[shard], protection)
        if shard in self.runners:
            self.runners[shard].on_protection(protection, now_ns)

    def impossible(self, record: Record) -> str:
        """Why the copies here could not do what this record asks of them, if they could not. (Their own table says so
        again when they do it: then it is a bug of ours.)"""
        return why_not(self, record)

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
        self.stand_ins.on_place(shard, place, action, ready)
        if shard in self.copies:
            self.copies[shard].skips = {skip.key: skip for skip in place.skips}
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
                if self.seat in place.running:
                    self.copies[shard].change(Change.RUNS)
                    self.run(shard, place, now_ns, ready)
            case Action.JOIN | Action.REJOIN:
                self._forget(shard, ready)
                self.copies[shard] = self._new_copy(shard, based=False)
                ready.notes.append(notes.Joining(shard, self.seat, place.since))
            case Action.KEEP:
                self.copies[shard].change(Change.NAMED)
            case Action.PROMOTE:
                self.copies[shard].change(Change.NAMED)
                self._promote(shard, place, now_ns, ready)
            case Action.RUN_BESIDE:
                self.copies[shard].change(Change.NAMED)
                self.twins.start(shard, place, now_ns, ready)
            case Action.LAND:
                self._land(shard, place, now_ns, ready)
            case Action.RESTORE:
                self._restore(shard, place, now_ns, ready)
            case Action.RETARGET:
                self._retarget(shard, place, now_ns, ready)
            case Action.DEMOTE:
                self.runners.pop(shard)
                self.cancel(self.copies[shard])
                self.copies[shard].demote()
                ready.notes.append(notes.Demoted(shard, self.seat, place.epoch))
            case Action.DROP:
                self._forget(shard, ready)
                self.copies.pop(shard, None)
                ready.notes.append(notes.Dropped(shard, self.seat, place.epoch))

    def _promote(self, shard: Asset, place: Place, now_ns: int, ready: Ready) -> None:
        self.paste_all(shard, ready)
        self.begin(shard, place, now_ns, ready)

    def begin(self, shard: Asset, place: Place, now_ns: int, ready: Ready) -> None:
        """Run from the image."""
        copy = self.copies[shard]
        self.cancel(copy)
        copy.promote(now_ns + self.config.lease_ns)
        self.run(shard, place, now_ns, ready)

    def _retarget(self, shard: Asset, place: Place, now_ns: int, ready: Ready) -> None:
        runner = self.runners.get(shard)
        if runner is None:
            self.twins.start_late(shard, place, now_ns, ready)
            return
        if place.epoch == runner.epoch or runner.may_go_on(place):
            runner.on_place(place, self.record.protection_of(shard), now_ns, ready)
            return
        if not runner.place.moving:
            raise InvariantError("a primary missed an epoch of its own", detail=f"{shard} on {self.seat}: {place}")
        self.cancel(self.copies[shard])
        self.copies[shard].demote()  # it handed over, missed that it was backup, and is primary again
        self._promote(shard, place, now_ns, ready)

    def _land(self, shard: Asset, place: Place, now_ns: int, ready: Ready) -> None:
        """Start empty, in a mode that lets it; if this copy has at this epoch, go on."""
        runner = self.runners.get(shard)
        if runner is not None and runner.epoch == place.epoch:
            runner.on_place(place, self.record.protection_of(shard), now_ns, ready)
            return
        if shard in self.copies:
            self._forget(shard, ready)
            ready.notes.append(notes.Dropped(shard, self.seat, place.epoch))
        copy = self.copies[shard] = self._new_copy(shard, based=True)
        for inbox in copy.inboxes.values():
            inbox.based, inbox.landing = False, True
        copy.start_empty(base_of(place.epoch))
        self.run(shard, place, now_ns, ready)

    def _restore(self, shard: Asset, place: Place, now_ns: int, ready: Ready) -> None:
        """All copies are gone: ask the store; if this copy has at this epoch, go on."""
        runner = self.runners.get(shard)
        if runner is not None and runner.epoch == place.epoch:
            runner.on_place(place, self.record.protection_of(shard), now_ns, ready)
            return
        if self.restores.is_under_way(shard, place.epoch):
            return
        if shard in self.copies:
            self._forget(shard, ready)
            ready.notes.append(notes.Dropped(shard, self.seat, place.epoch))
        copy = self.copies[shard] = self._new_copy(shard, based=False)
        copy.change(Change.ASKS_THE_STORE)
        ready.notes.append(notes.Restoring(shard, self.seat, place.epoch))
        self.restores.ask(shard, place.epoch, ready)

    def _on_loaded(self, shard: Asset, epoch: int, done: Done, now_ns: int, ready: Ready) -> None:
        """The store has answered: run from there, over what is not consumed."""
        place, copy = self.record.places[shard], self.copies[shard]
        try:
            sealed = copy.load(done.head, done.image)
        except InvariantError:
            raise
        except HoldfastError as error:  # what is there now is of no use
            self.copies[shard] = self._new_copy(shard, based=False)
            self.copies[shard].change(Change.ASKS_THE_STORE)
            self.restores.refuse(shard, epoch, one_line(error), now_ns, ready)
            return
        for edge, block in sealed:
            ready.notes.append(notes.Sealed(shard, edge, self.seat, block))
        heard = self.restores.end(shard)
        ready.notes.append(notes.Restored(shard, self.seat, epoch, tuple(copy.positions().items())))
        copy.promote(now_ns + self.config.lease_ns)
        self.run(shard, place, now_ns, ready)
        self.runners[shard].on_all_heard(heard, now_ns, ready)
        self.lookups.look(copy, ready)

    def _forget(self, shard: Asset, ready: Ready) -> None:
        """A copy goes: so do its files, and what was on its way to it."""
        self.runners.pop(shard, None)
        self.restores.forget(shard)
        if shard in self.copies:
            self.letters.cancel(self.copies[shard])
            self.lookups.cancel(self.copies[shard])
            self.spills.forget(self.copies[shard], ready)

    def cancel(self, copy: Copy) -> None:
        """A copy changes its role: what it becomes asks for its own writes."""
        self.spills.cancel(copy)
        self.letters.cancel(copy)

    def _new_copy(self, shard: Asset, *, based: bool) -> Copy:
        spec = self.topology.shard[shard]
        copy = Copy(spec, self.topology, self.factory(spec), self.config, based=based)
        copy.skips = {skip.key: skip for skip in self.record.places[shard].skips}
        _logs(copy, self.record.protection_of(shard))
        return copy

    def run(self, shard: Asset, place: Place, now_ns: int, ready: Ready) -> None:
        copy = self.copies[shard]
        make_guard = maker(copy, self.seat, self.config, self.pace, self.tickets)
        make_op = lambda: self.factory(copy.spec)  # noqa: E731
        stored, parts = self.record.protection_of(shard).is_stored, (self.spills, self.letters)
        runner = Runner(copy, place, self.seat, self.topology, self.config, make_guard, make_op, *parts, stored=stored)
        self.runners[shard] = runner
        runner.barred = self.twins.barred(shard, place)
        runner.note_start(ready)
        ready.notes.extend(notes.SetAside(shard, place.epoch, block) for block in self.stand_ins.kept.pop(shard, ()))
        runner.on_record(self.record, now_ns, ready)
        runner.on_place(place, self.record.protection_of(shard), now_ns, ready)

    # --- streams

    def on_subscribe(self, source: Address, message: Subscribe, now_ns: int, ready: Ready) -> None:
        runner = self.runners.get(self.topology.producer[message.edge])
        if runner is None:  # it runs elsewhere, and may be stood in for here
            self.stand_ins.on_subscribe(source, message, ready)
            return
        runner.on_subscribe(source, message, now_ns, ready)

    def refuse_subscribe(self, source: Address, message: Subscribe, behind: Behind, ready: Ready) -> None:
        runner = self.runners.get(self.topology.producer[message.edge])
        if runner is not None:
            runner.outlet.refuse(source, message, behind.known, ready)

    def on_left(self, event: Left, now_ns: int, ready: Ready) -> None:
        for edge in event.edges:
            runner = self.runners.get(self.topology.producer[edge]) if edge in self.topology.producer else None
            if runner is not None:
                runner.on_left(edge, event.consumer, now_ns, ready)

    def on_data(self, source: Address, message: Data, now_ns: int, ready: Ready) -> None:
        for shard in self.topology.readers_of(message.edge):
            runner = self.runners.get(shard)
            if runner is not None:
                runner.on_data(message, source, now_ns, ready)
            self.stand_ins.on_data(shard, source, message, now_ns, ready)

    def refuse_data(self, source: Address, message: Data, behind: Behind, ready: Ready) -> None:
        for shard in self.topology.readers_of(message.edge):
            if shard in self.runners:
                ready.notes.append(notes.Refused(shard, message.edge, behind.said, behind.known))

    def on_skip_wanted(self, source: Address, message: SkipWanted, now_ns: int, ready: Ready) -> None:
        if message.shard in self.runners:
            self.runners[message.shard].on_skip_wanted(message, now_ns, ready)

    def on_checkpoint_wanted(self, source: Address, message: CheckpointWanted, now_ns: int, ready: Ready) -> None:
        if message.shard in self.runners:
            self.runners[message.shard].on_checkpoint_wanted(ready)

    def on_here(self, source: Address, message: Here, now_ns: int, ready: Ready) -> None:
        if Asset(message.consumer) in self.runners:
            self.runners[Asset(message.consumer)].on_here(source, message, now_ns, ready)

    # --- captures

    def on_capture(self, source: Seat, message: Capture | CapturePiece, now_ns: int, ready: Ready) -> None:
        """A capture, or a piece of one. Pieces come in any order, and perhaps before the record they belong to."""
        shard = message.shard
        self.stand_ins.hear(source, now_ns)
        if isinstance(message, Capture) and not message.pieces:
            self._answer(source, message, ready)
            return
        known = self.arriving.get((shard, source))
        if known is None or known.key < key_of(message):
            known = self.arriving[shard, source] = Arriving(source, key_of(message), now_ns)
        if known.key == key_of(message):
            known.add(message)
            self._take(shard, source, ready)

    on_capture_piece = on_capture

    def refuse_capture(self, source: Seat, message: Capture, behind: Behind, ready: Ready) -> None:
        ready.notes.append(notes.StaleCapture(message.shard, self.seat, message.epoch, message.since))

    def _take(self, shard: Asset, source: Seat, ready: Ready) -> None:
        """Hold a capture that is complete, under the place that the record names, from the primary that it names."""
        arriving, place = self.arriving[shard, source], self.record.places[shard]
        head = arriving.capture()
        since = arriving.key[1]
        if since > place.since or (head is None and since == place.since) or shard in self.stand_ins.running:
            return
        del self.arriving[shard, source]
        if head is None:  # the rest of it will be sent under another place, if at all
            return
        copy = self.copies.get(shard)
        wrong = (place.primary, place.epoch) != (arriving.source, head.epoch)
        if copy is None or wrong or self.fence.behind(arriving.source, head):
            ready.notes.append(notes.StaleCapture(shard, self.seat, head.epoch, head.since))
            return
        if self.states[shard] not in (State.JOINING, State.BACKUP):
            return
        if copy.pasting is not None or (head.born, head.round) <= copy.pasted:
            self._answer(arriving.source, head, ready)
            return
        why = head.whole_objection(logged=self.topology.has_store)
        if why:
            ready.notes.append(notes.Objected("Capture", arriving.source, why, self.seat))
            return
        fits = copy.fits(head)
        if fits:
            copy.hold(Pasting(arriving.source, head, arriving.state(), self.holds, arriving.at_ns))
            self.holds += 1
            ready.idle = True
        else:
            ready.notes.append(notes.Misfit(shard, self.seat, head.epoch, head.round, head.scan == 0))
        cost_ns = copy.pasting_ns()
        held = Held(shard=shard, epoch=head.epoch, round=head.round, fits=fits, cost_ns=cost_ns)
        ready.send.append((arriving.source, held))

    def _answer(self, source: Seat, head: Capture, ready: Ready) -> None:
        """Say again how far a round is that came before, perhaps at an earlier epoch of the same primary."""
        copy = self.copies.get(head.shard)
        if copy is None:
            return
        number = (head.born, head.round)
        if copy.pasting is not None and (copy.pasting.head.born, copy.pasting.head.round) == number:
            cost_ns = copy.pasting_ns()
            held = Held(shard=head.shard, epoch=head.epoch, round=head.round, fits=True, cost_ns=cost_ns)
            ready.send.append((source, held))
        elif copy.pasted == number:
            ready.send.append((source, Pasted(shard=head.shard, epoch=head.epoch, round=head.round)))
        elif copy.condition is Condition.HOLLOW:  # that the paste failed was said, but perhaps not heard
            ready.send.append((source, Held(shard=head.shard, epoch=head.epoch, round=head.round, fits=False)))

    def paste_all(self, shard: Asset, ready: Ready) -> None:
        """What is held is pasted before a copy runs: the primary was told that it is safe here."""
        while self.copies[shard].pasting is not None:
            self.paste(shard, ready)

    def paste(self, shard: Asset, ready: Ready) -> bool:
        """One piece of what is held; true if that was the last."""
        copy = self.copies[shard]
        pasting = copy.pasting
        if pasting is None:
            return True
        head = pasting.head
        try:
            sealed = copy.paste_piece()
        except InvariantError:
            raise
        except HoldfastError as error:
            copy.give_up()
            ready.notes.append(notes.PasteFailed(shard, self.seat, str(error)))
            answer = Held(shard=shard, epoch=head.epoch, round=head.round, fits=False)
            ready.send.append((pasting.source, answer))
            return True
        if sealed is None:
            return False
        for edge, block in sealed:
            ready.notes.append(notes.Sealed(shard, edge, self.seat, block))
        self.lookups.look(copy, ready)
        self.spills.look(copy, ready)  # an image's queues are bounded as its primary's are
        ready.notes.append(notes.Pasted(shard, self.seat, head.epoch, head.round, head.scan == 0))
        cost_ns = max(0, copy.op.busy_ns - pasting.before_ns)
        ready.send.append((pasting.source, Pasted(shard=shard, epoch=head.epoch, round=head.round, cost_ns=cost_ns)))
        return True

    def on_held(self, source: Seat, message: Held | Pasted, now_ns: int, ready: Ready) -> None:
        runner = self.runners.get(message.shard)
        if runner is not None:
            runner.on_answer(source, message, now_ns, ready)

    on_pasted = on_held

    # --- tasks

    def agenda(self, now_ns: int) -> HostAgenda:
        """What could be done now for the sake of availability."""
        return HostAgenda(self, now_ns)

    # --- time and disk

    def on_done(self, done: Done, now_ns: int, ready: Ready) -> None:
        """Work of this node has ended elsewhere."""
        self.tickets.on_done(done, now_ns, ready)

    def _pump(self, shard: Asset, now_ns: int, ready: Ready) -> None:
        if shard in self.runners:
            self.runners[shard].pump(now_ns, ready)

    def on_tick(self, now_ns: int, ready: Ready) -> None:
        self.tickets.on_tick(now_ns, ready)
        self.spills.on_tick(list(self.copies.values()), now_ns, ready)
        self.lookups.on_tick(list(self.copies.values()), now_ns, ready)
        self.restores.on_tick(now_ns, ready)
        self.letters.on_tick([r.copy for r in self.runners.values() if r.is_primary], now_ns, ready)
        for runner in self.runners.values():
            runner.on_tick(now_ns, ready)
        self.stand_ins.on_tick(now_ns, ready)

    def edges(self) -> dict[Edge, EdgeState]:
        """Where every edge stands that is made here."""
        return {
            queue.edge: EdgeState(trimmed=queue.trimmed, next=queue.next, watermark=runner.copy.watermark)
            for runner in self.runners.values()
            for queue in runner.copy.outputs
            if not runner.copy.landing and runner.is_primary
        }

    def reports(self) -> list[Message]:
        """What the coordinator must know, until it has acted on it."""
        found = [message for runner in self.runners.values() if runner.has_news() for message in runner.reports()]
        return found + self.twins.reports()


def _logs(copy: Copy, protection: Protection) -> None:
    """Stages keep batches for a shard in the store where its state is kept there."""
    for inbox in copy.inboxes.values():
        inbox.logged = protection.is_stored

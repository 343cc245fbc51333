"""Images in the memory of other nodes: captures go out in rounds, one at a time, of the same moment for every target.

A target is the backup, and while one joins also the joining seat. Each has a complete image, or one that is being
brought up by a *scan*: beside the delta of a round it gets one chunk, all records of a range of pages, of the same
moment, and it takes of later deltas only what lies on pages that it has. With the last chunk the image is
complete: it equals the state at that round. So a state of any size travels in frames of one size, while rounds go on.
Output that no consumer has acknowledged travels likewise, a part of it with every round: an image is complete when it
has all of both.

Input is acknowledged when every *complete* image holds the round (`Held`), whoever of them is promoted next; the round
is over, and the next may begin, when all have pasted it (`Pasted`). An image in the middle of its scan gates nothing:
it cannot take over; it gates from the round on that completes it, so that nothing newer is acknowledged before it holds
that round. With no complete image at all there is no other copy that an acknowledgement could harm.
"""

from __future__ import annotations

import msgspec

from holdfast.core.arriving import cargo_of
from holdfast.core.copy import Copy
from holdfast.core.protect.pace import Pace
from holdfast.core.protect.tally import Tally
from holdfast.core.ready import Ready
from holdfast.core.roles import Condition
from holdfast.model import notes
from holdfast.model.config import Config
from holdfast.model.ids import Asset, Edge, Seat, name_of
from holdfast.model.messages import Capture, CapturePiece, Held, Joined, Message, Pasted, Unfit
from holdfast.model.parts import OutputPart
from holdfast.model.protection import STRETCH_MAX, Protection
from holdfast.model.record import Place

#: A joining seat that has not pasted a round for so many retries is brought up anew, so that it holds nobody up.
SCAN_RETRIES_MAX = 20
#: A capture that is not answered is sent again after twice the retry time, then after twice that, up to this often.
DOUBLINGS_MAX = 2
#: A stand-in that is late is asked for a capture that it does not answer; every so many times it gets all of it again.
ASKS_MAX = 3
#: So many periods a sweeping capture waits for output to be trimmed.
SWEEP_PERIODS_MAX = 2


class Images:
    name = "images"

    __slots__ = (
        "base", "born", "budget_ns", "config", "copy", "epoch", "gap_ns", "gates", "held", "kept_ns", "made", "number",
        "output_base", "outputs", "pace", "place", "protection", "reached", "resends", "safe_at", "scans", "sent_ns",
        "started_ns", "tally", "trimmed", "unfit", "waiting", "worked_ns",
    )  # fmt: skip

    def __init__(self, copy: Copy, place: Place, config: Config, pace: Pace, now_ns: int) -> None:
        self.copy = copy
        self.place = place
        self.protection = Protection()
        self.config = config
        self.pace = pace
        self.born = self.epoch = place.epoch
        self.number = 0
        self.started_ns = now_ns
        self.sent_ns = now_ns
        self.resends = 0
        #: Where the last round was taken: the next delta starts here.
        self.base = copy.positions()
        self.output_base = {queue.edge: queue.next for queue in copy.queues}
        #: Where output was trimmed to when it was taken.
        self.trimmed = {queue.edge: queue.trimmed for queue in copy.queues}
        #: How much the backup may have to do again before it gets the next capture, whatever the period says, and how
        #: close two of them may be (`core/objective.py`). 0: the period alone counts.
        self.budget_ns = self.gap_ns = 0
        #: What the operator had worked by then: it would be done again from here.
        self.worked_ns = copy.op.busy_ns
        #: The same at the last round that the backup holds, and what rounds have cost.
        self.kept_ns = copy.op.busy_ns
        self.tally = Tally()
        #: Positions that every complete image holds. Never goes back while there is one.
        self.safe_at = copy.positions()
        #: Targets with a complete image (at the start: the backup, which stands where this copy stands).
        self.gates: dict[Seat, None] = {seat: None for seat in place.targets if seat == place.backup}
        #: Targets that are being brought up, and the cursor of the next chunk (-1: only output is missing); and where
        #: the chunk in flight leads.
        self.scans: dict[Seat, int] = {}
        self.reached: dict[Seat, int] = {}
        #: Where the output of such a target stands once it has pasted what was sent to it.
        self.outputs: dict[Seat, dict[Edge, int]] = {}
        #: The round in flight, per target that has not pasted it; and who holds it.
        self.waiting: dict[Seat, tuple[Message, ...]] = {}
        self.held: dict[Seat, None] = {}
        #: Joining seats whose image was completed under this place.
        self.made: dict[Seat, None] = {}
        #: A backup whose image does not continue: the record must not name it any longer. While it does, nothing new is
        #: acknowledged: should this primary die now, that image runs from where it stands.
        self.unfit: dict[Seat, None] = {}

    # --- the place

    def retarget(self, place: Place) -> None:
        """Forget targets that are gone. What they had not pasted goes into the next round. (A primary that goes on at
        a new epoch keeps its images: they are of its own state.)"""
        if place.backup != self.place.backup:
            self.kept_ns = self.worked_ns  # it was brought up with the rounds of the one before
        self.place, self.epoch = place, place.epoch
        joining, targets = place.joining, place.targets
        self.made.clear()
        stays = [seat for seat in self.waiting if seat in targets and seat != joining]
        self.waiting = {seat: tuple(_under(x, place) for x in self.waiting[seat]) for seat in stays}
        for kept in (self.gates, self.held, self.unfit):
            for seat in [s for s in kept if s not in targets or s == joining]:
                del kept[seat]
        self.scans = {joining: 0} if joining else {}
        self.reached, self.outputs = {}, {}

    def start_over(self) -> None:
        """The shard starts empty: no image continues it. While the record names one, nothing new is acknowledged."""
        self.output_base = {queue.edge: queue.next for queue in self.copy.queues}
        self.worked_ns = self.kept_ns = self.copy.op.busy_ns
        for seat in self.place.targets:
            self._start_over(seat)

    # --- rounds

    def hurry(self) -> None:
        """Images are in memory: nobody waits for them in the store."""

    def due(self, now_ns: int, *, frozen: bool) -> bool:
        copy = self.copy
        if self.waiting or not self.place.targets or copy.condition in (Condition.TORN, Condition.LANDING):
            return False
        if copy.expects_batch or copy.quiet_to is not None:
            return False  # no image could go on from it
        age_ns = now_ns - self.started_ns
        time = (self._is_time(age_ns) and self._pays(age_ns)) or self._is_behind(age_ns)
        return (copy.consumed_since > 0 and time) or self._is_wanted(now_ns, frozen=frozen)

    def is_pressing(self, now_ns: int, *, frozen: bool) -> bool:
        if not self.due(now_ns, frozen=frozen):
            return False
        age_ns = now_ns - self.started_ns
        late = age_ns >= STRETCH_MAX * self.protection.period_ns or self._is_behind(age_ns)
        return late or self._is_wanted(now_ns, frozen=frozen)

    def _is_wanted(self, now_ns: int, *, frozen: bool) -> bool:
        """Does anything wait for the next round?"""
        consumed = self.copy.consumed_since
        return (
            (bool(self.scans) and self.pace.is_free(now_ns))
            or (bool(self.gates) and self.safe_at != self.base)  # the last round lost a target before it was complete
            or (frozen and consumed > 0)
            or consumed >= self.config.retained_soft_max
        )

    def _is_time(self, age_ns: int) -> bool:
        """Where a stand-in is kept, captures sweep (hybrid-ha §III-B): one is taken right after output was trimmed, so
        that it has to carry least. Where nothing is trimmed, that is not waited for."""
        periods = age_ns // self.protection.period_ns
        if self.place.stand_in is None or not periods or periods >= SWEEP_PERIODS_MAX:
            return periods > 0
        queues = self.copy.queues
        return all(q.next == q.trimmed for q in queues) or any(q.trimmed > self.trimmed[q.edge] for q in queues)

    def _is_behind(self, age_ns: int) -> bool:
        """Would its backup take longer than the objective for recoveries leaves it?"""
        return 0 < self.budget_ns <= self.replay_ns and age_ns >= self.gap_ns

    def _pays(self, age_ns: int) -> bool:
        """Would a take-over have as much to do again as a capture is taken for? Where most of the state changes all the
        time, a capture costs as much as the steps that it saves, and one capture for several periods costs far less
        than one for each: what changed twice travels once, and what has expired does not travel at all."""
        worked_ns = self.copy.op.busy_ns - self.worked_ns
        return worked_ns >= self.config.replay_ns or age_ns >= STRETCH_MAX * self.protection.period_ns

    def take(self, now_ns: int, ready: Ready) -> None:
        """One capture for each target, all of this moment."""
        copy = self.copy
        self.number += 1
        self.tally.on_worked(copy.op.busy_ns - self.worked_ns, copy.consumed_since, now_ns - self.started_ns)
        self.started_ns = self.sent_ns = now_ns
        self.resends = 0
        self.held = {}
        if self.protection.method == "whole":
            copy.op.mark_all()
        estimated_ns, before_ns = copy.op.delta_ns(), copy.op.busy_ns
        delta = self._delta()
        if delta:
            self.tally.on_capture(estimated_ns, copy.op.busy_ns - before_ns)
        alone = not self.gates and not self.unfit
        for seat in self.place.targets:
            messages = self._for(seat, delta, now_ns)
            if messages:
                self.waiting[seat] = messages
                first = self.scans.get(seat) == 0
                ready.notes.append(notes.Captured(copy.id, self.epoch, self.number, first, seat))
                ready.send.extend((seat, message) for message in messages)
        self.base = copy.positions()
        self.output_base = {queue.edge: queue.next for queue in copy.queues}
        self.trimmed = {queue.edge: queue.trimmed for queue in copy.queues}
        self.worked_ns = copy.op.busy_ns
        copy.consumed_since = 0
        if alone:
            self.safe_at = self.base

    def _delta(self) -> tuple[object, ...]:
        """What changed. Where every target only begins its scan nobody could use it; it may be very large."""
        op = self.copy.op
        if all(self.scans.get(seat) == 0 for seat in self.place.targets):
            op.skip()
            return ()
        return op.delta(self.config.chunk_bytes)

    def _for(self, seat: Seat, delta: tuple[object, ...], now_ns: int) -> tuple[Message, ...]:
        """What one target gets of this round; nothing if its scan has not begun and may not yet."""
        if seat in self.unfit:
            return ()
        if seat not in self.scans:
            return self._messages(delta, {q.edge: q.part(self.output_base[q.edge]) for q in self.copy.queues})
        scan = reached = self.scans[seat]
        state = () if scan == 0 else delta
        if scan >= 0 and self.pace.is_free(now_ns):
            chunk, reached = self.copy.op.chunk(scan, self.config.chunk_bytes)
            self.pace.spend(self.config.chunk_bytes, now_ns)
            state = (*state, chunk)
        elif scan == 0:
            return ()
        self.reached[seat] = reached
        outputs = self._next_outputs({} if scan == 0 else self.outputs[seat])
        self.outputs[seat] = {edge: part.next for edge, part in outputs.items()}
        done = reached < 0 and all(outputs[q.edge].next == q.next for q in self.copy.queues)
        if done:
            self.gates[seat] = None
        return self._messages(state, outputs, scan, rising=True, done=done)

    def _next_outputs(self, stand: dict[Edge, int]) -> dict[Edge, OutputPart]:
        """A block more of output than was made since the last round: so every round brings the image closer."""
        most = self.copy.block_rows_max
        return {
            q.edge: q.part(stand.get(q.edge, 0), most + q.next - self.output_base[q.edge]) for q in self.copy.queues
        }

    def _messages(
        self,
        state: tuple[object, ...],
        outputs: dict[Edge, OutputPart],
        scan: int = -1,
        *,
        rising: bool = False,
        done: bool = True,
    ) -> tuple[Message, ...]:
        copy = self.copy
        handed = {edge: inbox.part() for edge, inbox in copy.inboxes.items()} if scan == 0 else {}
        first, *more = cargo_of(outputs, handed, copy.block_rows_max)
        key = {"shard": copy.id, "epoch": self.epoch, "since": self.place.since, "round": self.number}
        head = Capture(
            **key,
            born=self.born,
            pieces=len(state) + len(more),
            state=state[0],
            scan=scan,
            rising=rising,
            done=done,
            start=self.base,
            to=copy.positions(),
            load=self.tally.load,
            element_ns=self.tally.element_ns,
            watermarks={i.edge: i.watermark for i in copy.inputs},
            gap=(copy.gap, copy.highest),
            outputs={edge: msgspec.structs.replace(part, blocks=()) for edge, part in outputs.items()},
            handed={edge: msgspec.structs.replace(part, sealed=(), held=()) for edge, part in handed.items()},
            cargo=first,
        )
        rest = [CapturePiece(**key, index=i, state=piece) for i, piece in enumerate(state[1:], 1)]
        rest += [CapturePiece(**key, index=i, cargo=load) for i, load in enumerate(more, len(state))]
        return (head, *rest)

    # --- answers

    def on_held(self, seat: Seat, message: Held, now_ns: int, ready: Ready) -> None:
        if message.round != self.number or seat not in self.waiting:
            return
        if message.fits:
            self._hold(seat)
            if seat == self.place.backup:
                self.tally.on_held(message.cost_ns)
        else:
            self._start_over(seat)

    def _hold(self, seat: Seat) -> None:
        self.held[seat] = None
        if seat == self.place.backup:
            self.kept_ns = self.worked_ns
        if not self.unfit and all(gate in self.held for gate in self.gates):
            self.safe_at = self.base

    def _start_over(self, seat: Seat) -> None:
        """Its image does not continue. A joining one is brought up anew; a backup may not be named any longer, nor may
        one that was reported complete, which the record may name at any moment."""
        self.waiting.pop(seat, None)
        self.gates.pop(seat, None)
        self.reached.pop(seat, None)
        if seat == self.place.joining and seat not in self.made:
            self.scans[seat] = 0
        else:
            self.made.pop(seat, None)
            self.unfit[seat] = None

    def on_pasted(self, seat: Seat, message: Pasted, now_ns: int, ready: Ready) -> None:
        if message.round != self.number or seat not in self.waiting:
            return
        self._hold(seat)
        if seat == self.place.backup:
            self.tally.on_pasted(message.cost_ns)
        del self.waiting[seat]
        if seat in self.scans:
            self.scans[seat] = self.reached.pop(seat, self.scans[seat])
            if seat in self.gates:  # that round completed it
                del self.scans[seat]
                self.made[seat] = None
        ready.idle = True  # the next round may be due

    def on_tick(self, now_ns: int, ready: Ready) -> None:
        """Send again what was not answered; a joining seat that answers nothing must not hold up the backup."""
        if not self.waiting:
            return
        retry_ns = self.config.retry_ns
        joining = self.place.joining if len(self.place.targets) > 1 else None
        slow = [seat for seat in self.waiting if seat == joining and seat not in self.made]
        if slow and slow == list(self.waiting) and now_ns - self.started_ns >= SCAN_RETRIES_MAX * retry_ns:
            ready.notes.append(notes.ScanAgain(self.copy.id, self.epoch, self.number, slow[0]))
            self._start_over(slow[0])
        elif now_ns - self.sent_ns >= 2 * retry_ns << min(self.resends, DOUBLINGS_MAX):
            self.sent_ns = now_ns
            self.resends += 1
            for seat, messages in self.waiting.items():
                again = (_poke(messages[0]),) if seat in self.held or self._finds(seat) else messages
                ready.send.extend((seat, message) for message in again)

    def _finds(self, seat: Seat) -> bool:
        """Will it find what was sent before, since it is late? (Not if that was lost.)"""
        is_late = seat == self.place.stand_in and self.pace.is_late(name_of(seat))
        return is_late and self.resends % ASKS_MAX > 0

    # --- what it comes to

    @property
    def replay_ns(self) -> int:
        """Work that the backup would have to do again: all since the capture that it has, or holds."""
        return self.copy.op.busy_ns - self.kept_ns

    @property
    def pasting_ns(self) -> int:
        """What the backup has still to paste of what it holds, as it has told."""
        backup = self.place.backup
        return self.tally.paste.estimated_ns if backup in self.waiting and backup in self.held else 0

    def safe(self) -> dict[Edge, int] | None:
        return self.safe_at if self.gates or self.unfit else None

    def is_settled(self) -> bool:
        quiet = not self.waiting and not self.scans and not self.unfit
        if not self.place.targets:
            return quiet
        return quiet and self.place.backup in self.gates and self.safe_at == self.copy.positions()

    def has_news(self) -> bool:
        return bool(self.unfit)

    def reports(self, shard: Asset) -> list[Message]:
        place = self.place
        if place.joining in self.made and place.joining:
            return [Joined(asset=shard, since=place.since, seat=place.joining)]
        return [Unfit(asset=shard, since=place.since, seat=seat) for seat in self.unfit]


def _under(message: Message, place: Place) -> Message:
    return msgspec.structs.replace(message, epoch=place.epoch, since=place.since)


def _poke(head: Message) -> Message:
    """The same round without its state: whoever holds it says again how far it is."""
    return msgspec.structs.replace(head, pieces=0, state=None, outputs={}, handed={}, cargo=())

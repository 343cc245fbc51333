"""A stage's driver: hands micro-batches over to the shards, each exactly once, however often Spark runs them.

    OPENING     take over the ledger (older drivers are refused from now on) and learn the last commit
    FINISHING   seal what the ledger says is committed, on every holder
    READY       wait for Spark's next batch
    DELIVERING  one try of the batch to every holder, until all say that they hold it, with the very rows of this
                driver; and to the store, if a shard keeps its state there
    COMMITTING  ONE commit record, written to every disk of the ledger at once: on all of them, the batch counts
    SEALING     of a stage's final batch only: every holder gives it its positions
    OVER        a newer driver exists, or the ledger belongs to another query: nothing more may be done

A batch that the ledger already has is done at once, whatever rows or watermark the re-run brings. A driver never
decides who holds what: it follows the placement record, and delivers again to holders that are new. A holder says which
rows it got (`Digest`); if they are not those that were sent, the next try goes to every holder, so that none can seal
what another does not have. The commit names the try and the digests, and a holder seals nothing else.

A batch counts, and `foreachBatch` returns, when every disk that the record names for the ledger has said, under one and
the same version of the ledger's place, that it has the commit (`core/ledger.py` says why that is enough). Seals go out
then, and again until every holder has answered; meanwhile Spark goes on. The next delivery brings the commit before it,
and a holder seals that before it holds more: so no holder is ever more than one seal behind, and a holder that has
answered a delivery has sealed everything before. Nothing comes after a final batch, so that one waits for its seals.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from holdfast.core.fence import Fence
from holdfast.core.gate import Gate, hand_to
from holdfast.core.intake import check_positions
from holdfast.core.ready import BatchDone, Done, LogBatch, Opened, Ready, Received, StageFailed, Tick
from holdfast.core.tickets import Tickets
from holdfast.errors import check
from holdfast.model import notes
from holdfast.model.block import WATERMARK_MAX, WATERMARK_MIN, Digest, Rows, batch_length, digest_of
from holdfast.model.config import Config
from holdfast.model.ids import Address, Asset, Edge, Seat, disk_seat, driver_of, ledger_of, name_of, stage_edge
from holdfast.model.messages import (
    Deliver,
    Delivered,
    LedgerOpen,
    LedgerState,
    LedgerWrite,
    LedgerWritten,
    Pull,
    Push,
    Refused,
    Seal,
    Sealed,
)
from holdfast.model.parts import CommitRecord
from holdfast.model.record import Place, Record
from holdfast.model.topology import StageSpec, stage_alone


class Phase(Enum):
    OPENING = "opening"
    FINISHING = "finishing"
    READY = "ready"
    DELIVERING = "delivering"
    COMMITTING = "committing"
    SEALING = "sealing"
    OVER = "over"


class Cause(Enum):
    LEDGER_READ = "the ledger answered"
    ALL_SEALED = "every holder has sealed"
    BATCH = "Spark runs a batch"
    ALL_DELIVERED = "every holder has the same try"
    COMMITTED = "every disk of the ledger has the commit"
    LAST_COMMITTED = "every disk of the ledger has the commit, and it is the final one"
    FENCED = "refused: a newer driver, or a foreign query"


TRANSITIONS: dict[tuple[Phase, Cause], Phase] = {
    (Phase.OPENING, Cause.LEDGER_READ): Phase.FINISHING,
    (Phase.FINISHING, Cause.ALL_SEALED): Phase.READY,
    (Phase.READY, Cause.BATCH): Phase.DELIVERING,
    (Phase.DELIVERING, Cause.ALL_DELIVERED): Phase.COMMITTING,
    (Phase.COMMITTING, Cause.COMMITTED): Phase.READY,
    (Phase.COMMITTING, Cause.LAST_COMMITTED): Phase.SEALING,
    (Phase.SEALING, Cause.ALL_SEALED): Phase.READY,
    **{(phase, Cause.FENCED): Phase.OVER for phase in Phase},
}


class RunBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Spark calls `foreachBatch`. Late rows and bad ones are already out."""

    batch: int
    #: Rows of each edge; an edge that is not here gets none.
    parts: dict[Edge, Rows]
    offsets: tuple[int, int]
    event_time_max: int = WATERMARK_MIN
    late: int = 0
    bad: int = 0
    final: bool = False
    #: A watermark that the caller knows (a stage between shards takes that of its input); else it follows event time.
    watermark: int | None = None
    #: For how long the source has had nothing, where the caller knows better than from the last rows: it may have been
    #: the driver that was away.
    idle_ns: int | None = None
    #: Spark's own record of the batch's offsets.
    plan: str = ""
    #: Of a stage between shards that has read past a gap: rows before this event time may be missing.
    gap: int = 0
    #: Of a real-time stage: where every partition of its source stands after this batch.
    positions: dict[str, int] = {}


class StageDriver:
    def __init__(self, spec: StageSpec, epoch: int, config: Config, record: Record, now_ns: int) -> None:
        self.spec = spec
        self.epoch = epoch
        self.address: Address = driver_of(spec.id, epoch)
        self.fence = Fence({}, own=epoch)
        self.config = config
        self.record = record
        self.gate = Gate(
            self.address, stage_alone(spec), self.fence, lambda m: hasattr(self, m.handler), record=lambda: self.record
        )
        self.phase = Phase.OPENING
        #: The last commit: the truth about what counts, and the watermark rows are late against.
        self.last: CommitRecord | None = None
        self.batch: RunBatch | None = None
        self.commit: CommitRecord | None = None
        #: Which try this is. Counts up, also from batch to batch.
        self.attempt = 0
        #: Which try is in the store, where one of the shards keeps its state there; and which is on its way.
        self.tickets = Tickets(config.store_limit_ns)
        self.logged = self.logging = 0
        self.log_refused = False
        #: Shards of each holder, with the version of each place; and whether every shard has a primary at all.
        self.grouped: dict[Seat, dict[Asset, int]] = {}
        self.complete = True
        #: What each holder says that it holds of this try: versions of the places.
        self.delivered: dict[Seat, dict[Asset, int]] = {}
        #: A holder got other rows than were sent: this try is given up at the next tick.
        self.spoilt = False
        #: Which disks of the ledger have the commit: the version of its place under which each said so.
        self.written: dict[Seat, int] = {}
        #: Shards of each holder that have the last commit, with the version of each place; and for which batch all had.
        self.sealed: dict[Seat, dict[Asset, int]] = {}
        self.all_sealed = -1
        self.sent_ns = now_ns - config.retry_ns
        self.rows_ns = now_ns
        self.asked = 0
        self._group()

    @property
    def watermark(self) -> int:
        """Rows before this are late in the next batch."""
        return self.last.watermark if self.last else WATERMARK_MIN

    @property
    def next_batch(self) -> int:
        return self.last.batch + 1 if self.last else 0

    def step(self, event: Received | Tick | RunBatch | Done, now_ns: int) -> Ready:
        ready = Ready()
        if self.phase is Phase.OVER:
            return ready
        if isinstance(event, Received):
            hand_to(self, self.gate, event.source, event.message, now_ns, ready)
        elif isinstance(event, RunBatch):
            self._on_batch(event, now_ns, ready)
        elif isinstance(event, Done):
            self.tickets.on_done(event, now_ns, ready)
        else:
            self._on_tick(now_ns, ready)
            ready.wake_ns = now_ns + self.config.retry_ns
        return ready

    def _turn(self, cause: Cause) -> None:
        self.phase = TRANSITIONS[(self.phase, cause)]

    # --- placement

    def _group(self) -> None:
        """Which holder has which shards, under which version of their places."""
        grouped: dict[Seat, dict[Asset, int]] = {}
        self.complete = True
        for shard in self.spec.shards:
            place = self.record.places[shard]
            if place.primary is None:
                self.complete = False  # a lost shard: its rows must not be dropped, so the stage stands still
            for seat in place.holders:
                grouped.setdefault(seat, {})[shard] = place.since
        self.grouped = grouped

    def _on_record(self, record: Record, now_ns: int, ready: Ready) -> None:
        if record.version <= self.record.version:
            return
        self.record = record
        self._group()
        self._advance(now_ns, ready, again=True)

    def _pull(self, ready: Ready) -> None:
        names = sorted(self.record.members)
        self.asked += 1
        ready.send.append((names[self.asked % len(names)], Pull(version=self.record.version)))

    @property
    def ledger(self) -> Place:
        return self.record.places[ledger_of(self.spec.id)]

    def unwritten(self) -> list[Seat]:
        """Disks of the ledger that have not said, under the present place, that they have the commit."""
        return [seat for seat in self.ledger.holders if self.written.get(seat) != self.ledger.since]

    def unsealed(self) -> list[Seat]:
        """Holders that have not said, under the present places, that they have sealed the last commit."""
        return [s for s, shards in self.grouped.items() if self.last and self.sealed.get(s) != shards]

    # --- events

    def _on_batch(self, event: RunBatch, now_ns: int, ready: Ready) -> None:
        check(
            self.phase is Phase.READY, "Spark runs a batch before the last one is done", f"{self.spec.id} {event.batch}"
        )
        if event.batch < self.next_batch:
            ready.apply.append(BatchDone(stage=self.spec.id, batch=event.batch))  # the ledger has it: it counts once
            return
        check(event.batch == self.next_batch, "Spark skipped a batch", f"{self.spec.id} {event.batch}")
        if event.event_time_max > WATERMARK_MIN:
            self.rows_ns = now_ns
        self.batch = event
        check_positions(self.spec.id, self.last.positions if self.last else {}, event.positions)
        digests = self._digests(event)
        self.commit = CommitRecord(
            query=self.spec.query,
            batch=event.batch,
            epoch=self.epoch,
            attempt=0,
            watermark=self._next_watermark(event, now_ns),
            offsets=event.offsets,
            late=event.late,
            bad=event.bad,
            late_total=(self.last.late_total if self.last else 0) + event.late,
            bad_total=(self.last.bad_total if self.last else 0) + event.bad,
            plan=event.plan,
            digests=digests,
            ends=self._ends(digests),
            highest=max(self.last.highest if self.last else WATERMARK_MIN, event.event_time_max),
            gap=max(self.last.gap if self.last else 0, event.gap),
            positions=event.positions,
        )
        self._try()
        self._turn(Cause.BATCH)
        self._advance(now_ns, ready, again=True)

    def _digests(self, event: RunBatch) -> dict[Edge, Digest]:
        edges = [stage_edge(self.spec.id, shard) for shard in self.spec.shards]
        check(all(e in edges for e in event.parts), "rows for an edge that is not of this stage", f"{self.spec.id}")
        return {edge: digest_of(event.parts.get(edge, ())) for edge in edges}

    def _ends(self, digests: dict[Edge, Digest]) -> dict[Edge, int]:
        """Where each edge stands after a batch with these rows."""
        before = self.last.ends if self.last else dict.fromkeys(digests, 0)
        return {edge: before[edge] + batch_length(digest.rows) for edge, digest in digests.items()}

    def _try(self) -> None:
        """Begin a try of the batch: whatever holders say of earlier ones is nothing."""
        self.attempt += 1
        self.delivered, self.written, self.spoilt = {}, {}, False
        if self.commit is not None:
            self.commit = msgspec.structs.replace(self.commit, attempt=self.attempt)

    def _next_watermark(self, event: RunBatch, now_ns: int) -> int:
        """Highest event time less the delay; an idle source's moves on with the clock. Never goes back."""
        if event.final:
            return WATERMARK_MAX
        if event.watermark is not None:
            return max(self.watermark, event.watermark)
        if event.event_time_max > WATERMARK_MIN:
            return max(self.watermark, event.event_time_max - self.spec.delay_ns)
        idle_ns = now_ns - self.rows_ns if event.idle_ns is None else event.idle_ns
        if idle_ns >= self.spec.idle_ns and self.watermark > WATERMARK_MIN:
            self.rows_ns = now_ns
            return self.watermark + idle_ns // self.spec.tick_ns
        return self.watermark

    # --- messages

    def on_push(self, source: Address, message: Push, now_ns: int, ready: Ready) -> None:
        self._on_record(message.record, now_ns, ready)

    def on_delivered(self, source: Address, message: Delivered, now_ns: int, ready: Ready) -> None:
        commit = self.commit
        if self.phase is not Phase.DELIVERING or commit is None or message.attempt != self.attempt:
            return
        if self.last is not None:
            self.sealed[message.seat] = message.shards  # it sealed the last one first
        edges = [stage_edge(self.spec.id, shard) for shard in message.shards]
        if message.digests != {edge: commit.digests[edge] for edge in edges}:
            self.spoilt = True
            ready.notes.append(notes.Differs(self.spec.id, self.epoch, commit.batch, self.attempt, message.seat))
            return
        self.delivered[message.seat] = message.shards
        self._advance(now_ns, ready)

    def on_sealed(self, source: Address, message: Sealed, now_ns: int, ready: Ready) -> None:
        if self.last and message.batch == self.last.batch:
            self.sealed[message.seat] = message.shards
            self._advance(now_ns, ready)

    def on_refused(self, source: Address, message: Refused, now_ns: int, ready: Ready) -> None:
        if message.reason.is_final:
            self._turn(Cause.FENCED)
            ready.notes.append(notes.StageOver(self.spec.id, self.epoch, message.reason))
            ready.apply.append(StageFailed(stage=self.spec.id, reason=message.reason, detail=message.detail))
            return
        if message.version > self.record.version:
            ready.send.append((source, Pull(version=self.record.version)))

    def on_ledger_state(self, source: Address, message: LedgerState, now_ns: int, ready: Ready) -> None:
        if self.phase is Phase.OPENING:
            self.last = message.commit
            self.sealed = {}
            self._turn(Cause.LEDGER_READ)
            ready.notes.append(notes.StageOpen(self.spec.id, self.epoch, self.next_batch))
            self._advance(now_ns, ready, again=True)

    def on_ledger_written(self, source: Address, message: LedgerWritten, now_ns: int, ready: Ready) -> None:
        if self.phase is Phase.COMMITTING and message.commit == self.commit:
            self.written[disk_seat(name_of(source))] = message.since
            if self.ledger.primary is not None and not self.unwritten():
                self._on_committed(message.commit, now_ns, ready)

    def _on_committed(self, commit: CommitRecord, now_ns: int, ready: Ready) -> None:
        """The batch counts, whatever becomes of this driver."""
        final = self.batch is not None and self.batch.final
        self.last = commit
        self.sealed = {}
        ready.notes.append(notes.Committed(self.spec.id, self.epoch, commit))
        self._turn(Cause.LAST_COMMITTED if final else Cause.COMMITTED)
        if not final:
            self._done(ready)
        self._advance(now_ns, ready, again=True)

    def _done(self, ready: Ready) -> None:
        self.batch = None
        ready.notes.append(notes.BatchDone(self.spec.id, self.epoch, self.next_batch - 1))
        ready.apply.append(BatchDone(stage=self.spec.id, batch=self.next_batch - 1))

    # --- the log

    @property
    def logs(self) -> bool:
        """Does a shard keep its state in the store? Then its input must be there before it counts."""
        return any(self.record.protection_of(shard).is_stored for shard in self.spec.shards)

    def _log(self, ready: Ready) -> None:
        """Keep this try in the store, unless it is there or on its way."""
        batch, commit = self.batch, self.commit
        if batch is None or commit is None or self.attempt in (self.logged, self.logging):
            return
        self.logging = self.attempt
        ticket = self.tickets.issue(_Logging(self, batch.batch, self.attempt))
        ready.apply.append(
            LogBatch(
                ticket=ticket,
                stage=self.spec.id,
                batch=batch.batch,
                epoch=self.epoch,
                attempt=self.attempt,
                parts={stage_edge(self.spec.id, s): () for s in self.spec.shards} | batch.parts,
                commit=commit,
                last=self.last,
            )
        )

    def on_logged(self, batch: int, attempt: int, done: Done, now_ns: int, ready: Ready) -> None:
        if attempt == self.logging:
            self.logging = 0
        if done.ok:
            self.logged, self.log_refused = max(self.logged, attempt), False
            ready.notes.append(notes.Logged(self.spec.id, self.epoch, batch, attempt))
            self._advance(now_ns, ready)
        elif not self.log_refused:
            self.log_refused = True
            ready.notes.append(notes.LogRefused(self.spec.id, self.epoch, batch, done.why))

    def _on_tick(self, now_ns: int, ready: Ready) -> None:
        self.tickets.on_tick(now_ns, ready)
        if now_ns - self.sent_ns >= self.config.retry_ns:
            self._pull(ready)
            if self.spoilt and self.phase is Phase.DELIVERING:
                self._try()
            self._advance(now_ns, ready, again=True)

    # --- the steps

    def _advance(self, now_ns: int, ready: Ready, again: bool = False) -> None:
        """Go as far as the answers allow. `again`: send what is still open (a new step always does)."""
        if not self.complete:
            return
        if again:
            self.sent_ns = now_ns
        if self.phase is Phase.OPENING and again and self.ledger.primary:
            opening = LedgerOpen(stage=self.spec.id, epoch=self.epoch, query=self.spec.query)
            ready.send.append((name_of(self.ledger.primary), opening))
        if self.phase is Phase.DELIVERING and self.commit:
            logs = self.logs
            if logs and again:
                self._log(ready)
            open_seats = [s for s, shards in self.grouped.items() if self.delivered.get(s) != shards]
            if not open_seats and (not logs or self.logged == self.attempt):
                self._turn(Cause.ALL_DELIVERED)
                ready.notes.append(notes.AllDelivered(self.spec.id, self.epoch, self.commit.batch, self.attempt))
                again = True
            elif again and open_seats:
                self._deliver(open_seats, ready)
        if self.phase is Phase.COMMITTING and again and self.commit:
            self._write(self.commit, ready)
        self._advance_seals(ready, again)

    def _advance_seals(self, ready: Ready, again: bool) -> None:
        """The last commit belongs on every holder, also on one that comes later. (A delivery brings it along.)"""
        if self.phase is Phase.OPENING:
            return
        open_seats = self.unsealed()
        if not open_seats:
            self._on_all_sealed(ready)
        elif again and self.last and self.phase is not Phase.DELIVERING:
            for seat in open_seats:
                message = Seal(stage=self.spec.id, epoch=self.epoch, commit=self.last, shards=self.grouped[seat])
                ready.send.append((seat, message))

    def _on_all_sealed(self, ready: Ready) -> None:
        if self.last and self.all_sealed < self.last.batch:
            self.all_sealed = self.last.batch
            ready.notes.append(notes.AllSealed(self.spec.id, self.epoch, self.last.batch))
        if self.phase is Phase.FINISHING:
            self._turn(Cause.ALL_SEALED)
            ready.apply.append(Opened(stage=self.spec.id, commit=self.last))
        elif self.phase is Phase.SEALING:
            self._turn(Cause.ALL_SEALED)
            self._done(ready)

    def _write(self, commit: CommitRecord, ready: Ready) -> None:
        """To every disk of the ledger, at once; each looks for itself whether it may."""
        since = self.ledger.since
        for seat in self.unwritten():
            message = LedgerWrite(stage=self.spec.id, epoch=self.epoch, since=since, commit=commit)
            ready.send.append((name_of(seat), message))

    def _deliver(self, seats: list[Seat], ready: Ready) -> None:
        batch = self.batch
        if batch is None:
            return
        for seat in seats:
            shards = self.grouped[seat]
            edges = [stage_edge(self.spec.id, shard) for shard in shards]
            message = Deliver(
                stage=self.spec.id,
                epoch=self.epoch,
                batch=batch.batch,
                attempt=self.attempt,
                shards=shards,
                parts={edge: batch.parts[edge] for edge in edges if edge in batch.parts},
                last=self.last,
            )
            ready.send.append((seat, message))


class _Logging:
    """Waits for the store to have one try of a batch."""

    __slots__ = ("attempt", "batch", "driver")

    def __init__(self, driver: StageDriver, batch: int, attempt: int) -> None:
        self.driver = driver
        self.batch = batch
        self.attempt = attempt

    def on_done(self, done: Done, now_ns: int, ready: Ready) -> None:
        self.driver.on_logged(self.batch, self.attempt, done, now_ns, ready)

    def on_missed(self, ticket: int, now_ns: int, ready: Ready) -> None:
        self.on_done(Done(ticket=ticket, ok=False, why="The store does not answer."), now_ns, ready)

"""Checkpoints of a node's shards, written and read beside the loop: effects go in, `Done` comes out.

The core decides when, and whose (`core/protect/paged.py`, `core/restores.py`); what makes a checkpoint count is decided
in the store, by compare-and-set of a shard's head (`checkpoint/tenure.py`). Here are four threads. One writes, one
shard at a time, so that a node's checkpoints do not compete with each other. One reads, since whoever waits for a state
or for rows must not wait behind a write. One keeps the placement record there, for when all journals are lost. One asks
for the store's vote, where it has one: a take-over waits for that.

A tenure is claimed by the first effect of an epoch. A copy that has taken over does not know what the store has: if a
checkpoint there has consumed more than the one at hand, that one counts and this one is not written.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from holdfast.checkpoint import keys
from holdfast.checkpoint import tenure as tenures
from holdfast.checkpoint.head import HeadEntry
from holdfast.checkpoint.manifest import Fit, head_of, stand_of
from holdfast.checkpoint.restore import RestoredLog, RestoredState, RestoreTimes, restore
from holdfast.checkpoint.tenure import Tenure
from holdfast.checkpoint.write import PagedJob, fit_of
from holdfast.core.node import Node
from holdfast.core.ready import (
    AskWitness,
    Done,
    LoadBatches,
    LoadCheckpoint,
    PutCheckpoint,
    PutFootprints,
    StoreEffect,
)
from holdfast.errors import HoldfastError, StateError
from holdfast.model.block import Block
from holdfast.model.ids import Asset, Edge, Name, Seat, operator_of
from holdfast.model.parts import CheckpointHead, LoggedBatch, OutputPart, SinkPlan
from holdfast.model.plan import Plan
from holdfast.model.record import Record
from holdfast.runtime.config import size_bytes
from holdfast.runtime.net.wire import pack_value, unpack_value
from holdfast.runtime.node.operators import Factory, ShardOperator, StateImage
from holdfast.runtime.stable import batches, description, kept
from holdfast.runtime.stable.door import StoreDoor
from holdfast.runtime.stable.peace import ANSWER_S, PeaceDesk, PeaceWriter, differ, load_model
from holdfast.runtime.stable.traces import EntryBook, bring_back
from holdfast.runtime.stable.witness import ask_witness
from holdfast.state.pages import Snapshot
from holdfast.store.url import can_place, is_folder

if TYPE_CHECKING:
    from holdfast.runtime.node.process import NodeProcess

T = TypeVar("T")

#: The part of a checkpoint with the rows of its output queues.
OUTPUTS = "outputs"
#: After this many checkpoints of a shard, its node looks whether the logs of its stages can be shortened.
FORGET_EVERY = 8
#: A record that the store did not take is tried again after this time.
RECORD_RETRY_S = 5.0


class EventWriter(Protocol):
    """A node's event log."""

    def write(self, event: str, text: str, **fields: Any) -> None: ...


class CheckpointStore:
    """Of one node. `want` never waits; `put` and `load` work on threads of their own until `close`."""

    def __init__(
        self,
        door: StoreDoor,
        plan: Plan,
        seat: Seat,
        factory: Factory,
        answer: Callable[[Done], None],
        events: EventWriter,
        keep: int,
        peace: PeaceWriter | None = None,
        chunk_bytes: int = 64 << 20,
    ) -> None:
        self._door = door
        self._plan = plan
        self._seat = seat
        self._factory = factory
        self._answer = answer
        self._events = events
        self._keep = keep
        #: Who says when checkpoints may be written, and where they go; and how large its chunks are.
        self._peace = peace
        self._chunk_bytes = chunk_bytes
        #: What this node answers writers with while it is the coordinator.
        self.desk: PeaceDesk | None = None
        #: Blocks of checkpoints that are not where they were wanted, and of how many.
        self.elsewhere = 0
        self.placed = 0
        #: What waits, at most one of a kind for each shard or edge: the newest that was asked for.
        self._puts: dict[Asset, PutCheckpoint | PutFootprints] = {}
        self._loads: dict[Asset | Edge, LoadCheckpoint | LoadBatches] = {}
        self._records: dict[str, Record] = {}
        self._votes: dict[str, AskWitness] = {}
        self._wanted = threading.Condition()
        self._closed = False
        self._lock = threading.Lock()
        self._tenures: dict[Asset, tuple[int, Tenure]] = {}
        self._claims = 0
        self._fits: dict[str, Fit] = {}
        self._entries = EntryBook()
        #: Checkpoints of each shard since its node looked at the logs.
        self._put_since: dict[Asset, int] = {}
        #: Of shards that were restored here.
        self._times: dict[Asset, RestoreTimes] = {}
        #: Shards of which nothing is kept: their stages' logs need not wait for them.
        self._unstored: frozenset[Asset] = frozenset()
        #: For status and metrics: how many were written, and bytes of them.
        self.written = 0
        self.bytes_written = 0
        for work in (self._work_puts, self._work_loads, self._work_records, self._work_votes):
            threading.Thread(target=work, name="checkpoints", daemon=True).start()

    def want(self, effect: StoreEffect) -> None:
        with self._wanted:
            if isinstance(effect, PutCheckpoint | PutFootprints):
                _let_go(self._puts.pop(effect.shard, None))  # nobody waits for it any more
                self._puts[effect.shard] = effect
            elif isinstance(effect, AskWitness):
                self._votes["latest"] = effect
            else:
                self._loads[effect.shard if isinstance(effect, LoadCheckpoint) else effect.edge] = effect
            self._wanted.notify_all()

    def keep(self, record: Record) -> None:
        """The record that counts now. An earlier one that still waits is not needed any more."""
        unstored = (shard for shard in self._plan.topology.shard if not record.protection_of(shard).is_stored)
        self._unstored = frozenset(unstored)
        with self._wanted:
            self._records["latest"] = record
            self._wanted.notify_all()

    def keep_plan(self, sink: Asset, plan: str) -> None:
        """On the thread of whoever asks: what a sink has planned, as JSON, is in the store when this returns."""
        given = msgspec.json.decode(plan, type=SinkPlan)
        self._door.service("record").run(kept.put_plan(self._plan.query, sink, given))

    def keep_file(self, path: str, raw: bytes) -> None:
        """The same for a file of the run's directory."""
        self._door.service("record").run(kept.put_file(self._plan.query, path, raw))

    def close(self) -> None:
        """Waits for nobody: what is half written counts for nothing, and is removed by the next tenure."""
        with self._wanted:
            self._closed = True
            self._wanted.notify_all()
        if self._peace is not None:
            self._peace.stop()
        self._door.close()

    def _next(self, waiting: dict[Any, T]) -> T | None:
        """The one that has waited longest; None: it is over."""
        with self._wanted:
            self._wanted.wait_for(lambda: self._closed or waiting)
            return None if self._closed else waiting.pop(next(iter(waiting)))

    def _work_puts(self) -> None:
        while (effect := self._next(self._puts)) is not None:
            if isinstance(effect, PutFootprints):
                self._answer(batches.ended(effect.ticket, lambda effect=effect: self._put_footprints(effect)))
            else:
                self._answer(batches.ended(effect.ticket, lambda effect=effect: self._put(effect)))
            self._tidy(effect)

    def _work_loads(self) -> None:
        while (effect := self._next(self._loads)) is not None:
            if isinstance(effect, LoadCheckpoint):
                self._answer(batches.ended(effect.ticket, lambda effect=effect: self._load(effect)))
            else:
                self._answer(batches.ended(effect.ticket, lambda effect=effect: self._load_batches(effect)))

    def _work_votes(self) -> None:
        while (effect := self._next(self._votes)) is not None:
            self._answer(batches.ended(effect.ticket, lambda effect=effect: self._ask_witness(effect)))

    def _ask_witness(self, asked: AskWitness) -> Done:
        said = self._door.service("vote").run(ask_witness(self._plan.query, asked))
        return Done(ticket=asked.ticket, ok=True, witness=said)

    def _work_records(self) -> None:
        while (record := self._next(self._records)) is not None:
            try:
                self._door.service("record").run(description.put_record(self._plan.query, record))
            except Exception as error:  # of whatever kind: nobody waits for it, but it must not be forgotten
                why = error.what if isinstance(error, HoldfastError) else repr(error)
                if not self._closed:
                    text = f"Record {record.version} is not in the store yet: {why}."
                    self._events.write("store-waits", text, version=record.version)
                with self._wanted:
                    self._records.setdefault("latest", record)
                    self._wanted.wait_for(lambda: self._closed, RECORD_RETRY_S)

    # --- tenures

    def _tenure(self, shard: Asset, epoch: int) -> Tenure:
        """The one of this epoch; claimed now, if this is the first that is heard of it."""
        with self._lock:
            known, tenure = self._tenures.get(shard, (-1, None))
        if tenure is None or known != epoch:
            tenure = self._claim(shard, epoch, restoring=False)
        return tenure

    def _claim(self, shard: Asset, epoch: int, *, restoring: bool) -> Tenure:
        with self._lock:
            self._claims += 1
            holder = f"{self._seat}.{self._claims}"
        claim = tenures.claim(shard, self._plan.query, epoch=epoch, holder=holder, restoring=restoring)
        tenure = self._door.service("read" if restoring else "write").run(claim)
        with self._lock:
            self._tenures[shard] = (epoch, tenure)
        return tenure

    # --- writing

    def _put(self, effect: PutCheckpoint) -> Done:
        image = effect.image
        assert isinstance(image, StateImage)
        stored = False
        try:
            tenure = self._tenure(effect.shard, effect.epoch)
            if sum(effect.head.to.values()) < tenure.head.consumed:
                return Done(ticket=effect.ticket, ok=True)
            job = PagedJob(
                effect.shard, image.snapshot, image.meta, self._fit(effect.shard), stand_of(effect.head, effect.epoch),
                base=image.base, parts={OUTPUTS: [pack_value(effect.head.outputs)]},
                now_ms=lambda: time.time_ns() // 1_000_000, **self._cut(image.snapshot),
            )  # fmt: skip
            stored = True  # from here on the job closes the snapshot
            entry = self._publish(effect.shard, tenure, job)
        except StateError:
            image.keep(None)
            raise
        finally:
            if not stored:
                image.snapshot.close()
        image.keep(job.kept(entry.sequence))
        self._told_put(effect.shard, entry)
        return Done(ticket=effect.ticket, ok=True)

    def _put_footprints(self, effect: PutFootprints) -> Done:
        tenure = self._tenure(effect.shard, effect.epoch)
        if sum(effect.head.to.values()) < tenure.head.consumed:
            return Done(ticket=effect.ticket, ok=True, passed_over=True)
        job = self._entries.job(effect, self._fit(effect.shard), lambda: time.time_ns() // 1_000_000)
        self._door.service().run(tenures.publish(tenure, job))
        self._entries.keep(effect, job)
        self.written += 1
        self.bytes_written += job.nbytes
        return Done(ticket=effect.ticket, ok=True)

    def _cut(self, snapshot: Snapshot) -> dict[str, Any]:
        """With Peace every file is a chunk, as large as the others."""
        if self._peace is None:
            return {}
        return {"writers": max(1, -(-snapshot.nbytes // self._chunk_bytes)), "even": True}

    def _publish(self, shard: Asset, tenure: Tenure, job: PagedJob) -> HeadEntry:
        peace = self._peace
        if peace is None or not job.writers:
            return self._door.service().run(tenures.publish(tenure, job))
        peace.open(job.writers)
        try:
            entry = self._door.service().run(tenures.publish(tenure, job))
            files = [keys.file_key(shard, f"{entry.sequence}/pages-{i}") for i in range(job.writers)]
            self._compare({key: peace.favoured(key) for key in files})
            return entry
        finally:
            peace.close()

    def _compare(self, wanted: dict[str, tuple[str, ...]]) -> None:
        """Favored nodes are a wish: was it granted?"""
        before = self.elsewhere
        try:
            for key, nodes in wanted.items():
                blocks = (self._door.nodes_of(key) or []) if nodes else []
                self.placed += len(blocks)
                self.elsewhere += differ(nodes, blocks)
        except HoldfastError as error:  # where they are is nice to know
            self._events.write("peace-elsewhere", f"Where blocks of a checkpoint are cannot be said: {error.what}.")
            return
        if self.elsewhere > before:
            text = f"{self.elsewhere - before} blocks of a checkpoint are not where Peace wanted them; so far "
            text += f"{self.elsewhere} of {self.placed}. The store had its reasons: a data node was down, full or busy."
            self._events.write("peace-elsewhere", text, elsewhere=self.elsewhere, placed=self.placed)

    def _told_put(self, shard: Asset, entry: HeadEntry) -> None:
        self.written += 1
        self.bytes_written += entry.own_bytes
        seconds = (entry.written_ms - entry.taken_ms) / 1000
        text = f"Checkpoint {entry.sequence} of {shard} is in the store: {entry.own_bytes / 1e6:,.1f} MB"
        text += f" of {entry.state_bytes / 1e6:,.1f} MB, in {seconds:.2f} s."
        self._events.write(
            "checkpoint", text, shard=shard, sequence=entry.sequence, bytes=entry.own_bytes, seconds=seconds
        )

    def _tidy(self, effect: PutCheckpoint | PutFootprints) -> None:
        """What is not needed any more goes. The core does not wait for this, and what fails is tried again later."""
        with self._lock:
            epoch, tenure = self._tenures.get(effect.shard, (-1, None))
        if tenure is None or epoch != effect.epoch or tenure.fenced:
            return
        first = effect.shard not in self._put_since
        count = self._put_since[effect.shard] = self._put_since.get(effect.shard, 0) + 1
        try:
            service = self._door.service()
            if isinstance(effect, PutCheckpoint) or count % FORGET_EVERY == 0:
                service.run(tenures.collect(tenure, self._keep))
            if first:
                service.run(tenures.sweep(tenure))
            if count % FORGET_EVERY == 0:
                self._forget(effect.shard)
        except Exception as error:  # of whatever kind: this thread has to write the next one
            if not self._closed:
                why = error.what if isinstance(error, HoldfastError) else repr(error)
                self._events.write("checkpoints-kept", f"Old checkpoints of {effect.shard} are not removed: {why}.")

    def _forget(self, shard: Asset) -> None:
        for stage in self._plan.topology.stages:
            stored = tuple(sorted(set(stage.shards) - self._unstored))
            if stored and shard == stored[0]:
                self._door.service().run(batches.forget(self._plan.query, stage.id, stored, self._keep))

    # --- reading

    def _load(self, effect: LoadCheckpoint) -> Done:
        began = time.monotonic()
        tenure = self._claim(effect.shard, effect.epoch, restoring=True)
        claimed = time.monotonic()
        operator = self._operator(effect.shard)

        def on_bad(entry: HeadEntry, error: HoldfastError) -> None:
            text = f"Checkpoint {entry.sequence} of {effect.shard} cannot be used and is set aside: {error.what}."
            self._events.write("checkpoint-bad", text, shard=effect.shard, sequence=entry.sequence)

        plan = restore(tenure, lambda _: operator.op.new_pool(), wanted=self._fit_of(operator), on_bad=on_bad)
        service = self._door.service("read")
        found = service.run(plan)
        read_s = time.monotonic() - claimed
        service.run(tenures.settle(tenure))
        if found is None:
            return Done(ticket=effect.ticket, ok=True)
        times = self._times[effect.shard] = found.times
        times.sequence, times.state_bytes = found.entry.sequence, found.entry.state_bytes
        times.claim_s, times.read_s = claimed - began, read_s
        if isinstance(found, RestoredLog):
            head, state = bring_back(found, operator, self._read_batches)
            return Done(ticket=effect.ticket, ok=True, head=head, image=state)
        return Done(ticket=effect.ticket, ok=True, head=self._head(found), image=found)

    def _head(self, found: RestoredState) -> CheckpointHead:
        what = f"{OUTPUTS} of checkpoint {found.entry.sequence} of {found.manifest.shard}"
        parts: dict[Edge, OutputPart] = unpack_value(found.parts[OUTPUTS], what, dict[Edge, OutputPart])
        whole = {
            edge: msgspec.structs.replace(part, blocks=tuple(_block(block) for block in part.blocks))
            for edge, part in parts.items()
        }
        return head_of(found.manifest.stand, whole)

    def _read_batches(self, effect: LoadBatches) -> tuple[LoggedBatch, ...]:
        stage = self._plan.topology.producer[effect.edge]
        return self._door.service("read").run(batches.read(self._plan.query, stage, effect))

    def _load_batches(self, effect: LoadBatches) -> Done:
        began = time.monotonic()
        found = self._read_batches(effect)
        times = self._times.get(self._plan.topology.readers_of(effect.edge)[0])
        if times is not None:
            times.log_s += time.monotonic() - began
            times.log_batches += len({one.held.batch for one in found})
        return Done(ticket=effect.ticket, ok=True, batches=found)

    # --- operators

    def _operator(self, shard: Asset) -> ShardOperator:
        return self._factory(self._plan.topology.shard[shard])

    def _fit(self, shard: Asset) -> Fit:
        if operator_of(shard) not in self._fits:
            self._fits[operator_of(shard)] = self._fit_of(self._operator(shard))
        return self._fits[operator_of(shard)]

    def _fit_of(self, operator: ShardOperator) -> Fit:
        return fit_of(operator.op, self._plan.query, operator.plan.output)


def open_checkpoints(process: NodeProcess, plan: Plan, node: Node, factory: Factory) -> CheckpointStore:
    """Of the store that a node's settings name. Where that is not a folder, dead letters go there as well."""
    config, events = process.config, process.events

    def waits(text: str) -> None:
        events.limited("store", 30.0, "store-waits", f"{config.name} {text}.")

    def ask(name: Name, body: dict[str, Any]) -> dict[str, Any]:
        return process.caller.call(name, "peace", body, timeout=ANSWER_S)

    def tell(text: str) -> None:
        events.limited("peace", 30.0, "peace-alone", text)

    desk = peace = None
    if config.network_model:
        model = load_model(config.network_model, sorted(config.endpoints), places=can_place(config.store))
        desk, peace = PeaceDesk(model), PeaceWriter(process.name, lambda: node.election.coordinator, ask, tell)
    door = StoreDoor.of(config.store, config.store_conf, config.home / "logs" / "store.log", waits, peace)
    chunk_bytes, keep = size_bytes(config.peace_chunk, "peace_chunk"), config.checkpoints_kept
    made = CheckpointStore(door, plan, node.seat, factory, process.post, events, keep, peace, chunk_bytes)
    made.desk = desk
    if not is_folder(config.store) and process.letters is not None:
        process.letters.also = made.keep_file
    return made


def _let_go(effect: PutCheckpoint | PutFootprints | None) -> None:
    if isinstance(effect, PutCheckpoint) and isinstance(effect.image, StateImage):
        effect.image.snapshot.close()


def _block(block: Block) -> Block:
    """Msgpack knows no tuples: no rows came back as a list."""
    return block if len(block.rows) else msgspec.structs.replace(block, rows=())

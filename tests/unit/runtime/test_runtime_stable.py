"""Checkpoints and logged batches as a node writes and reads them: effects in, ends out, on a store in memory."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from support.plans import layered_plan
from support.source import rows

from holdfast.core.ready import Done, LoadBatches, LoadCheckpoint, LogBatch, PutCheckpoint
from holdfast.errors import StoreUnreachableError
from holdfast.model import notes
from holdfast.model.block import WATERMARK_MAX, WATERMARK_MIN, digest_of, shard_block
from holdfast.model.ids import Edge, Name, asset_id, seat_of
from holdfast.model.parts import CheckpointHead, CommitRecord, OutputPart
from holdfast.model.plan import to_core
from holdfast.model.protection import Protection
from holdfast.model.record import Record, first_record
from holdfast.model.store_notes import LookedUp
from holdfast.operators import END, START
from holdfast.runtime.net.rows import ArrowRows
from holdfast.runtime.net.wire import StateChunk
from holdfast.runtime.node.operators import Factory, ShardOperator
from holdfast.runtime.node.story import Story
from holdfast.runtime.stable import batches, checkpoints, description
from holdfast.runtime.stable.checkpoints import CheckpointStore
from holdfast.runtime.stable.door import StoreDoor
from holdfast.store.memory import MemoryStore
from holdfast.store.service import IoService

PLAN = layered_plan()
SHARD, STAGE, EDGE = asset_id("u0"), asset_id("s0"), Edge("s0>u0")
NAMES = (Name("n0"), Name("n1"))
OTHERS = tuple(PLAN.topology.stage[STAGE].shards)


class StoringNode:
    """The store's side of one life of a node, and the operator of its shard."""

    def __init__(self, store: MemoryStore, seat: str, keep: int = 3, door: StoreDoor | None = None) -> None:
        self.ends: queue.SimpleQueue[Done] = queue.SimpleQueue()
        self.told: list[tuple[str, str]] = []
        self.door = door or StoreDoor(lambda: store, again_s=0.1)
        self.factory = Factory(PLAN, 4096, 1 << 24)
        self.store = CheckpointStore(self.door, PLAN, seat, self.factory, self.ends.put, self, keep)
        self.op: ShardOperator = self.factory(PLAN.topology.shard[SHARD])
        self.ticket = 0

    def write(self, event: str, text: str, **fields: Any) -> None:
        self.told.append((event, text))

    def feed(self, start: int, end: int, watermark: int) -> tuple:
        return self.op.step(EDGE, ArrowRows([rows(start, end, 1000)]), watermark)

    @property
    def service(self) -> IoService:
        return self.door.service()

    def put(self, epoch: int, to: int, outputs: dict[Edge, OutputPart] | None = None) -> Done:
        return self.end(self.effect(epoch, to, outputs))

    def effect(self, epoch: int, to: int, outputs: dict[Edge, OutputPart] | None = None) -> PutCheckpoint:
        head = CheckpointHead(
            to={EDGE: to}, watermarks={EDGE: 7}, gap=(0, WATERMARK_MIN), outputs=outputs or {}, batches={EDGE: to // 10}
        )
        return PutCheckpoint(ticket=0, shard=SHARD, epoch=epoch, head=head, image=self.op.image())

    def load(self, epoch: int) -> Done:
        done = self.end(LoadCheckpoint(ticket=0, shard=SHARD, epoch=epoch))
        if done.ok and done.head is not None:
            self.op.load(done.image)
            self.op.restore()
        return done

    def end(self, effect: Any) -> Done:
        self.store.want(effect)
        return self.ends.get(timeout=20)


@pytest.fixture
def made() -> Iterator[tuple[MemoryStore, StoringNode, StoringNode]]:
    store = MemoryStore()
    nodes = StoringNode(store, "n0#1"), StoringNode(store, "n1#1")
    yield store, *nodes
    for node in nodes:
        node.store.close()


def tables(made: tuple) -> list[pa.Table | None]:
    return [one.table() if len(one) else None for one in made]


def test_what_is_stored_goes_on_elsewhere_as_if_nothing_had_happened(made):
    _, one, other = made
    assert other.load(1) == Done(ticket=0, ok=True)  # there has never been one
    one.feed(0, 500, to_core(50_000))
    assert one.put(2, 500).ok
    after = one.feed(500, 900, WATERMARK_MAX)  # the checkpoint is of the moment before
    done = other.load(3)
    assert done.head is not None
    assert (done.head.to, done.head.watermarks, done.head.batches) == ({EDGE: 500}, {EDGE: 7}, {EDGE: 50})
    assert tables(other.feed(500, 900, WATERMARK_MAX)) == tables(after)


def test_the_next_one_has_only_what_has_changed_and_brings_everything_back(made):
    store, one, other = made
    one.feed(0, 20_000, to_core(50_000))
    assert one.put(1, 20_000).ok
    full = len(store.objects["checkpoint/u0-1/pages-0"])
    one.feed(20_000, 20_010, to_core(50_000))
    assert one.put(1, 20_010).ok
    assert sum(len(raw) for key, raw in store.objects.items() if "u0-2/pages" in key) < full
    assert other.load(2).head is not None
    assert tables(other.op.step(EDGE, (), WATERMARK_MAX)) == tables(one.op.step(EDGE, (), WATERMARK_MAX))


def test_what_was_restored_brings_up_images_of_its_own(made):
    _, one, other = made
    one.feed(0, 500, to_core(50_000))
    assert one.put(1, 500).ok
    assert other.load(2).head is not None
    other.op.skip()
    image, cursor = other.factory(PLAN.topology.shard[SHARD]), START
    while cursor != END:
        chunk, cursor = other.op.chunk(cursor, 1 << 12)
        image.paste(StateChunk(bytearray(chunk.raw)))
    assert image.op.captured == other.op.op.captured
    theirs = image.step(EDGE, ArrowRows([rows(500, 900, 1000)]), WATERMARK_MAX)
    assert tables(theirs) == tables(one.feed(500, 900, WATERMARK_MAX))


def test_rows_that_wait_for_a_reader_come_back_with_the_state(made):
    _, one, other = made
    blocks = (shard_block(3, ArrowRows([rows(0, 5, 1000)]), 11), shard_block(9, (), 12))
    outputs = {Edge("u0.0"): OutputPart(3, 10, 3, blocks, {"r0": 3})}
    assert one.put(1, 10, outputs).ok
    part = other.load(2).head.outputs[Edge("u0.0")]
    assert (part.start, part.next, part.trimmed, part.acks) == (3, 10, 3, {"r0": 3})
    assert part.blocks[0].rows.table() == blocks[0].rows.table()
    assert part.blocks[1].rows == ()


def test_a_primary_that_was_thought_dead_adds_nothing_any_more(made):
    _, one, other = made
    one.feed(0, 100, to_core(50_000))
    assert one.put(1, 100).ok
    assert other.load(2).head is not None
    one.feed(100, 200, to_core(50_000))
    done = one.put(1, 200)
    assert not done.ok
    assert "another holder" in done.why or "newer primary" in done.why
    assert StoringNode.load(other, 2).head.to == {EDGE: 100}


def test_one_that_has_consumed_less_than_the_store_has_is_not_written_over_it(made):
    """A copy was promoted whose image is older than the last checkpoint of the primary before it."""
    _, one, other = made
    one.feed(0, 200, to_core(50_000))
    assert one.put(1, 200).ok
    other.feed(0, 100, to_core(50_000))
    assert other.put(2, 100).ok
    assert one.load(3).head.to == {EDGE: 200}


def test_a_damaged_one_is_set_aside_and_the_one_before_it_is_used(made):
    store, one, other = made
    for count in (100, 200):
        one.feed(count - 100, count, to_core(50_000))
        assert one.put(1, count).ok
    key = next(key for key in store.objects if "u0-2/pages" in key and store.objects[key])
    store.objects[key] = store.objects[key][:-1] + bytes([store.objects[key][-1] ^ 1])
    assert other.load(2).head.to == {EDGE: 100}
    assert [event for event, _ in other.told] == ["checkpoint-bad"]
    assert {event for event, _ in one.told} == {"checkpoint"}


def test_a_full_store_is_an_answer_and_what_follows_is_taken(made):
    store, one, _ = made
    one.feed(0, 100, to_core(50_000))
    store.bytes_max = 0
    done = one.put(1, 100)
    assert not done.ok
    assert done.why
    store.bytes_max = 1 << 40
    assert one.put(1, 100).ok


def test_of_checkpoints_that_wait_only_the_newest_of_a_shard_is_written_and_the_others_let_go():
    """A store that takes nothing for long must not fill the memory with snapshots."""
    opened, store = threading.Event(), MemoryStore()

    def slowly() -> MemoryStore:
        assert opened.wait(20)
        return store

    one = StoringNode(store, "n0#1", door=StoreDoor(slowly, again_s=0.1))
    effects = [one.effect(1, to) for to in (10, 20, 30)]
    for effect in effects:
        one.store.want(effect)
    opened.set()
    written = [one.ends.get(timeout=20)]  # the first may have been taken before the others came
    with contextlib.suppress(queue.Empty):
        written.append(one.ends.get(timeout=1))
    assert all(end.ok for end in written)
    one.op.op.pool.reclaim()
    assert one.op.op.pool.stats().snapshots_open == 0
    assert one.load(2).head.to == {EDGE: 30}
    one.store.close()


def test_a_store_that_is_away_is_opened_when_it_is_there_again():
    store, away = MemoryStore(), [True]

    def open_() -> MemoryStore:
        if away[0]:
            raise StoreUnreachableError("it is away")
        return store

    one = StoringNode(store, "n0#1", door=StoreDoor(open_, again_s=0.1))
    done = one.put(1, 10)
    assert (done.ok, done.why) == (False, "it is away")
    away[0] = False
    assert one.put(1, 10).ok
    one.store.close()


# --- batches


def logged(batch: int, attempt: int = 1) -> LogBatch:
    parts = {
        Edge(f"s0>{shard}"): ArrowRows([rows(batch, batch + 5, 1000)]) if shard == SHARD else () for shard in OTHERS
    }
    commit = CommitRecord(
        query=PLAN.query, batch=batch, epoch=1, attempt=attempt, watermark=batch, offsets=(batch, batch + 1)
    )
    return LogBatch(ticket=1, stage=STAGE, batch=batch, epoch=1, attempt=attempt, parts=parts, commit=commit, last=None)


def read(node: StoringNode, first: int, last: int) -> Done:
    return node.end(LoadBatches(ticket=0, edge=EDGE, first=first, last=last))


def test_how_long_each_phase_of_a_recovery_took_is_known_and_told(made):
    _, one, other = made
    one.feed(0, 500, to_core(50_000))
    assert one.put(2, 500).ok
    for batch in (7, 8, 9):
        one.service.run(batches.write(PLAN.query, logged(batch)))
    story = Story(other, lambda name: None)  # pyright: ignore[reportArgumentType]
    story.operator_of = lambda shard: other.op
    story.tell([notes.Restored(SHARD, seat_of(NAMES[1], 1), 3, ())])
    assert other.told[-1] == ("restored", "n1#1 goes on with u0 from the beginning: the store has no checkpoint of it.")
    assert other.load(3).head is not None
    times = other.op.times
    assert times is not None
    assert (times.sequence, times.state_bytes > 0, times.log_batches) == (1, True, 0)
    assert min(times.claim_s, times.read_s, times.maps_s) > 0
    story.tell([notes.Restored(SHARD, seat_of(NAMES[1], 1), 3, ())])
    assert "from checkpoint 1: " in other.told[-1][1]
    read(other, 7, 9)
    other.feed(500, 600, to_core(50_000))
    story.tell([LookedUp(SHARD, EDGE)])
    assert other.told[-1][0] == "replayed"
    assert "has the batches after its checkpoint: 3, read from the log in " in other.told[-1][1]
    assert times.step_s > 0


def test_the_log_does_not_wait_for_shards_of_which_nothing_is_kept(made):
    store, one, _ = made
    first = first_record(PLAN.topology, NAMES, own={"u0": Protection(checkpoint="paged")})
    one.store.keep(first)
    stored = [shard for shard in OTHERS if first.protection_of(shard).is_stored]
    assert stored == [SHARD], "the others keep nothing"
    for batch in range(40):
        one.service.run(batches.write(PLAN.query, logged(batch)))
    for turn in range(checkpoints.FORGET_EVERY):
        one.feed(turn, turn + 1, to_core(50_000))
        assert one.put(1, 300 + turn).ok
    until(lambda: len(store.list("log/")) < 40)


def test_every_try_of_a_batch_is_found_with_its_digest(made):
    _, one, _ = made
    for effect in (logged(998), logged(999), logged(1000), logged(1000, 2), logged(1000, 2), logged(1002)):
        one.service.run(batches.write(PLAN.query, effect))
    found = read(one, 999, 1001).batches
    assert [(b.held.batch, b.held.attempt) for b in found] == [(999, 1), (1000, 1), (1000, 2)]
    assert found[0].held.digest == digest_of(logged(999).parts[EDGE])
    assert found[0].held.rows.table() == logged(999).parts[EDGE].table()


def test_an_answer_has_a_limit_and_holds_whole_batches(made, monkeypatch):
    _, one, _ = made
    for batch in range(4):
        for attempt in (1, 2):
            one.service.run(batches.write(PLAN.query, logged(batch, attempt)))
    monkeypatch.setattr(batches, "LOAD_BYTES", 1)
    assert [b.held.batch for b in read(one, 1, 3).batches] == [1, 1, 2, 2]  # the commit of 1 is in 2


def test_where_the_ledger_is_lost_the_latest_try_of_the_last_batch_is_the_last_commit(made):
    _, one, _ = made
    assert one.service.run(batches.last_commit(PLAN.query, STAGE)) is None
    for effect in (logged(999), logged(1000, 10), logged(1000, 9)):
        one.service.run(batches.write(PLAN.query, effect))
    assert one.service.run(batches.last_commit(PLAN.query, STAGE)) == logged(1000, 10).commit


# --- the run


def test_the_latest_record_is_kept_and_a_store_that_is_away_gets_it_later(made, monkeypatch):
    store, one, other = made
    monkeypatch.setattr(checkpoints, "RECORD_RETRY_S", 0.05)
    assert one.service.run(description.last_record(PLAN.query)) is None
    for version in range(1, 6):
        for node in (one, other):
            node.store.keep(record(version))
        until(lambda version=version: one.service.run(description.last_record(PLAN.query)) == record(version))
    assert len([key for key in store.objects if key.startswith(description.RECORDS)]) <= 3
    monkeypatch.setattr(store, "put", away)
    one.store.keep(record(6))
    until(lambda: "store-waits" in [event for event, _ in one.told])
    monkeypatch.undo()
    until(lambda: one.service.run(description.last_record(PLAN.query)) == record(6))


def record(version: int) -> Record:
    return msgspec.structs.replace(first_record(PLAN.topology, NAMES), version=version, term=version // 3)


def until(condition: Callable[[], Any]) -> None:
    limit = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.01)


def away(*_: Any) -> None:
    raise StoreUnreachableError("the store is away")


def test_a_damaged_batch_is_named(made):
    store, one, _ = made
    one.service.run(batches.write(PLAN.query, logged(7)))
    key = batches.key_of(PLAN.query, STAGE, 7, 1, 1)
    store.objects[key] = store.objects[key][:-1]
    done = read(one, 7, 7)
    assert not done.ok
    assert key in done.why


def test_the_log_is_shortened_to_what_some_kept_checkpoint_needs(made):
    store, one, _ = made
    for batch in range(30):
        one.service.run(batches.write(PLAN.query, logged(batch)))
    assert one.service.run(batches.forget(PLAN.query, STAGE, OTHERS, 3)) == -1  # nobody has a checkpoint yet
    assert one.service.run(batches.forget(PLAN.query, STAGE, (SHARD,), 3)) == -1
    for to in (100, 200):
        assert one.put(1, to).ok
    assert one.service.run(batches.forget(PLAN.query, STAGE, OTHERS, 3)) == -1  # the others have none
    assert one.service.run(batches.forget(PLAN.query, STAGE, (SHARD,), 3)) == 10
    assert sorted(int(key.rpartition("/")[2].split("-")[0]) for key in store.objects if key.startswith("log/")) == list(
        range(10, 30)
    )

"""The stage's driver and the ledger: a batch counts once, whoever runs it how often."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.core.ready import TICK, BatchDone, Opened, Ready, Received, StageFailed
from holdfast.core.stage import TRANSITIONS, Cause, Phase, RunBatch, StageDriver
from holdfast.errors import InvariantError
from holdfast.model import messages as m
from holdfast.model import notes, parts
from holdfast.model.block import WATERMARK_MAX, WATERMARK_MIN, Digest, digest_of
from holdfast.model.config import MS, Config
from holdfast.model.reasons import HandOverReason
from holdfast.model.record import Place, Record, first_record
from holdfast.model.topology import layered

TOPOLOGY = layered(stages=1, shards=1, delay_ns=10, idle_ns=1_000 * MS)
RECORD = first_record(TOPOLOGY, ("n0", "n1", "n2"))
STAGE = TOPOLOGY.stages[0]
BATCH = RunBatch(batch=0, parts={"s0>u0": ((1, 50, 1),)}, offsets=(0, 1), event_time_max=50)


def driver(epoch: int = 1, record: Record = RECORD) -> StageDriver:
    return StageDriver(STAGE, epoch, Config(), record, 0)


def opened(commit: parts.CommitRecord | None = None) -> StageDriver:
    made = driver()
    hear(made, "n1", m.LedgerState(stage="s0", epoch=1, commit=commit))
    if commit:
        for seat, shards in made.grouped.items():
            hear(made, seat, m.Sealed(stage="s0", epoch=1, batch=commit.batch, seat=seat, shards=shards))
    assert made.phase is Phase.READY
    return made


def hear(made: StageDriver, source: str, message: m.Message, now_ns: int = 0) -> Ready:
    return made.step(Received(source, message), now_ns)


def delivered(made: StageDriver, seat: str, **changed) -> Ready:
    """A holder says that it holds the present try, as the driver sent it."""
    assert made.commit
    shards = made.grouped[seat]
    fields = {"batch": made.commit.batch, "attempt": made.attempt, "seat": seat, "shards": shards}
    digests = {f"s0>{shard}": made.commit.digests[f"s0>{shard}"] for shard in shards}
    return hear(made, seat, m.Delivered(stage="s0", epoch=1, **{**fields, "digests": digests, **changed}))


def deliver(made: StageDriver) -> Ready:
    ready = Ready()
    for seat in made.grouped:
        ready = delivered(made, seat)
    return ready


def sent(ready: Ready, kind: type) -> list:
    return [message for _, message in ready.send if type(message) is kind]


def written(made: StageDriver, name: str, **changed) -> Ready:
    """A disk of the ledger says that it has the present commit."""
    assert made.commit
    fields = {"epoch": 1, "since": made.ledger.since, "commit": made.commit, **changed}
    return hear(made, f"{name}#1", m.LedgerWritten(stage="s0", **fields))


def sealed(made: StageDriver, seat: str, batch: int = 0) -> Ready:
    return hear(made, seat, m.Sealed(stage="s0", epoch=1, batch=batch, seat=seat, shards=made.grouped[seat]))


def committed(made: StageDriver, batch: RunBatch = BATCH) -> Ready:
    made.step(batch, 0)
    deliver(made)
    written(made, "n1")
    return written(made, "n2")


def test_a_batch_goes_through_every_step_and_is_done_when_both_disks_have_its_commit():
    made = opened()
    ready = made.step(BATCH, 5)
    assert sorted(to for to, _ in ready.send) == ["n0#1", "n1#1"]
    first, second = made.grouped
    assert delivered(made, first).send == []
    ready = delivered(made, second)
    write = sent(ready, m.LedgerWrite)[0]
    assert ready.send == [("n1", write), ("n2", write)]
    assert (made.phase, write.commit.watermark, write.commit.offsets) == (Phase.COMMITTING, 40, (0, 1))
    assert write.commit.digests == {"s0>u0": digest_of(((1, 50, 1),))}
    assert (written(made, "n2").apply, written(made, "n2").apply) == ([], [])
    ready = written(made, "n1")
    assert ready.apply == [BatchDone(stage="s0", batch=0)]
    assert len(sent(ready, m.Seal)) == 2
    assert made.phase is Phase.READY
    assert sealed(made, first).notes == []
    assert sealed(made, second).notes == [notes.AllSealed("s0", 1, 0)]


def test_only_the_very_commit_on_every_disk_under_one_place_counts():
    made = opened()
    made.step(BATCH, 0)
    deliver(made)
    assert made.commit
    written(made, "n1", since=0)
    written(made, "n1", commit=replace(made.commit, attempt=9))
    written(made, "n3")
    written(made, "n2")
    assert made.phase is Phase.COMMITTING
    place = replace(made.ledger, joining="n0", since=9)
    newer = Record(version=9, term=1, members=RECORD.members, places={**RECORD.places, "s0.ledger": place})
    ready = hear(made, "n2", m.Push(record=newer))
    assert [(to, x.since) for to, x in ready.send if isinstance(x, m.LedgerWrite)] == [("n1", 9), ("n2", 9), ("n0", 9)]
    for name, since in (("n1", 9), ("n2", 1), ("n0", 9)):
        written(made, name, since=since)
    assert made.phase is Phase.COMMITTING
    assert made.unwritten() == ["n2"]
    assert written(made, "n2").apply == [BatchDone(stage="s0", batch=0)]


def test_seals_go_out_until_all_have_answered_and_a_delivery_brings_the_last_one_along():
    made = opened()
    first, second = made.grouped
    committed(made)
    sealed(made, first)
    again = made.step(TICK, 200 * MS)
    assert [to for to, x in again.send if isinstance(x, m.Seal)] == [second]
    ready = made.step(RunBatch(batch=1, parts={}, offsets=(1, 1)), 200 * MS)
    assert sent(ready, m.Seal) == []
    assert [(to, x.last) for to, x in ready.send if isinstance(x, m.Deliver)] == [
        (first, made.last), (second, made.last),
    ]  # fmt: skip
    assert delivered(made, second).notes == [notes.AllSealed("s0", 1, 0)]
    assert made.unsealed() == []


def test_a_final_batch_is_done_when_all_have_sealed_it():
    made = opened()
    first, second = made.grouped
    ready = committed(made, replace(BATCH, final=True))
    assert (made.phase, ready.apply) == (Phase.SEALING, [])
    assert sealed(made, first).apply == []
    assert sealed(made, second).apply == [BatchDone(stage="s0", batch=0)]
    assert made.phase is Phase.READY


def commit(batch: int = 3, watermark: int = 7) -> parts.CommitRecord:
    return parts.CommitRecord(
        query="query-0", batch=batch, epoch=1, attempt=1, watermark=watermark, offsets=(0, 9),
        digests={"s0>u0": parts.Digest(1, 2)}, ends={"s0>u0": 40},
    )  # fmt: skip


def test_a_commit_says_where_every_edge_ends_and_the_highest_event_time_so_far():
    made = opened(replace(commit(), highest=60))
    first = made.step(RunBatch(batch=4, parts=BATCH.parts, offsets=(0, 1), event_time_max=50), 0)
    assert sent(first, m.Deliver)
    assert made.commit
    assert (made.commit.ends, made.commit.highest) == ({"s0>u0": 43}, 60)


def test_a_new_driver_finishes_what_is_committed_before_it_opens():
    made = driver()
    ready = hear(made, "n1", m.LedgerState(stage="s0", epoch=1, commit=commit()))
    assert (made.phase, made.watermark, made.next_batch) == (Phase.FINISHING, 7, 4)
    assert len(sent(ready, m.Seal)) == 2
    for seat, shards in made.grouped.items():
        ready = hear(made, seat, m.Sealed(stage="s0", epoch=1, batch=3, seat=seat, shards=shards))
    assert ready.apply == [Opened(stage="s0", commit=commit())]


def test_a_batch_that_the_ledger_has_is_done_whatever_the_rerun_brings():
    made = opened(commit())
    again = RunBatch(batch=3, parts={}, offsets=(0, 9), event_time_max=10**9)
    assert made.step(again, 0).apply == [BatchDone(stage="s0", batch=3)]
    assert made.watermark == 7


def test_spark_may_not_skip_a_batch_nor_run_two():
    with pytest.raises(InvariantError, match="skipped"):
        opened().step(RunBatch(batch=2, parts={}, offsets=(0, 0)), 0)
    made = opened()
    made.step(BATCH, 0)
    with pytest.raises(InvariantError, match="before the last one"):
        made.step(BATCH, 0)


def test_a_new_version_of_a_place_is_delivered_to_again_and_the_old_answer_is_nothing():
    made = opened()
    made.step(BATCH, 0)
    delivered(made, "n0#1")
    place = Place(primary="n0#1", backup=None, joining="n2#1", since=9)
    newer = Record(version=9, term=1, members=RECORD.members, places={**RECORD.places, "u0": place})
    ready = hear(made, "n2", m.Push(record=newer))
    assert [(to, x.shards) for to, x in ready.send if isinstance(x, m.Deliver)] == [
        ("n0#1", {"u0": 9}), ("n2#1", {"u0": 9}),
    ]  # fmt: skip
    hear(made, "n2", m.Push(record=RECORD))
    assert made.record is newer
    assert delivered(made, "n0#1", shards={"u0": 1}).send == []
    delivered(made, "n2#1")
    assert made.phase is Phase.DELIVERING
    assert len(sent(delivered(made, "n0#1"), m.LedgerWrite)) == 2


def test_who_refuses_is_asked_for_the_record_and_delivered_to_again():
    made = opened()
    made.step(BATCH, 0)
    delivered(made, "n0#1")
    refusal = m.Refused(stage="s0", epoch=1, batch=0, reason=HandOverReason.PLACE_CHANGED, version=9)
    assert hear(made, "n1#1", refusal).send == [("n1#1", m.Pull(version=1))]
    ready = made.step(TICK, 200 * MS)
    assert [to for to, x in ready.send if isinstance(x, m.Deliver)] == ["n1#1"]


def test_a_holder_that_got_other_rows_makes_the_driver_try_again_on_every_holder():
    made = opened()
    made.step(BATCH, 0)
    delivered(made, "n0#1")
    ready = delivered(made, "n1#1", digests={"s0>u0": Digest(1, 99)})
    assert [type(n) for n in ready.notes] == [notes.Differs]
    assert (made.phase, ready.send) == (Phase.DELIVERING, [])
    assert delivered(made, "n0#1").send == []
    ready = made.step(TICK, 200 * MS)
    assert [(to, x.attempt) for to, x in ready.send if isinstance(x, m.Deliver)] == [("n0#1", 2), ("n1#1", 2)]
    for seat in made.grouped:  # what is said of the first try is nothing now
        delivered(made, seat, attempt=1)
    assert made.phase is Phase.DELIVERING
    assert [write.commit.attempt for write in sent(deliver(made), m.LedgerWrite)] == [2, 2]


def test_rows_for_an_edge_that_the_stage_does_not_have_are_refused():
    with pytest.raises(InvariantError, match="not of this stage"):
        opened().step(RunBatch(batch=0, parts={"s0>u9": ((1, 1, 1),)}, offsets=(0, 1)), 0)


def test_what_is_not_answered_is_sent_again_and_answers_of_other_epochs_are_ignored():
    made = driver()
    first = made.step(TICK, 0)
    assert [type(x) for _, x in first.send] == [m.Pull, m.LedgerOpen]
    assert [type(x) for _, x in made.step(TICK, 10 * MS).send] == []
    assert [type(x) for _, x in made.step(TICK, 100 * MS).send] == [m.Pull, m.LedgerOpen]
    hear(made, "n1", m.LedgerState(stage="s0", epoch=9, commit=None))
    hear(made, "n1", m.Refused(stage="s0", epoch=9, batch=0, reason=HandOverReason.EPOCH_OVER, version=1))
    assert made.phase is Phase.OPENING


@pytest.mark.parametrize("reason", [HandOverReason.EPOCH_OVER, HandOverReason.FOREIGN])
def test_a_fenced_or_foreign_driver_stops_for_good(reason):
    made = opened()
    ready = hear(made, "n1", m.Refused(stage="s0", epoch=1, batch=0, reason=reason, version=1))
    assert ready.apply == [StageFailed(stage="s0", reason=reason)]
    assert made.phase is Phase.OVER
    assert made.step(TICK, 10**12).send == []


def test_a_lost_shard_stops_the_stage_rather_than_lose_its_rows():
    lost = {**RECORD.places, "u0": Place(primary=None, since=5)}
    made = driver(record=Record(version=5, term=1, members=RECORD.members, places=lost))
    assert sent(made.step(TICK, 0), m.LedgerOpen) == []


def test_an_idle_sources_watermark_moves_on_and_a_finished_ones_ends():
    made = opened(commit(watermark=7))
    empty = RunBatch(batch=4, parts={}, offsets=(9, 9))
    made.step(empty, 10 * MS)
    assert made.commit
    assert made.commit.watermark == 7
    later = opened(commit(watermark=7))
    later.step(empty, 1_500 * MS)
    assert later.commit
    assert later.commit.watermark == 7 + 1_500 * MS
    fresh = opened()
    fresh.step(RunBatch(batch=0, parts={}, offsets=(0, 0)), 9_000 * MS)
    assert fresh.commit
    assert fresh.commit.watermark == WATERMARK_MIN
    ended = opened()
    ended.step(RunBatch(batch=0, parts={}, offsets=(0, 0), final=True), 0)
    assert ended.commit
    assert ended.commit.watermark == WATERMARK_MAX


def test_every_phase_can_be_fenced():
    assert all(TRANSITIONS[(phase, Cause.FENCED)] is Phase.OVER for phase in Phase)


def test_a_gap_that_a_stage_has_read_past_stays_in_its_commits():
    made = opened(replace(commit(), gap=70))
    made.step(RunBatch(batch=4, parts=BATCH.parts, offsets=(0, 1), gap=30), 0)
    assert made.commit
    assert made.commit.gap == 70


def test_a_real_time_commit_says_where_every_partition_of_the_source_stands():
    made = opened(replace(commit(), positions={"t/0": 5}))
    made.step(RunBatch(batch=4, parts=BATCH.parts, offsets=(0, 1), positions={"t/0": 8, "t/1": 2}), 0)
    assert made.commit
    assert made.commit.positions == {"t/0": 8, "t/1": 2}


def test_a_real_time_batch_that_goes_back_in_its_source_is_refused_and_a_micro_batch_has_no_positions():
    for positions in ({"t/0": 4}, {"t/1": 9}):
        with pytest.raises(InvariantError, match="goes back in its source"):
            opened(replace(commit(), positions={"t/0": 5})).step(
                RunBatch(batch=4, parts=BATCH.parts, offsets=(0, 1), positions=positions), 0
            )
    made = opened(replace(commit(), positions={"t/0": 5}))
    made.step(RunBatch(batch=4, parts=BATCH.parts, offsets=(0, 1)), 0)
    assert made.commit
    assert made.commit.positions == {}

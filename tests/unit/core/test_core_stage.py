"""The stage's driver and the ledger: a batch counts once, whoever runs it how often."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.core.ledger import Ledger
from holdfast.core.ready import TICK, BatchDone, Opened, Ready, Received, StageFailed
from holdfast.core.stage import TRANSITIONS, Cause, Phase, RunBatch, StageDriver
from holdfast.errors import InvariantError
from holdfast.model import messages as m
from holdfast.model import notes, parts
from holdfast.model.block import WATERMARK_MAX, WATERMARK_MIN, Digest, digest_of
from holdfast.model.config import MS, Config
from holdfast.model.found import KeptPage, read
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


def test_a_batch_goes_through_every_step_and_is_done_when_all_have_sealed():
    made = opened()
    ready = made.step(BATCH, 5)
    assert sorted(to for to, _ in ready.send) == ["n0#1", "n1#1"]
    first, second = made.grouped
    assert delivered(made, first).send == []
    ready = delivered(made, second)
    write = sent(ready, m.LedgerWrite)[0]
    assert (made.phase, write.commit.watermark, write.commit.offsets) == (Phase.COMMITTING, 40, (0, 1))
    assert write.commit.digests == {"s0>u0": digest_of(((1, 50, 1),))}
    ready = hear(made, "n1", m.LedgerState(stage="s0", epoch=1, commit=write.commit))
    assert len(sent(ready, m.Seal)) == 2
    done = Ready()
    for seat, shards in made.grouped.items():
        assert done.apply == []
        done = hear(made, seat, m.Sealed(stage="s0", epoch=1, batch=0, seat=seat, shards=shards))
    assert done.apply == [BatchDone(stage="s0", batch=0)]


def commit(batch: int = 3, watermark: int = 7) -> parts.CommitRecord:
    return parts.CommitRecord(
        query="query-0", batch=batch, epoch=1, attempt=1, watermark=watermark, offsets=(0, 9), ends={"s0>u0": 40}
    )


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
    assert len(sent(delivered(made, "n0#1"), m.LedgerWrite)) == 1


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
    assert [write.commit.attempt for write in sent(deliver(made), m.LedgerWrite)] == [2]


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


# --- the ledger


def ledger(name: str = "n1", place: Place | None = None) -> Ledger:
    made = Ledger("s0.ledger", name)
    made.on_place(place or Place(primary="n1", backup="n2", since=4), Ready())
    return made


def opening(made: Ledger, epoch: int = 1, query: str = "q") -> Ready:
    ready = Ready()
    made.on_ledger_open("s0@1", m.LedgerOpen(stage="s0", epoch=epoch, query=query), 0, ready)
    return ready


def copied(made: Ledger, by: str = "n2") -> Ready:
    ready = Ready()
    made.on_ledger_copied(by, m.LedgerCopied(ledger="s0.ledger", since=4, rank=made.page.rank), 0, ready)
    return ready


@pytest.mark.parametrize("order", [("n1#1", "n2#1"), ("n2#1", "n1#1")])
def test_the_ledger_answers_only_when_both_disks_have_the_page_whichever_is_first(order):
    made = ledger()
    ready = opening(made)
    assert ready.persist
    assert [(to, type(x)) for to, x in ready.early] == [("n2", m.LedgerCopy)]
    assert [(to, type(x)) for to, x in ready.send] == [("n1", m.LedgerCopied)]  # its own disk answers itself
    assert copied(made, by=order[0]).send == []
    assert [type(x) for _, x in copied(made, by=order[1]).send] == [m.LedgerState]
    assert copied(made, by=order[1]).send == []


class Disks:
    """The two nodes of a ledger: what each writes is on its disk when it is synced, and a crash forgets the rest."""

    PLACE = Place(primary="n1", backup="n2", since=4)

    def __init__(self) -> None:
        self.disk: dict[str, KeptPage] = {
            "n1": KeptPage(4, parts.LedgerPage("q", 1, commit(2))),
            "n2": KeptPage(4, parts.LedgerPage("q", 1, commit(2))),
        }
        self.told: list[m.Message] = []
        self.ledgers: dict[str, Ledger] = {}
        self.pending: dict[str, list[Ready]] = {"n1": [], "n2": []}
        for name in ("n2", "n1"):
            self.start(name)
        self.sync("n1", "n2")

    def start(self, name: str, place: Place = PLACE) -> None:
        self.ledgers[name], self.pending[name] = Ledger("s0.ledger", name, self.disk[name]), []
        self.place(name, place)

    def place(self, name: str, place: Place) -> None:
        ready = Ready()
        self.ledgers[name].on_place(place, ready)
        self.do(name, ready)

    def ask(self, message: m.LedgerOpen | m.LedgerWrite, name: str = "n1") -> None:
        self.hear(name, f"s0@{message.epoch}", message)

    def hear(self, name: str, source: str, message: m.Message) -> None:
        ready = Ready()
        getattr(self.ledgers[name], message.handler)(source, message, 0, ready)
        self.do(name, ready)

    def do(self, name: str, ready: Ready) -> None:
        """As a driver of the core does: early messages behind earlier writes only, the rest behind this step's, too."""
        if not self.pending[name]:
            self.carry(name, ready.early)
            ready.early = []
        if ready.persist or self.pending[name]:
            self.pending[name].append(ready)
        else:
            self.carry(name, ready.send)

    def sync(self, *names: str) -> None:
        while any(self.pending[name] for name in names):
            for name in names:
                if self.pending[name]:
                    ready = self.pending[name].pop(0)
                    self.disk[name] = read({"ledger/s0.ledger": self.disk[name], **dict(ready.persist)}).ledgers[
                        "s0.ledger"
                    ]
                    self.carry(name, ready.early + ready.send)

    def carry(self, source: str, messages: list) -> None:
        for to, message in messages:
            if to in self.ledgers:
                self.hear(to, source, message)
            else:
                self.told.append(message)


def write(batch: int, epoch: int = 1) -> m.LedgerWrite:
    return m.LedgerWrite(stage="s0", epoch=epoch, commit=commit(batch))


def states(made: Disks) -> list[int]:
    return [x.commit.batch for x in made.told if isinstance(x, m.LedgerState) and x.commit]


def test_both_disks_of_a_ledger_write_at_the_same_time_and_the_driver_hears_of_it_after_both():
    made = Disks()
    made.ask(write(3))
    assert all(made.pending.values())  # neither has waited for the other
    made.sync("n2")
    assert states(made) == []
    made.sync("n1")
    assert states(made) == [3]


def test_a_ledger_that_died_before_its_own_write_takes_over_what_its_backup_has():
    made = Disks()
    made.ask(write(3))
    made.sync("n2")
    made.start("n1")  # it lost the write, and is still the primary
    assert made.disk["n1"].page.commit == commit(2)
    made.sync("n1", "n2")
    assert made.disk["n1"] == made.disk["n2"] == KeptPage(4, parts.LedgerPage("q", 1, commit(3)))
    assert made.ledgers["n1"].in_step()
    made.ask(write(3))  # the driver asks again
    made.sync("n1", "n2")
    assert states(made) == [3]


def test_a_commit_that_only_the_backup_has_is_not_dropped_by_the_next_driver():
    made = Disks()
    made.ask(write(3))
    made.sync("n2")
    made.start("n1", Place(primary=None))  # back, but it does not know its place yet
    ready = Ready()
    made.ledgers["n1"].on_place(Disks.PLACE, ready)
    ready.send = []  # the network loses what it tells its backup
    made.ask(m.LedgerOpen(stage="s0", epoch=2, query="q"))
    made.sync("n1", "n2")
    assert states(made) == [3]
    assert made.disk["n1"] == made.disk["n2"] == KeptPage(4, parts.LedgerPage("q", 2, commit(3)))


def test_whoever_takes_over_from_a_ledger_that_died_while_it_wrote_answers_with_the_commit():
    made = Disks()
    made.ask(write(3))
    made.sync("n2")
    made.place("n2", Place(primary="n2", epoch=2, since=5))
    made.ask(write(3), "n2")
    made.sync("n2")
    assert states(made) == [3]


def test_a_ledger_that_alone_has_a_commit_on_disk_has_told_nobody():
    made = Disks()
    made.pending["n2"].append(Ready())  # a disk that hangs
    made.ask(write(3))
    made.sync("n1")
    assert states(made) == []
    made.start("n2")
    made.sync("n1", "n2")
    assert made.disk["n2"].page.commit == commit(2)  # nobody was told, and it may be that nobody ever is
    ready = Ready()
    made.ledgers["n1"].on_tick(ready)
    made.do("n1", ready)
    made.sync("n1", "n2")
    assert states(made) == [3]


def test_a_driver_that_waits_while_a_later_one_is_found_on_the_other_disk_is_refused():
    made = Disks()
    made.ask(m.LedgerOpen(stage="s0", epoch=2, query="q"))
    made.sync("n2")
    made.start("n1", Place(primary=None))
    ready = Ready()
    made.ledgers["n1"].on_place(Disks.PLACE, ready)
    made.ask(write(3, epoch=1))  # of the one before: this life of the ledger does not know better yet
    made.sync("n1", "n2")
    assert [x.reason for x in made.told if isinstance(x, m.Refused)] == [HandOverReason.EPOCH_OVER]
    assert states(made) == []


def test_an_older_driver_is_refused_and_a_foreign_query_too():
    made = ledger()
    opening(made, epoch=2)
    for ready in (opening(made, epoch=1), opening(made, epoch=2, query="other")):
        assert isinstance(ready.send[0][1], m.Refused)
    ready = Ready()
    made.on_ledger_write("s0@1", m.LedgerWrite(stage="s0", epoch=1, commit=commit(0)), 0, ready)
    assert ready.send[0][1].reason == "stage epoch is over"


def test_a_commit_is_never_replaced_and_none_may_be_skipped():
    made = ledger()
    opening(made)
    copied(made)
    ready = Ready()
    made.on_ledger_write("s0@1", m.LedgerWrite(stage="s0", epoch=1, commit=commit(0, 1)), 0, ready)
    made.on_ledger_write("s0@1", m.LedgerWrite(stage="s0", epoch=1, commit=commit(0, 2)), 0, ready)
    assert made.page.commit == commit(0, 1)
    made.on_ledger_write("s0@1", m.LedgerWrite(stage="s0", epoch=1, commit=commit(5)), 0, ready)
    assert ready.send[-1][1].reason == "ledger was not opened"
    made.on_ledger_write("s0@9", m.LedgerWrite(stage="s0", epoch=9, commit=commit(1)), 0, ready)
    assert ready.send[-1][1].reason == "ledger was not opened"


def test_who_is_not_the_primary_or_is_moving_refuses():
    assert opening(ledger("n2")).send[0][1].reason == "not the ledger"
    moving = ledger(place=Place(primary="n1", backup="n2", since=4, moving=True))
    assert opening(moving).send[0][1].reason == "not the ledger"
    assert moving.yielded() is None
    copied(moving)
    assert moving.yielded() == m.Yielded(asset="s0.ledger", since=4)


def test_a_copy_is_kept_and_an_old_one_is_nothing():
    made = ledger("n2")
    page = parts.LedgerPage("q", 2, commit(3))
    ready = Ready()
    made.on_ledger_copy("n1", m.LedgerCopy(ledger="s0.ledger", since=4, page=page), 0, ready)
    assert ready.persist == [("ledger/s0.ledger", KeptPage(4, page))]
    made.on_ledger_copy("n1", m.LedgerCopy(ledger="s0.ledger", since=4, page=parts.LedgerPage("q", 1, None)), 0, ready)
    assert made.page == page


def test_who_joins_starts_from_nothing_unless_it_restarted_while_joining():
    joining = Place(primary="n1", joining="n2", since=6)
    page = parts.LedgerPage("q", 2, commit(3))
    stale, restarted = (Ledger("s0.ledger", "n2", KeptPage(since, page)) for since in (4, 6))
    for made in (stale, restarted):
        made.on_place(joining, Ready())
    assert stale.page.commit is None
    assert restarted.page == page


def test_a_joining_holder_is_reported_when_it_has_everything():
    made = ledger(place=Place(primary="n1", joining="n2", since=4))
    opening(made)
    assert made.report() is None
    copied(made)
    assert made.report() == "n2"


def test_a_gap_that_a_stage_has_read_past_stays_in_its_commits():
    made = opened(replace(commit(), gap=70))
    made.step(RunBatch(batch=4, parts=BATCH.parts, offsets=(0, 1), gap=30), 0)
    assert made.commit
    assert made.commit.gap == 70

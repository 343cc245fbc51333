"""A real-time stage without Spark: which rows it hands over, and what its commits say of the source."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from support.pushing_task import PushingTask

from holdfast.errors import HoldfastError
from holdfast.model.latency import HandOverClock
from holdfast.model.parts import CommitRecord
from holdfast.model.plan import NEVER_US, StagePlan
from holdfast.spark import real_time as module
from holdfast.spark.checkpoint import source_offsets
from holdfast.spark.collect import Batch
from holdfast.spark.hand_over import Stopped
from holdfast.spark.inlet import Inlet, positions_of
from holdfast.spark.real_time import (
    BACKLOG_MAX,
    Backlog,
    RealTimeStage,
    Silence,
    behind_by,
    is_refused,
    no_slots,
    plan_text,
    positions_after,
)
from holdfast.spark.stage import FeedingStage

LIMIT_S = 30.0
SECOND = 10**9


class RowsLedger:
    """What outlives a driver."""

    def __init__(self) -> None:
        self.last: CommitRecord | None = None
        self.rows: list[int] = []
        self.sizes: list[int] = []
        self.idle: list[int | None] = []


class PushedHandOver:
    """In place of a hand-over: rows count when it returns. It may die before or after that."""

    def __init__(self, ledger: RowsLedger) -> None:
        self.ledger = ledger
        self.watermark = 0
        self.clock = HandOverClock()
        self.stopping = SimpleNamespace(set=lambda: None)
        self.epoch, self.dies_in = 1, -1

    @property
    def last(self) -> CommitRecord | None:
        return self.ledger.last

    def open(self) -> CommitRecord | None:
        return self.ledger.last

    def run(self, parts: Any, *, spark_batch: int, plan: str, positions: Any = None, **rest: Any) -> CommitRecord:
        self.dies_in -= 1
        if self.dies_in == 0:
            raise HoldfastError("this driver has died")
        last = self.ledger.last
        self.ledger.last = CommitRecord(
            query="q", batch=last.batch + 1 if last else 0, epoch=1, attempt=1, watermark=0,
            offsets=(spark_batch, spark_batch + 1), plan=plan, positions=dict(positions or {}),
        )  # fmt: skip
        self.ledger.rows += parts.get("rows", ())
        self.ledger.sizes.append(len(parts.get("rows", ())))
        self.ledger.idle.append(rest.get("idle_ns"))
        return self.ledger.last


class RowsCollector:
    late: pa.Table | None = None

    def take(self, table: pa.Table, watermark_us: int, bad_max: int) -> Batch:
        parts: Any = {"rows": table.column("x").to_pylist()}
        return Batch(parts=parts, rows=table.num_rows, late=self.late, max_us=NEVER_US)


class PushingQuery:
    """In place of Spark's."""

    runId = "run"

    def __init__(self, error: Exception | None = None) -> None:
        self.isActive, self.error = error is None, error

    def exception(self) -> Exception | None:
        return self.error

    def stop(self) -> None:
        self.isActive = False


class TopicEnds:
    """In place of SourceEnds: a topic with two partitions."""

    def __init__(self, *given: Any) -> None:
        self.now = {"t/0": 0, "t/1": 0}
        self.real_time = True

    def is_real_time(self) -> bool:
        return self.real_time

    def beginning(self) -> dict[str, int]:
        return {"t/0": 0, "t/1": 0}

    def ends(self, since: Any) -> dict[str, int]:
        return dict(self.now)

    def close(self) -> None:
        pass


class Drivers:
    """Drivers of one stage, one after the other."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        self.ledger = RowsLedger()
        self.topic = TopicEnds()
        self.query = PushingQuery()
        self.micro: list[str] = []
        self.said: list[tuple[str, dict]] = []
        self.stages: list[RealTimeStage] = []
        self.inlet: Any = None
        self.idle_ns = 1 << 60
        monkeypatch.setattr(module, "SourceEnds", lambda *_: self.topic)
        monkeypatch.setattr(module, "pushing", self._pushing)
        monkeypatch.setattr(FeedingStage, "start", lambda stage, frame: self._in_micro_batches(stage))
        monkeypatch.setattr(module.checkpoint, "agree", lambda *_: None)

    def _pushing(self, frame: Any, inlet: Inlet, *rest: Any) -> PushingQuery:
        self.inlet = inlet
        inlet.begun += 1
        return self.query

    def _in_micro_batches(self, stage: Any) -> None:
        self.micro.append("started")
        stage.query = PushingQuery()

    def say(self, event: str, **fields: Any) -> None:
        self.said.append((event, fields))

    def driver(self, collector: Any = None, dies_in: int = -1) -> RealTimeStage:
        plan: Any = SimpleNamespace(query="q")
        stage = StagePlan(id="s", kind="source", idle_ns=self.idle_ns)
        made = RealTimeStage(plan, stage, self.directory, collector or RowsCollector(), self.say)
        hand_over: Any = PushedHandOver(self.ledger)
        hand_over.dies_in = dies_in
        frame: Any = SimpleNamespace(
            sparkSession=SimpleNamespace(
                conf=SimpleNamespace(get=lambda key, other: other), sparkContext=SimpleNamespace(master="local[9]")
            )
        )
        self.query = PushingQuery()
        assert made.open(hand_over)
        self.stages.append(made)
        made.start(frame)
        return made


@pytest.fixture
def world(tmp_path, monkeypatch) -> Iterator[Drivers]:
    found = Drivers(tmp_path, monkeypatch)
    yield found
    for stage in found.stages:
        stage.end_query(1.0)


def wait(condition: Callable[[], Any]) -> Any:
    until = time.monotonic() + LIMIT_S
    while not (found := condition()):
        assert time.monotonic() < until
        time.sleep(0.002)
    return found


def test_rows_are_handed_over_while_a_long_batch_goes_on_and_the_commit_says_where_the_source_stands(world):
    world.driver()
    task = PushingTask(world.inlet, 0, 0).push(0, 0, 1)
    wait(lambda: world.ledger.rows == [0, 10])
    task.push(0, 5)
    wait(lambda: world.ledger.rows == [0, 10, 50])
    last = world.ledger.last
    assert last is not None
    assert last.positions == {"t/0": 6, "t/1": 0}
    assert last.offsets == (last.batch, last.batch + 1)
    (offset,) = source_offsets(last.plan)
    assert positions_of(offset or {}) == last.positions  # for whoever goes on in micro-batches


def test_a_driver_that_dies_in_any_hand_over_is_followed_by_one_that_takes_each_row_once(world):
    """The next one begins where the ledger ends; what the one before had taken, and not committed, comes again."""
    source = list(range(60))
    for dies_in in (1, 2, 3, 2, -1):
        stage = world.driver(dies_in=dies_in)
        at = world.inlet.positions.get("t/0", 0)
        task = PushingTask(world.inlet, 0, 0)
        for offset in source[at : at + 30]:
            task.push(0, offset)
            time.sleep(0.001)
        if dies_in > 0:
            wait(lambda stage=stage: stage.failure)
            assert not stage.query.isActive
        stage.end_query(1.0)
    stage = world.driver()
    task = PushingTask(world.inlet, 0, 0).push(0, *source[world.inlet.positions["t/0"] :])
    wait(lambda: len(world.ledger.rows) == len(source))
    assert world.ledger.rows == [10 * at for at in source]


def test_a_stage_whose_last_commit_was_a_micro_batch_begins_behind_that(world):
    plan = plan_text({"t/0": 7, "t/1": 2})
    world.ledger.last = CommitRecord(query="q", batch=3, epoch=1, attempt=1, watermark=0, offsets=(2, 3), plan=plan)
    world.driver()
    assert world.inlet.positions == {"t/0": 7, "t/1": 2}
    PushingTask(world.inlet, 0, 0).push(0, 7)
    wait(lambda: world.ledger.rows == [70])
    assert world.ledger.last.offsets == (3, 4)
    assert positions_after(world.ledger.last) == {"t/0": 8, "t/1": 2}


def test_rows_that_wait_in_the_source_at_the_start_are_one_batch(world, monkeypatch):
    """Otherwise those of a slower partition would be late for the sake of a faster one."""
    monkeypatch.setattr(module, "FIRST_QUIET_S", LIMIT_S)
    monkeypatch.setattr(module, "FIRST_S_MAX", LIMIT_S)
    world.topic.now = {"t/0": 3, "t/1": 2}
    world.driver()
    PushingTask(world.inlet, 0, 0).push(0, 0).push(0, 1).push(0, 2)
    time.sleep(0.1)
    assert world.ledger.sizes == []
    PushingTask(world.inlet, 0, 1).push(1, 0, 1)
    wait(lambda: world.ledger.sizes == [5])


def test_rows_behind_a_filter_are_not_waited_for_long(world):
    world.topic.now = {"t/0": 3, "t/1": 2}
    world.driver()
    PushingTask(world.inlet, 0, 0).push(0, 0)
    wait(lambda: world.ledger.sizes == [1])


def test_where_a_long_batch_has_ended_is_noted_also_if_a_filter_has_left_out_everything(world):
    world.driver()
    home = world.inlet.directory / "checkpoint"
    task = PushingTask(world.inlet, 0, 0).push(0, 2)
    wait(lambda: world.ledger.rows == [20])
    for log, text in (("offsets", plan_text({"t/0": 9, "t/1": 4})), ("commits", "v1\n{}")):
        (home / log).mkdir()
        (home / log / "0").write_text(text)
    task.end()
    time.sleep(0.4)
    assert world.ledger.last.positions == {"t/0": 3, "t/1": 0}  # its streams may still be on their way
    PushingTask(world.inlet, 1, 0).push(0)
    wait(lambda: world.ledger.last.positions == {"t/0": 9, "t/1": 4})
    assert world.ledger.rows == [20]
    assert world.ledger.idle[-1] == 0  # silence is another matter


def test_a_backlog_is_read_in_micro_batches_first(world):
    world.topic.now = {"t/0": BACKLOG_MAX, "t/1": 1}
    stage = world.driver()
    assert world.micro == ["started"]
    assert world.inlet is None
    assert [event for event, _ in world.said] == ["backlog"]
    stage.on_idle()
    assert world.inlet is None  # no batch has come to its end
    plan = plan_text({"t/0": BACKLOG_MAX, "t/1": 0})
    world.ledger.last = CommitRecord(query="q", batch=0, epoch=1, attempt=1, watermark=0, offsets=(0, 1), plan=plan)
    stage.on_idle()
    assert world.inlet.positions == {"t/0": BACKLOG_MAX, "t/1": 0}
    PushingTask(world.inlet, 0, 1).push(1, 0)
    wait(lambda: world.ledger.rows == [0])


def test_a_micro_batch_that_waits_when_its_query_ends_is_turned_away_before_real_time_begins(world):
    """Spark gives it up, but its call goes on: it would hand over rows that are read in real time as well."""
    world.topic.now = {"t/0": BACKLOG_MAX + 1, "t/1": 0}
    stage = world.driver()
    plan = plan_text({"t/0": BACKLOG_MAX, "t/1": 0})
    world.ledger.last = CommitRecord(query="q", batch=0, epoch=1, attempt=1, watermark=0, offsets=(0, 1), plan=plan)
    stage._inside = 1
    waits = threading.Thread(target=stage.on_idle)
    waits.start()
    time.sleep(0.2)
    assert world.inlet is None
    assert stage._stopping.is_set()  # so that it is turned away
    stage._inside = 0
    waits.join()
    assert world.inlet is not None
    stage.stop()
    with pytest.raises(Stopped):
        stage._run(None, 1)  # pyright: ignore[reportArgumentType]
    assert stage._inside == 0


def test_a_query_of_micro_batches_that_takes_long_to_end_is_waited_for(world):
    """On a machine without CPU to spare Spark gave up waiting, and the driver died of it."""
    world.topic.now = {"t/0": BACKLOG_MAX + 1, "t/1": 0}
    stage = world.driver()
    plan = plan_text({"t/0": BACKLOG_MAX, "t/1": 0})
    world.ledger.last = CommitRecord(query="q", batch=0, epoch=1, attempt=1, watermark=0, offsets=(0, 1), plan=plan)
    waited: list[str] = []
    query: Any = stage.query

    def stop() -> None:
        raise TimeoutError("stream execution thread did not stop")

    query.stop, query.awaitTermination = stop, lambda: waited.append("ended")
    stage.on_idle()
    assert waited == ["ended"]
    assert world.inlet is not None


def test_a_source_that_is_always_ahead_does_not_stay_in_micro_batches():
    backlog, behind = Backlog(), BACKLOG_MAX + 1
    read = [backlog.is_read({"t/0": at}, behind) for at in (10**6, 10**6 + 300_000, 10**6 + 390_000, 10**6 + 480_000)]
    assert read == [False, False, False, True]


def test_to_finish_a_stage_reads_the_rest_in_micro_batches(world, monkeypatch):
    finals = []
    monkeypatch.setattr(FeedingStage, "finish", lambda stage: finals.append(world.ledger.last))
    stage = world.driver()
    PushingTask(world.inlet, 0, 0).push(0, 0)
    wait(lambda: world.ledger.rows == [0])
    query = stage.query
    stage.finish()
    assert not query.isActive
    assert world.micro == ["started"]
    assert finals == [world.ledger.last]
    assert stage.inlet is None


def test_what_spark_refuses_goes_on_in_micro_batches_and_says_why(world):
    refusal = Exception("[STREAMING_REAL_TIME_MODE.OPERATOR_OR_SINK_NOT_IN_ALLOWLIST] The operator X is not allowed")
    world._pushing = lambda *_: PushingQuery(refusal)
    module.pushing = lambda *_: PushingQuery(refusal)  # pyright: ignore[reportAttributeAccessIssue]
    stage = world.driver()
    assert world.micro == ["started"]
    ((event, fields),) = world.said
    assert event == "micro-batches"
    assert "OPERATOR_OR_SINK_NOT_IN_ALLOWLIST" in fields["why"]
    assert stage.failure is None
    assert stage.inlet is None


def test_another_failure_of_the_query_at_its_start_is_one_of_the_stage(world):
    module.pushing = lambda *_: PushingQuery(Exception("no broker"))  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(Exception, match="no broker"):
        world.driver()
    assert world.micro == []


def test_an_old_connector_and_too_few_slots_are_reasons(world):
    world.topic.real_time = False
    world.driver()
    assert world.said == [("micro-batches", {"why": "this version of Spark's Kafka connector has no real-time mode"})]
    assert no_slots("local[3]", 2) == ""
    assert "local[3] has no slot" in no_slots("local[3]", 3)
    assert "local has no slot" in no_slots("local", 1)
    assert no_slots("local[1030]", 8) == no_slots("local[*]", 8) == ""
    assert is_refused(Exception("maxOffsetsPerTrigger is not compatible with real time mode"))
    assert not is_refused(Exception("timeout"))


def test_a_pause_holds_rows_back_and_says_when_nothing_is_under_way(world):
    stage = world.driver()
    stage.pause(time.monotonic() + 60)
    PushingTask(world.inlet, 0, 0).push(0, 0)
    wait(lambda: world.inlet.waiting)
    time.sleep(0.1)
    assert stage.is_paused()
    assert world.ledger.rows == []
    stage.pause(0.0)
    wait(lambda: world.ledger.rows == [0])


def test_batches_with_rows_that_are_set_aside_are_made_less_often(world, monkeypatch):
    collector = RowsCollector()
    collector.late = pa.table({"x": [1]})
    stage = world.driver(collector)
    monkeypatch.setattr(stage.aside, "write", lambda *_: None)
    monkeypatch.setattr(stage.aside, "settle", lambda *_, **__: None)
    task = PushingTask(world.inlet, 0, 0)
    began = time.monotonic()
    for at in range(100):
        task.push(0, at)
        time.sleep(0.01)
    wait(lambda: len(world.ledger.rows) == 100)
    assert len(world.ledger.sizes) <= 3 + (time.monotonic() - began) / module.ASIDE_PACE_S


def test_a_source_is_idle_only_when_it_is_proven_to_have_nothing(world, monkeypatch):
    monkeypatch.setattr(module, "ASK_S_MIN", 0.01)
    world.idle_ns = SECOND // 10
    world.topic.now = {"t/0": 1, "t/1": 0}
    stage = world.driver()
    PushingTask(world.inlet, 0, 0).push(0, 0)
    wait(lambda: world.ledger.rows == [0])
    world.topic.now = {"t/0": 2, "t/1": 0}  # a row that the query has not read, or that a filter leaves out
    time.sleep(0.3)
    stage.on_idle()
    silent = [idle for idle in world.ledger.idle if idle is not None]
    world.topic.now = {"t/0": 1, "t/1": 0}
    wait(lambda: stage.on_idle() or len([i for i in world.ledger.idle if i is not None]) > len(silent))
    assert all(idle >= world.idle_ns for idle in world.ledger.idle if idle is not None)


def test_silence_is_what_was_proven_and_no_more():
    silence = Silence(100.0)
    silence.on_ends(103.0, {"t/0": 5})
    silence.on_ends(110.0, {"t/0": 7})
    assert silence.proven_s({"t/0": 4}) == 0
    assert silence.proven_s({"t/0": 5}) == 3
    assert silence.proven_s({"t/0": 7}) == 10
    assert silence.proven_s({}) == 0
    silence.use(3)
    assert silence.proven_s({"t/0": 7}) == 7
    silence.on_rows(112.0)
    silence.on_ends(111.0, {"t/0": 7})
    assert silence.proven_s({"t/0": 7}) == 0
    for at in range(1_000):
        silence.on_ends(200.0 + at, {"t/0": at})
    assert len(silence._asked) <= module.ASKED_MAX
    assert 500 <= silence.proven_s({"t/0": 999}) <= 1_100


def test_rows_before_the_ends_are_counted_by_partition():
    assert behind_by({"t/0": 5, "t/1": 9}, {"t/0": 7, "t/1": 4, "t/2": 3}) == 5


def test_a_commit_survives_its_way_to_the_disk(world):
    world.driver()
    PushingTask(world.inlet, 0, 0).push(0, 0)
    last = wait(lambda: world.ledger.last)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(last), type=CommitRecord) == last

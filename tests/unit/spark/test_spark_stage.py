"""A feeding stage without Spark: what it seals when it is told to finish, and what it must not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.errors import InvariantError
from holdfast.model.latency import HandOverClock
from holdfast.model.parts import CommitRecord
from holdfast.model.plan import StagePlan
from holdfast.spark import stage as module
from holdfast.spark.aside import late_directories
from holdfast.spark.hand_over import Stopped
from holdfast.spark.stage import FeedingStage


class FailingQuery:
    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.runId = "run"

    def processAllAvailable(self) -> None:
        if self.error is not None:
            raise self.error

    def exception(self) -> Exception | None:
        return self.error

    def stop(self) -> None:
        pass


class StandInHandOver:
    """In place of a HandOver."""

    def __init__(self) -> None:
        self.last = CommitRecord(query="q", batch=3, epoch=1, attempt=1, watermark=5, offsets=(3, 4), plan="v1")
        self.watermark = 5
        self.clock = HandOverClock()
        self.finals: list[bool] = []
        self.idle: list[int | None] = []

    def run(self, parts: dict, *, final: bool = False, **fields: Any) -> CommitRecord:
        self.finals.append(final)
        self.idle.append(fields.get("idle_ns"))
        return self.last


@pytest.fixture
def stage(tmp_path, monkeypatch):
    monkeypatch.setattr(module.checkpoint, "agree", lambda *_: None)
    made = FeedingStage(
        SimpleNamespace(query="q"),  # pyright: ignore[reportArgumentType]
        StagePlan(id="s", kind="source"),
        tmp_path,
        None,  # pyright: ignore[reportArgumentType]
        lambda event, **fields: None,
    )
    made.hand_over = StandInHandOver()  # pyright: ignore[reportAttributeAccessIssue]
    return made


class HandClock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now


def test_only_time_in_which_spark_found_nothing_makes_a_source_idle(stage, monkeypatch):
    """Once, every restart of a driver that took longer than `idle` moved the watermark past rows that were waiting."""
    clock = HandClock()
    monkeypatch.setattr(module, "time", clock)
    stage.stage = StagePlan(id="s", kind="source", idle_ns=5 * 10**9)
    stage._idle_since = stage._looked = clock.now
    stage.query = FailingQuery(None)

    def pass_by(seconds: float, message: str, available: bool) -> None:
        stage.query.status = {"message": message, "isDataAvailable": available, "isTriggerActive": False}
        for _ in range(int(seconds * 10)):
            clock.now += 0.1
            stage.on_idle()

    pass_by(20, "Initializing sources", False)
    pass_by(20, "Processing new data", True)
    pass_by(4, "Waiting for data to arrive", False)
    clock.now += 30  # SIGSTOP, say
    pass_by(4, "Waiting for data to arrive", False)
    assert stage.hand_over.idle == []
    pass_by(2, "Waiting for next trigger", False)
    (idle_ns,) = stage.hand_over.idle
    assert 5.0e9 <= idle_ns < 5.3e9


def test_a_stage_that_is_paused_begins_no_batch_and_says_when_none_is_under_way(stage, monkeypatch):
    clock = HandClock()
    monkeypatch.setattr(module, "time", clock)
    assert not stage.is_paused()
    stage.pause(clock.now + 10)
    assert stage.is_paused()
    assert not stage._takes_turn()  # a batch of Spark's waits
    assert stage.is_paused()
    clock.now += 10
    assert not stage.is_paused()
    assert stage._takes_turn()
    stage.pause(clock.now + 10)
    assert not stage.is_paused()  # that batch is under way
    stage._turn.release()
    assert stage.is_paused()
    stage.pause(0.0)
    assert not stage.is_paused()


def test_a_stage_that_is_paused_goes_on_until_its_watermark_is_at_its_mark(stage, monkeypatch):
    """Not a batch more: the next one would wait for others in turn, and they for it."""
    clock = HandClock()
    monkeypatch.setattr(module, "time", clock)
    stage.pause(clock.now + 10, 7)
    assert not stage.is_paused()
    assert stage._takes_turn()
    stage.hand_over.watermark = 7
    stage._turn.release()
    assert not stage._takes_turn()
    assert stage.is_paused()
    stage.pause(clock.now + 10, 8)
    assert not stage.is_paused()


def test_a_batch_that_waits_for_the_end_of_a_pause_is_turned_away_by_a_stop(stage):
    stage.pause(float("inf"))
    stage._stopping.set()
    with pytest.raises(Stopped):
        stage._run(None, 4)


def test_the_time_of_a_pause_does_not_make_a_source_idle(stage, monkeypatch):
    """Rows may be waiting behind it."""
    clock = HandClock()
    monkeypatch.setattr(module, "time", clock)
    stage.stage = StagePlan(id="s", kind="source", idle_ns=5 * 10**9)
    stage.query = FailingQuery(None)
    stage.query.status = {"message": "Waiting for data to arrive", "isDataAvailable": False, "isTriggerActive": False}  # pyright: ignore[reportAttributeAccessIssue]
    stage.pause(clock.now + 20)
    for _ in range(230):
        clock.now += 0.1
        stage.on_idle()
    assert stage.hand_over.idle == []


def test_an_idle_source_for_which_others_wait_goes_on_with_the_clock(stage, monkeypatch):
    clock = HandClock()
    monkeypatch.setattr(module, "time", clock)
    stage.stage = StagePlan(id="s", kind="source", idle_ns=5 * 10**9)
    stage.query = FailingQuery(None)
    stage.query.status = {"message": "Waiting for data to arrive", "isDataAvailable": False, "isTriggerActive": False}  # pyright: ignore[reportAttributeAccessIssue]
    stage._idle_since = stage._looked = clock.now
    stage.pause(clock.now + 20, 7)
    for _ in range(60):
        clock.now += 0.1
        stage.on_idle()
    assert len(stage.hand_over.idle) == 1


def test_finish_seals_the_final_batch(stage):
    stage.query = FailingQuery(None)
    stage.finish()
    assert stage.hand_over.finals == [True]
    assert stage.failure is None


def test_a_source_that_failed_is_not_closed_over_what_it_has_not_read(stage):
    """The query failed outside of `foreachBatch`, as it listed files: then the final seal would lose the rest."""
    stage.query = FailingQuery(RuntimeError("cannot list"))
    stage.finish()
    assert stage.hand_over.finals == []
    assert stage.failure is stage.query.error


def test_a_batch_that_was_turned_away_because_of_finish_is_no_failure(stage):
    stage.query = FailingQuery(None)
    stage._stopping.set()
    with pytest.raises(Stopped):
        stage._run(None, 4)
    stage.query.error = RuntimeError("foreachBatch raised Stopped")
    stage.finish()
    assert stage.hand_over.finals == [True]


def test_a_stage_is_started_once_in_a_life_of_its_driver(stage):
    """Each start of a query has a stage epoch of its own: else two tries of a batch could go by one name."""
    with pytest.raises(InvariantError, match="started twice"):
        stage.open(StandInHandOver())


def test_two_stages_may_record_late_rows_in_one_place(tmp_path):
    """Their batches have the same numbers, and each drops what it takes for its own attempts."""

    def directories(name: str) -> set:
        plan = StagePlan(id=name, kind="source", late_to=str(tmp_path / "late"))
        made = FeedingStage(SimpleNamespace(), plan, tmp_path / "run", None, print)  # pyright: ignore[reportArgumentType]
        return set(late_directories(made.directory, made.stage))

    assert len(directories("a") | directories("b")) == 4

"""A feeding stage without Spark: what it seals when it is told to finish, and what it must not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.model.messages import CommitRecord
from holdfast.model.plan import StagePlan
from holdfast.spark import stage as module
from holdfast.spark.hand_over import Stopped
from holdfast.spark.stage import FeedingStage


class Query:
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


class Ledger:
    """In place of a HandOver."""

    def __init__(self) -> None:
        self.last = CommitRecord(
            query="q", batch=3, epoch=1, attempt=1, accepted={}, watermark=5, offsets=(3, 4), plan="v1"
        )
        self.watermark = 5
        self.finals: list[bool] = []

    def run(self, parts: dict, *, final: bool = False, **fields: Any) -> CommitRecord:
        self.finals.append(final)
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
    made.hand_over = Ledger()  # pyright: ignore[reportAttributeAccessIssue]
    return made


def test_finish_seals_the_final_batch(stage):
    stage.query = Query(None)
    stage.finish()
    assert stage.hand_over.finals == [True]
    assert stage.failure is None


def test_a_source_that_failed_is_not_closed_over_what_it_has_not_read(stage):
    """The query failed outside of `foreachBatch`, as it listed files: then the final seal would lose the rest."""
    stage.query = Query(RuntimeError("cannot list"))
    stage.finish()
    assert stage.hand_over.finals == []
    assert stage.failure is stage.query.error


def test_a_batch_that_was_turned_away_because_of_finish_is_no_failure(stage):
    stage.query = Query(None)
    stage._stopping.set()
    with pytest.raises(Stopped):
        stage._run(None, 4)
    stage.query.error = RuntimeError("foreachBatch raised Stopped")
    stage.finish()
    assert stage.hand_over.finals == [True]


def test_two_stages_may_record_late_rows_in_one_place(tmp_path):
    """Their batches have the same numbers, and each drops what it takes for its own attempts."""

    def directories(name: str) -> set:
        plan = StagePlan(id=name, kind="source", late_to=str(tmp_path / "late"))
        made = FeedingStage(SimpleNamespace(), plan, tmp_path / "run", None, print)  # pyright: ignore[reportArgumentType]
        return set(made.late_directories)

    assert len(directories("a") | directories("b")) == 4

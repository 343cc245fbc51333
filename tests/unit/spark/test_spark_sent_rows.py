"""Rows that are sent along with a batch's partition: for small batches, and as PySpark 4.3 wants it."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql.streaming import python_streaming_source_runner as runner
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from holdfast.core.reader import Piece
from holdfast.spark import datasource, orders
from holdfast.spark.connect import Run
from holdfast.spark.datasource import FIRST_BATCHES, RUN, SENT_ROWS_MAX, HoldfastStreamReader
from holdfast.spark.follower import ReadOptions


@pytest.fixture
def reader(monkeypatch) -> Any:
    """Two edges of one shard each, of the rows that a test wants."""
    run = Run(endpoints={}, secret_file="", deployment="q")
    settings = ReadOptions(
        run=run, directory="", stream="s", consumer="out_0", epoch=1, parallelism=4, max_rows=0, watermarks=False
    )
    made = HoldfastStreamReader(settings)
    place = SimpleNamespace(primary="n0#1", beside=None, epoch=1)
    made.rows = [10, 20]  # pyright: ignore[reportAttributeAccessIssue]
    made.__dict__["plan"] = SimpleNamespace(topology=SimpleNamespace(query="q"), query="q")

    def pieces(start: dict, end: dict) -> list[Piece]:
        rows: list[int] = made.rows  # pyright: ignore[reportAttributeAccessIssue]
        return [Piece(edge=f"u{i}.0", shard=f"u{i}", start=0, end=n + 1, rows=n) for i, n in enumerate(rows)]

    made._follower = SimpleNamespace(  # pyright: ignore[reportAttributeAccessIssue]
        pieces=pieces,
        record=lambda: SimpleNamespace(version=1, places={"u0": place, "u1": place}),
    )
    monkeypatch.setattr(orders, "fetch", lambda order, piece: [pa.record_batch({"n": [piece.rows]})])
    return made


def test_rows_of_a_small_batch_are_sent_along_once(reader):
    (partition,) = reader.partitions({}, {})
    sent = reader.getCache({}, {})
    assert [batch["n"].to_pylist() for batch in sent] == [[20], [10]]
    assert reader.getCache({}, {}) is None
    assert len(list(reader.read(partition))) == 2  # a task can fetch them all the same


def test_rows_of_a_large_batch_are_fetched_by_tasks(reader):
    reader.rows = [SENT_ROWS_MAX, 1]
    assert len(reader.partitions({}, {})) == 2
    assert reader.getCache({}, {}) is None
    reader.rows = []
    assert reader.partitions({}, {}) == []
    assert reader.getCache({}, {}) is None


@pytest.mark.parametrize("epoch", [1, 0])
def test_the_first_batches_of_a_stage_are_small_enough_to_be_sent_along_and_those_of_a_guest_as_it_wants(reader, epoch):
    asked: list[int] = []
    reader.settings = msgspec.structs.replace(reader.settings, epoch=epoch)
    reader._follower.latest = lambda start, rows_max: (asked.append(rows_max), ({"u0.0": [9, 9]}, 9))[1]
    for _ in range(FIRST_BATCHES + 1):
        reader._look(reader._follower, {"u0.0": [0, 0]}, ReadMaxRows(2_000_000))
        reader.partitions(*[{} if epoch else {RUN: "q"}] * 2)
    assert asked == ([SENT_ROWS_MAX] * FIRST_BATCHES if epoch else [2_000_000] * FIRST_BATCHES) + [2_000_000]


def test_pyspark_still_asks_readers_of_this_class_and_only_for_that():
    assert "reader.getCache(start_offset, end_offset)" in inspect.getsource(runner.partitions_func)
    asked = "".join(inspect.getsource(f) for f in (runner.check_support_func, runner.report_latest_offset_func))
    assert asked.count("_SimpleStreamReaderWrapper") == 2
    assert issubclass(HoldfastStreamReader, runner._SimpleStreamReaderWrapper)


def test_a_sinks_plan_is_in_the_store_before_its_partitions_are_known_and_its_commit_before_rows_are_let_go(
    reader, monkeypatch
):
    done: list[Any] = []
    here, there = {"u0.0": [3, 5]}, {"u0.0": [4, 6]}
    latest = [here]
    monkeypatch.setattr(
        datasource, "SinkKeeper", lambda settings: SimpleNamespace(keep=lambda: done.append("kept"), close=lambda: None)
    )
    reader.settings = msgspec.structs.replace(reader.settings, keeps=True)
    reader._follower.acknowledge = lambda offset: done.append(offset)
    reader._follower.latest = lambda start, rows_max: (latest[0], int(latest[0] != start))
    reader._follower.wait = lambda seconds: None
    assert reader.latestOffset(here, ReadAllAvailable()) == here
    assert done == ["kept", here], "nothing is new: the last commit is told by itself"
    done.clear()
    latest[0] = there
    assert reader.latestOffset(here, ReadAllAvailable()) == there
    assert done == [], "it goes with the plan of what comes next"
    reader.partitions(here, there)
    assert done == ["kept", here]
    done.clear()
    reader.commit(there)
    assert done == []

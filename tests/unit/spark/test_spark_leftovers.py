"""Output of an earlier run is never written into: Spark would drop rows there, and late rows would be overwritten."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from holdfast.errors import ConfigError
from holdfast.model.plan import StagePlan
from holdfast.pipeline.checks import SinkFacts
from holdfast.spark import checkpoint
from holdfast.spark.leftovers import check_late, check_sink
from holdfast.spark.sink import SinkStage


@pytest.fixture
def out(tmp_path):
    """Where an earlier run wrote two batches."""
    log = tmp_path / "out" / "_spark_metadata"
    log.mkdir(parents=True)
    for name in ("0", "1", ".1.crc"):
        (log / name).write_text("v1")
    return tmp_path / "out"


def facts(path: object, format_: str = "parquet") -> SinkFacts:
    return SinkFacts(format_, {"path": str(path)})


@pytest.mark.parametrize("written", ["{}", "file:{}", "file://{}", "file://localhost{}"])
def test_a_file_sink_over_an_earlier_runs_rows_is_refused(out, tmp_path, written):
    with pytest.raises(ConfigError, match="sink out_0") as refused:
        check_sink("out_0", facts(written.format(out)), tmp_path / "checkpoint")
    assert str(out / "_spark_metadata") in refused.value.detail
    assert "dropped" in refused.value.detail
    assert str(out) in refused.value.hint


def test_a_relative_path_is_looked_for_where_the_run_was_called(out, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError):
        check_sink("out_0", facts("out/", "JSON"), tmp_path / "checkpoint")


def test_a_log_that_spark_has_made_compact_counts(tmp_path):
    (tmp_path / "out" / "_spark_metadata").mkdir(parents=True)
    (tmp_path / "out" / "_spark_metadata" / "9.compact").write_text("v1")
    with pytest.raises(ConfigError):
        check_sink("out_0", facts(tmp_path / "out"), tmp_path / "checkpoint")


def test_a_sink_that_goes_on_after_a_failure_goes_on(out, tmp_path):
    """Batch 0 may be in the sink, but not yet in Spark's commit log: what it has planned says that it is its own."""
    (tmp_path / "checkpoint" / "offsets").mkdir(parents=True)
    (tmp_path / "checkpoint" / "offsets" / "0").write_text("v1")
    check_sink("out_0", facts(out), tmp_path / "checkpoint")


@pytest.mark.parametrize("path", ["hdfs://host/out", "s3a://bucket/out", "nowhere"])
def test_what_is_elsewhere_or_not_there_is_left_alone(path, tmp_path):
    check_sink("out_0", facts(path), tmp_path / "checkpoint")


def test_an_empty_log_and_sinks_that_are_no_files_are_left_alone(out, tmp_path):
    (tmp_path / "new" / "_spark_metadata").mkdir(parents=True)  # a first start that died before its first batch
    check_sink("out_0", facts(tmp_path / "new"), tmp_path / "checkpoint")
    check_sink("out_0", facts(out, "delta"), tmp_path / "checkpoint")


def test_a_sinks_own_process_refuses_before_its_query_starts(out, tmp_path):
    plan = SimpleNamespace(query="q")
    stage = StagePlan(id="out_0", kind="sink")
    made = SinkStage(plan, stage, tmp_path / "run", lambda event, **fields: None)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="earlier run"):
        made.check(facts(out))
    assert checkpoint.is_new(made.checkpoint)


def test_late_rows_of_an_earlier_run_are_not_overwritten(tmp_path):
    check_late("talkers_in", tmp_path / "nowhere")
    (tmp_path / "batch=3.parquet").write_text("rows")
    with pytest.raises(ConfigError, match="late rows of an earlier run"):
        check_late("talkers_in", tmp_path)

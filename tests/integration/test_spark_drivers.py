"""Several stages in one driver process: one query fails or hangs while the others go on; the JVM of all is killed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from support.packets import Traffic
from support.run import PipelineRun
from test_spark_end_to_end import PIPELINE, assert_sink_holds, started

pytestmark = [pytest.mark.spark, pytest.mark.slow]

#: A second sink, which fails, hangs or eats the memory of its JVM as long as a file says so.
TEXT = (
    PIPELINE
    + """
def touchy(df, batch):
    import pathlib, time
    if pathlib.Path("{base}/fail").exists():
        raise ValueError("the sink is told to fail")
    while pathlib.Path("{base}/hang").exists():
        time.sleep(0.1)
    if pathlib.Path("{base}/eat").exists():
        time.sleep(1)
        df.sparkSession._jvm.java.util.ArrayList(10**9)
    df.count()

talkers.write(lambda df: df.writeStream.foreachBatch(touchy))
"""
)
STAGES = ("talkers_in", "out_0", "out_1")


def pids(run: PipelineRun) -> set[int]:
    drivers = [run.driver(stage) for stage in STAGES]
    return {driver["pid"] for driver in drivers if driver is not None}


def count(run: PipelineRun, event: str, stage: str) -> int:
    return len(run.all_events(event, stage))


def goes_on(run: PipelineRun, *stages: str) -> None:
    for stage in stages:
        before = count(run, "stage-batch", stage)
        run.wait(
            f"batches of {stage}", lambda stage=stage, before=before: count(run, "stage-batch", stage) > before + 1
        )


def one_query_fails(run: PipelineRun, base: Path, pid: int) -> None:
    (base / "fail").touch()
    told = run.wait("a failure", lambda: run.all_events("stage-failed", "out_1"))[-1]
    assert "the sink is told to fail" in told["detail"]
    running = count(run, "stage-running", "out_1")
    goes_on(run, "talkers_in", "out_0")
    (base / "fail").unlink()
    run.wait_running("out_1", after=running)
    goes_on(run, "out_1")
    assert pids(run) == {pid}
    assert [count(run, "stage-running", stage) for stage in ("talkers_in", "out_0")] == [1, 1]
    epochs = [event["epoch"] for event in run.all_events("stage-running", "out_1")]
    assert epochs == sorted(set(epochs))


def the_jvm_dies(run: PipelineRun, pid: int) -> None:
    before = {stage: count(run, "stage-running", stage) for stage in STAGES}
    run.kill(run.jvm_of(pid))
    for stage in STAGES:
        run.wait_running(stage, after=before[stage])
    assert {event["stage"] for event in run.all_events("stage-died")} == set(STAGES)
    (new,) = pids(run)
    assert new != pid


def one_query_hangs(run: PipelineRun, base: Path) -> None:
    """Its function never returns: it is left behind, and the process with it when the others are through."""
    (base / "hang").touch()
    time.sleep(2)
    goes_on(run, "talkers_in", "out_0")
    (base / "hang").unlink()
    goes_on(run, "out_1")


def test_stages_of_one_node_share_a_jvm_and_nothing_else(spark, tmp_path):
    run = started(tmp_path, spark, TEXT, nodes=1)
    traffic = Traffic(tmp_path / "in")
    try:
        for stage in STAGES:
            run.wait_running(stage)
        (pid,) = pids(run)
        goes_on(run, *STAGES)
        one_query_fails(run, tmp_path, pid)
        one_query_hangs(run, tmp_path)
        the_jvm_dies(run, pid)
        goes_on(run, *STAGES)
        traffic.stop()
        run.finish(["out_0", "out_1"])
        rows = spark.read.schema("ts timestamp, src string, bytes long").json(str(tmp_path / "in"))
        assert_sink_holds(spark, tmp_path, rows)
    finally:
        traffic.stop()
        run.close()


@pytest.mark.long
def test_a_stage_that_eats_the_memory_of_two_jvms_gets_one_of_its_own(spark, tmp_path):
    run = started(tmp_path, spark, TEXT, nodes=1)
    traffic = Traffic(tmp_path / "in")
    try:
        goes_on(run, *STAGES)
        (tmp_path / "eat").touch()
        run.wait("it to be known", lambda: run.all_events("stage-alone"), 300)
        others = ("talkers_in", "out_0")
        ends = len(run.all_events("driver-end"))
        goes_on(run, *others)
        run.wait("its own JVM to end", lambda: len(run.all_events("driver-end")) > ends)
        goes_on(run, *others)
        (tmp_path / "eat").unlink()
        goes_on(run, "out_1")
        assert {event["stage"] for event in run.all_events("stage-alone")} == {"out_1"}
        drivers = {stage: run.driver(stage) or {} for stage in STAGES}
        assert [drivers[stage]["process"] for stage in STAGES] == ["driver", "driver", "alone-out_1"]
        assert len(pids(run)) == 2
    finally:
        traffic.stop()
        run.close()

"""Stages and standbys that share JVMs: a node is killed, a drain waits for what is warm, one stage hangs or fails."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from support.packets import Traffic
from support.run import PipelineRun
from test_spark_drivers import STAGES, TEXT, count, goes_on
from test_spark_end_to_end import assert_sink_holds, started

from holdfast.cli.watch import failures_of
from holdfast.model.ids import name_of

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]

SCHEMA = "ts timestamp, src string, bytes long"


def places(run: PipelineRun) -> dict[str, dict]:
    newest = max(run.statuses().values(), key=lambda status: status["version"])
    return {asset: place for asset, place in newest["places"].items() if place["stage"]}


def standby(run: PipelineRun, stage: str) -> dict:
    """What the node says of it that the record names."""
    statuses = run.statuses()
    home = name_of(places(run)[stage]["backup"] or "")
    return {**statuses.get(home, {}).get("drivers", {}).get(stage, {}), "node": home}


def wait_until_warm(run: PipelineRun, *stages: str) -> None:
    for stage in stages:
        run.wait(f"a warm standby of {stage}", lambda stage=stage: standby(run, stage).get("warmth") == "warm", 300)


def jvms(run: PipelineRun) -> dict[str, int]:
    found = {}
    for name, process in run.processes.items():
        if process.poll() is None:
            below = psutil.Process(process.pid).children(recursive=True)
            found[name] = sum(one.name() == "java" for one in below)
    return found


def assert_every_start_is_a_new_epoch(run: PipelineRun) -> None:
    for stage in STAGES:
        epochs = [event["epoch"] for event in sorted(run.all_events("stage-running", stage), key=lambda e: e["time"])]
        assert epochs == sorted(set(epochs)), f"{stage}: {epochs}"


def a_node_dies(run: PipelineRun) -> None:
    """The node that runs the source."""
    wait_until_warm(run, *STAGES)
    assert set(jvms(run).values()) <= {0, 1}
    home = name_of(places(run)["talkers_in"]["primary"])
    moved = [stage for stage in STAGES if name_of(places(run)[stage]["primary"]) == home]
    waiting = {stage: standby(run, stage) for stage in moved}
    assert home not in {told["node"] for told in waiting.values()}
    assert all(told["take_over_s"] > 0 for told in waiting.values())
    before = {stage: count(run, "stage-running", stage) for stage in moved}
    run.processes[home].kill()
    for stage in moved:
        run.wait_running(stage, after=before[stage])
        now = run.driver(stage)
        assert now is not None
        # the very process that stood by, and not a new one
        assert (now["node"], now["pid"]) == (waiting[stage]["node"], waiting[stage]["pid"])
    goes_on(run, *STAGES)
    run.start(home)
    run.wait("the node to be back", lambda: home in run.statuses() and len(run.statuses()) == len(run.names))


def a_drain_waits(run: PipelineRun) -> None:
    """It moves a stage to a standby that is warm, and while that is not so the stage stays and goes on."""
    home = name_of(places(run)["out_0"]["primary"])
    warm = standby(run, "out_0").get("warmth") == "warm"
    run.call("drain", {"name": home})
    if not warm:
        goes_on(run, "out_0")
    run.wait("the stage to be elsewhere", lambda: name_of(places(run)["out_0"]["primary"]) != home, 300)
    taken = [e for e in run.all_events("stage-start", "out_0") if "takes over" in e["text"]]
    assert taken
    assert any(e["time"] < taken[-1]["time"] for e in run.all_events("stage-ready", "out_0"))
    goes_on(run, *STAGES)


def test_standbys_in_shared_jvms_take_over_when_a_node_dies_and_when_one_is_drained(spark, tmp_path):
    run = started(tmp_path, spark, TEXT, nodes=3, standby=True, standby_driver="shared", standby_delay="1 s")
    traffic = Traffic(tmp_path / "in")
    try:
        goes_on(run, *STAGES)
        a_node_dies(run)
        wait_until_warm(run, "talkers_in")
        a_drain_waits(run)
        assert set(jvms(run).values()) <= {0, 1}
        traffic.stop()
        run.finish(["out_0", "out_1"], 300)
        assert_sink_holds(spark, tmp_path, spark.read.schema(SCHEMA).json(str(tmp_path / "in")))
        assert_every_start_is_a_new_epoch(run)
    finally:
        traffic.stop()
        run.close()


def it_fails_from_its_first_row_on(run: PipelineRun, base: Path) -> None:
    told = run.wait("failures", lambda: run.all_events("stage-failed", "out_1")[1:], 300)[-1]
    assert "the sink is told to fail" in told["detail"]
    goes_on(run, "talkers_in", "out_0")
    (failure,) = run.wait("status to name it", lambda: failures_of(places(run), run.statuses()))
    assert failure.stage == "out_1"
    assert "the sink is told to fail" in failure.text
    assert not run.all_events("stage-failed", "out_0") + run.all_events("stage-failed", "talkers_in")
    (base / "hang").touch()
    (base / "fail").unlink()


def it_never_returns(run: PipelineRun, base: Path) -> None:
    """It is named after half a minute; drained, it is left behind, and hangs where it goes until it may go on."""
    told = run.wait("it to be told", lambda: run.all_events("stage-waiting", "out_1"))[-1]
    assert "A function that never returns must be stopped by hand" in told["detail"]
    goes_on(run, "talkers_in", "out_0")
    home = name_of(places(run)["out_1"]["primary"])
    lives = {stage: count(run, "stage-running", stage) for stage in STAGES}
    run.call("drain", {"name": home})
    run.wait("it to be left behind", lambda: run.all_events("stage-stuck", "out_1"))
    run.wait_running("out_1", after=lives["out_1"])
    goes_on(run, "talkers_in", "out_0")
    (base / "hang").unlink()
    goes_on(run, "out_1")


def test_a_stage_that_fails_at_its_first_row_or_never_returns_is_named_and_the_others_go_on(spark, tmp_path):
    (tmp_path / "fail").touch()
    run = started(tmp_path, spark, TEXT, nodes=2)
    traffic = Traffic(tmp_path / "in")
    try:
        it_fails_from_its_first_row_on(run, tmp_path)
        it_never_returns(run, tmp_path)
        traffic.stop()
        run.finish(["out_0", "out_1"], 300)
        assert_sink_holds(spark, tmp_path, spark.read.schema(SCHEMA).json(str(tmp_path / "in")))
        assert_every_start_is_a_new_epoch(run)
    finally:
        traffic.stop()
        run.close()

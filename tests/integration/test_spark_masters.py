"""Stages on a real standalone cluster, and stages whose standby takes over."""

from __future__ import annotations

import pytest
from support.packets import Traffic, write_json
from support.run import PipelineRun
from support.standalone import Standalone
from test_spark_end_to_end import assert_sink_holds, started

pytestmark = [pytest.mark.spark, pytest.mark.slow]
SCHEMA = "ts timestamp, src string, bytes long"


def test_stage_and_sink_run_on_a_standalone_cluster(spark, tmp_path):
    (tmp_path / "in").mkdir()
    for i in range(12):
        write_json(tmp_path / "in", i)
    cluster = Standalone(tmp_path / "cluster")
    conf = {
        "spark.driver.memory": "600m",
        "spark.executor.memory": "500m",
        "spark.executor.cores": "1",
        "spark.cores.max": "2",
    }
    run = started(tmp_path, spark, master=cluster.url, conf=conf)
    try:
        run.wait_running("talkers_in")
        run.wait_running("out_0")
        run.finish(["out_0"])
        assert_sink_holds(spark, tmp_path, spark.read.schema(SCHEMA).json(str(tmp_path / "in")))
        applications = {e.partition("/")[0] for e in cluster.executors()}
        assert len(applications) == 2
        assert len(cluster.executors()) >= 4
    finally:
        run.close()
        cluster.close()


def readers(run: PipelineRun) -> set[str]:
    """Who holds rows back."""
    shards = [shard for status in run.statuses().values() for shard in status["shards"].values()]
    return {c for u in shards if u["role"] == "primary" for queue in u["outputs"].values() for c in queue["acks"]}


@pytest.mark.long
def test_a_warm_standby_takes_over_from_a_driver_that_dies(spark, tmp_path):
    run = started(tmp_path, spark, standby=True)
    traffic = Traffic(tmp_path / "in")
    try:
        run.wait_running("talkers_in")
        run.wait("the standby of the stage", lambda: run.all_events("stage-ready", "talkers_in"))
        run.wait("the standby of the sink", lambda: run.all_events("stage-ready", "out_0"))
        run.wait("the warm-up to let go of its lease", lambda: readers(run) == {"out_0"}, 10)
        for stage in ("talkers_in", "out_0"):
            driver = run.driver(stage)
            assert driver is not None
            run.kill(driver["pid"])

            def batches(stage: str = stage, epoch: int = driver["epoch"]) -> bool:
                now = run.driver(stage)
                return bool(now and now["epoch"] > epoch and now["last"].get("event") == "batch")

            run.wait("the first batch of the standby", batches)
            started_by = [e["text"] for e in run.all_events("stage-start", stage) if e["epoch"] > driver["epoch"]]
            assert f"The standby of {stage} takes over." in started_by
        traffic.stop()
        run.finish(["out_0"])
        assert_sink_holds(spark, tmp_path, spark.read.schema(SCHEMA).json(str(tmp_path / "in")))
    finally:
        traffic.stop()
        run.close()

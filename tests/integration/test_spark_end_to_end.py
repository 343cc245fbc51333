"""Source, nodes and sink as real processes, killed one by one: the sink holds what a Spark batch job computes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from support.packets import Traffic
from support.run import PipelineRun

from holdfast.pipeline import load, plan

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PIPELINE = """
import holdfast as hf

pipeline = hf.Pipeline("netmon")
packets = pipeline.read(
    lambda spark: spark.readStream.schema("ts timestamp, src string, bytes long")
    .option("maxFilesPerTrigger", 4).json("{base}/in"),
    event_time="ts", watermark="2 seconds")
tcp = packets.map(lambda df: df.where("bytes > 100"))
talkers = tcp.window("10 seconds", every="1 second").by("src").agg(
    packets=hf.count(), bytes=hf.sum("bytes"), shards=4, name="talkers")
talkers.map(lambda df: df.where("packets > 3")).write(
    lambda df: df.writeStream.format("parquet").option("path", "{base}/out"))
"""


def started(tmp_path: Path, spark, text: str = PIPELINE, **settings) -> PipelineRun:
    (tmp_path / "in").mkdir(exist_ok=True)
    file = tmp_path / "netmon.py"
    file.write_text(text.replace("{base}", str(tmp_path)))
    return PipelineRun(tmp_path / "run", plan(load(file), spark), file, **settings)


def expected(spark, rows, late: Path):
    from pyspark.sql import functions as F

    rows = rows.where("bytes > 100")
    files = [str(f) for f in late.glob("*/batch=*.parquet")]
    if files:
        rows = rows.exceptAll(spark.read.parquet(*files).select(*rows.columns))
    groups = rows.groupBy(F.window("ts", "10 seconds", "1 second").alias("w"), "src")
    made = groups.agg(F.count("*").alias("packets"), F.sum("bytes").alias("bytes")).where("packets > 3")
    return made.selectExpr("w.start as window_start", "w.end as window_end", "src", "packets", "bytes")


def assert_sink_holds(spark, tmp_path: Path, rows) -> None:
    wanted = expected(spark, rows, tmp_path / "run" / "late")
    found = spark.read.parquet(str(tmp_path / "out"))
    assert found.exceptAll(wanted).toArrow().to_pylist() == []
    assert wanted.exceptAll(found).toArrow().to_pylist() == []
    assert found.count() > 0


@pytest.mark.long
def test_kill_9_of_every_process_of_spark_loses_and_doubles_nothing(spark, tmp_path):
    run = started(tmp_path, spark)
    traffic = Traffic(tmp_path / "in")
    try:
        run.wait_running("talkers_in")
        run.wait_running("out_0")
        run.wait("rows in the sink", lambda: list((tmp_path / "out").glob("*.parquet")))
        for stage, victim in (("talkers_in", "child"), ("out_0", "jvm"), ("talkers_in", "jvm"), ("out_0", "child")):
            before = len(run.all_events("stage-running", stage))
            driver = run.driver(stage)
            assert driver is not None
            run.kill(driver["pid"] if victim == "child" else run.jvm_of(driver["pid"]))
            run.wait_running(stage, after=before)
            time.sleep(1.0)
        traffic.stop()
        run.finish(["out_0"])
        rows = spark.read.schema("ts timestamp, src string, bytes long").json(str(tmp_path / "in"))
        assert_sink_holds(spark, tmp_path, rows)
        assert run.all_events("stage-late", "talkers_in")
        assert list((tmp_path / "run" / "late" / "talkers_in").glob("batch=*.parquet"))
    finally:
        traffic.stop()
        run.close()

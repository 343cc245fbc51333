"""Two operators with a stage of Spark between them, and a source that falls silent."""

from __future__ import annotations

import pytest
from support.packets import write_json
from test_spark_end_to_end import started
from test_spark_standbys import places, wait_until_warm

from holdfast.model.ids import name_of

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PIPELINE = """
import holdfast as hf

pipeline = hf.Pipeline("tops")
packets = pipeline.read(
    lambda spark: spark.readStream.schema("ts timestamp, src string, bytes long")
    .option("maxFilesPerTrigger", 2).json("{base}/in"),
    event_time="ts", watermark="2 seconds", idle="1 second")
talkers = packets.window("2 seconds").by("src").agg(packets=hf.count(), bytes=hf.sum("bytes"), shards=2, name="talkers")
tops = talkers.map(lambda df: df.where("packets > 3")).window("6 seconds").by("src").agg(
    most=hf.max("packets"), windows=hf.count(), shards=2, name="tops")
tops.write(lambda df: df.writeStream.format("parquet").option("path", "{base}/out"))
"""


def assert_tops_are_right(spark, tmp_path):
    from pyspark.sql import functions as F

    rows = spark.read.schema("ts timestamp, src string, bytes long").json(str(tmp_path / "in"))
    late = [str(f) for f in (tmp_path / "run" / "late").glob("*/batch=*.parquet")]
    rows = rows.exceptAll(spark.read.parquet(*late).select(*rows.columns)) if late else rows
    first = rows.groupBy(F.window("ts", "2 seconds").alias("w"), "src").agg(F.count("*").alias("packets"))
    first = first.where("packets > 3").selectExpr("timestamp_micros(unix_micros(w.end) - 1) as t", "src", "packets")
    second = first.groupBy(F.window("t", "6 seconds").alias("w"), "src")
    wanted = second.agg(F.max("packets").alias("most"), F.count("*").alias("windows"))
    wanted = wanted.selectExpr("w.start as window_start", "w.end as window_end", "src", "most", "windows")
    found = spark.read.parquet(str(tmp_path / "out"))
    assert found.exceptAll(wanted).toArrow().to_pylist() == []
    assert wanted.exceptAll(found).toArrow().to_pylist() == []
    assert found.count() > 0


def test_a_stage_between_operators_hands_on_rows_and_watermarks(spark, tmp_path):
    (tmp_path / "in").mkdir()
    for i in range(16):
        write_json(tmp_path / "in", i)
    run = started(tmp_path, spark, PIPELINE)
    try:
        run.wait_running("tops_in")

        def idle_batches():
            told = run.all_events("stage-batch", "talkers_in")
            return [e for e in told if e["progress"]["numInputRows"] == 0]

        run.wait("an idle source to move on", idle_batches)  # sealed by the stage itself, without Spark
        run.finish(["out_0"])
        assert_tops_are_right(spark, tmp_path)
    finally:
        run.close()


@pytest.mark.long
def test_a_query_that_waited_takes_over_between_operators(spark, tmp_path):
    """Its reader waits before Spark has looked at the stage's checkpoint, and goes on where the stage stood."""
    (tmp_path / "in").mkdir()
    for i in range(8):
        write_json(tmp_path / "in", i)
    run = started(tmp_path, spark, PIPELINE, nodes=3, standby=True, standby_delay="1 s")
    try:
        run.wait_running("tops_in")
        wait_until_warm(run, "tops_in", "out_0")
        home = name_of(places(run)["tops_in"]["primary"])
        before = len(run.all_events("stage-running", "tops_in"))
        run.processes[home].kill()
        for i in range(8, 16):
            write_json(tmp_path / "in", i)
        run.wait_running("tops_in", after=before)
        run.start(home)
        run.wait("the node to be back", lambda: len(run.statuses()) == len(run.names))
        run.finish(["out_0"], 300)
        assert_tops_are_right(spark, tmp_path)
        cold, warm = sorted(run.all_events("stage-running", "tops_in"), key=lambda event: event["time"])[:2]
        assert warm["seconds"] < cold["seconds"]  # it was there, and was only let go on
    finally:
        run.close()

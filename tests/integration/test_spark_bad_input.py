"""A file that cannot be parsed, a column that changes its type: one clear event, nothing lost, the rest keeps running.

In the same run, a Spark program of its own reads the stream with format("holdfast").
"""

from __future__ import annotations

import time

import pyarrow as pa
import pytest
from support.packets import write_parquet
from test_spark_end_to_end import PIPELINE, assert_sink_holds, started

from holdfast.spark import HoldfastDataSource

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def failures(run) -> list[dict]:
    return run.all_events("stage-failed", "talkers_in")


def test_bad_files_are_named_and_lose_nothing_and_a_foreign_program_reads_the_stream(spark, tmp_path):
    source = tmp_path / "in"
    source.mkdir()
    for i in range(4):
        write_parquet(source, i)
    run = started(tmp_path, spark, PIPELINE.replace(".json(", ".parquet("))
    query = None
    try:
        run.wait_running("talkers_in")
        run.wait("rows of the first files", lambda: run.all_events("stage-batch", "talkers_in"))

        spark.dataSource.register(HoldfastDataSource)
        frame = (
            spark.readStream.format("holdfast")
            .option("run", str(tmp_path / "run"))
            .option("stream", "talkers")
            .option("consumer", "foreign")
            .load()
        )
        assert frame.columns == ["window_start", "window_end", "src", "packets", "bytes"]
        writer = frame.writeStream.format("parquet").option("path", str(tmp_path / "foreign"))
        query = writer.option("checkpointLocation", str(tmp_path / "foreign-checkpoint")).start()

        (source / "00004.parquet").write_bytes(b"PAR1 this is no parquet file PAR1")
        run.wait("a failure", lambda: failures(run))
        told = failures(run)[-1]
        assert told["what"].startswith("stage talkers_in: cannot read file:")
        assert "00004.parquet" in told["what"]
        assert not run.all_events("stage-failed", "out_0")
        write_parquet(source, 4)
        run.wait_running("talkers_in", after=1)
        seen = len(failures(run))

        time.sleep(2)
        write_parquet(source, 5, {"bytes": pa.string()})
        run.wait("another failure", lambda: len(failures(run)) > seen)
        told = failures(run)[-1]
        assert "00005.parquet" in told["what"]
        assert "bytes" in told["detail"]
        write_parquet(source, 5)
        for i in range(6, 30):
            write_parquet(source, i)
        run.finish(["out_0"])
        assert_sink_holds(spark, tmp_path, spark.read.parquet(str(source)))
        query.processAllAvailable()
        unfiltered = spark.read.parquet(str(tmp_path / "foreign"))
        wanted = spark.read.parquet(str(tmp_path / "out"))
        assert unfiltered.where("packets > 3").exceptAll(wanted).count() == 0
        assert unfiltered.where("packets > 3").count() > 0
    finally:
        if query is not None:
            query.stop()
        run.close()

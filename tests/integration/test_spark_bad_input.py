"""A file that cannot be parsed, a column that changes its type, rows that no operator can hold: one clear event,
nothing lost, the rest keeps running.

In the same run, a Spark program of its own reads the stream with format("holdfast").
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.packets import write_parquet
from test_spark_end_to_end import PIPELINE, started

from holdfast.model.plan import FOREVER_US, NEVER_US
from holdfast.pipeline import load
from holdfast.pipeline.verify import verify
from holdfast.spark import HoldfastDataSource
from holdfast.spark.aside import set_bad_rows_max
from holdfast.spark.bad import clock_us

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def failures(run) -> list[dict]:
    return run.all_events("stage-failed", "talkers_in")


TEXT = (
    PIPELINE.replace(".json(", ".parquet(")
    .replace('watermark="2 seconds"', 'watermark="2 seconds", future_max="1 hour", bad_rows_max=2')
    .replace("bytes > 100", "bytes > 100 or src like 'bad%'")
)


def write_bad(source: Path, number: int, *times_us: int) -> None:
    """A file of good rows, and bad ones at these times."""
    (source.parent / "made").mkdir(exist_ok=True)
    file = write_parquet(source.parent / "made", number)
    table = pq.read_table(file)
    odd = {"ts": times_us, "src": [f"bad-{number}-{i}" for i in range(len(times_us))], "bytes": [1] * len(times_us)}
    odd["ts"] = pa.array(odd["ts"], pa.int64()).view(table.schema.field("ts").type)
    pq.write_table(pa.concat_tables([table, pa.table(odd, table.schema)]), file)
    os.replace(file, source / file.name)


def set_aside(run) -> list[str]:
    files = sorted((run.directory / "bad" / "talkers_in").glob("batch=*.parquet"))
    return sorted(src for file in files for src in pq.read_table(file)["src"].to_pylist())


def rows_that_no_operator_can_hold(run, source: Path) -> None:
    """Two may be set aside, a third stops the stage; with a higher limit it goes on, and survives a kill meanwhile."""
    write_bad(source, 6, FOREVER_US, clock_us() + 24 * 3_600_000_000)
    run.wait("two bad rows", lambda: set_aside(run) == ["bad-6-0", "bad-6-1"])
    write_bad(source, 7, NEVER_US)
    too_many = lambda: [told for told in failures(run) if "bad_rows_max" in told["what"]]  # noqa: E731
    told = run.wait("too many bad rows", too_many)[-1]
    assert told["what"] == "stage talkers_in: more rows are bad than bad_rows_max=2 allows"
    assert "2 before, and at least 1 in batch" in told["detail"]
    assert "For talkers, the event time is not in the years 1 to 9999: ts=-9223372036854775808 us" in told["detail"]
    assert pq.read_table(run.directory / "bad" / "talkers_in" / "refused.parquet")["src"].to_pylist() == ["bad-7-0"]
    running = len(run.all_events("stage-running", "talkers_in"))
    set_bad_rows_max(run.directory, "talkers_in", 10)
    attempt = lambda: list((run.directory / "bad" / "talkers_in").glob(".batch=*.tmp"))  # noqa: E731
    run.wait("the batch to be handed over", lambda: attempt() or len(set_aside(run)) > 2)
    run.kill(run.driver("talkers_in")["pid"])  # between writing and commit, or a little later
    run.wait_running("talkers_in", after=running + 1)


def test_bad_files_and_rows_are_named_and_lose_nothing_and_a_foreign_program_reads_the_stream(spark, tmp_path):
    source = tmp_path / "in"
    source.mkdir()
    for i in range(4):
        write_parquet(source, i)
    run = started(tmp_path, spark, TEXT)
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
        rows_that_no_operator_can_hold(run, source)
        for i in range(8, 30):
            write_parquet(source, i)
        run.finish(["out_0"])
        verdict = verify(load(tmp_path / "netmon.py"), run.plan, run.directory, spark)
        assert verdict.ok, verdict.text()
        assert set_aside(run) == ["bad-6-0", "bad-6-1", "bad-7-0"]
        assert [(stage.bad, stage.late > 0) for stage in verdict.stages] == [(3, True)]
        ledgers = [s["ledgers"]["talkers_in"] for s in run.statuses().values()]
        assert max(ledger["bad"] for ledger in ledgers) == 3
        reasons = {e["reason"] for e in run.all_events("stage-bad", "talkers_in")}
        assert reasons == {"the event time is not in the years 1 to 9999"}
        assert not run.all_events("stage-ahead", "talkers_in")
        query.processAllAvailable()
        unfiltered = spark.read.parquet(str(tmp_path / "foreign"))
        wanted = spark.read.parquet(str(tmp_path / "out"))
        assert unfiltered.where("packets > 3").exceptAll(wanted).count() == 0
        assert unfiltered.where("packets > 3").count() > 0
    finally:
        if query is not None:
            query.stop()
        run.close()

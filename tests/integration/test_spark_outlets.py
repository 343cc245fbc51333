"""One source for two chains of steps: one query reads for both, each with its own columns, late rows and bad rows."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import pytest
from test_spark_end_to_end import started

from holdfast.pipeline import load
from holdfast.pipeline.explain import describe, explain
from holdfast.pipeline.verify import verify
from holdfast.runtime.config import read_plan

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PIPELINE = """
import holdfast as hf

pipeline = hf.Pipeline("both")
packets = pipeline.read(
    lambda spark: spark.readStream.schema("ts timestamp, src string, bytes long")
    .option("maxFilesPerTrigger", 2).json("{base}/in"),
    event_time="ts", watermark="2 seconds", idle="1 second")
talkers = packets.window("2 seconds").by("src").agg(packets=hf.count(), bytes=hf.sum("bytes"), shards=2, name="talkers")
large = packets.map(lambda df: df.where("bytes > 50").selectExpr("ts", "upper(src) as src", "string(bytes) as bytes"))
heavy = large.window("4 seconds").by("src", "bytes").agg(packets=hf.count(), shards=2, name="heavy")
talkers.write(lambda df: df.writeStream.format("parquet").option("path", "{base}/out"))
heavy.write(lambda df: df.writeStream.format("parquet").option("path", "{base}/heavy"))
"""
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def write(folder: Path, number: int, moment: float, bad: bool = False) -> None:
    """Rows of two seconds, one of them far too late from the fifth file on, and one that no operator can hold."""
    rows = [(moment + i / 50, f"s{i % 7}", (i * 37 + number) % 100) for i in range(100)]
    rows += [(moment - 60, "late", 90), (moment - 60, "late", 10)] if number > 4 else []
    lines = [
        json.dumps({"ts": (START + dt.timedelta(seconds=at)).isoformat(), "src": src, "bytes": size})
        for at, src, size in rows
    ]
    lines += [json.dumps({"ts": "+294247-01-10T00:00:00Z", "src": "bad", "bytes": 99})] if bad else []
    part = folder / f".{number}"
    part.write_text("\n".join(lines) + "\n")
    part.rename(folder / f"{number:03}.json")


def test_two_chains_of_one_source_are_one_query_and_both_are_exact(spark, tmp_path):
    (tmp_path / "in").mkdir()
    for number in range(12):
        write(tmp_path / "in", number, 2.0 * number, bad=number == 7)
    run = started(tmp_path, spark, PIPELINE)
    try:
        run.wait_running("talkers_in")
        run.wait("half of it", lambda: len(run.all_events("stage-batch", "talkers_in")) >= 3)
        home = run.driver("talkers_in")
        assert home is not None
        run.processes[home["node"]].kill()
        run.start(home["node"])
        run.wait("the node to be back", lambda: len(run.statuses()) == len(run.names))
        run.finish(["out_0", "out_1"], 300)
    finally:
        run.close()
    plan = read_plan(tmp_path / "run" / "plan.json")
    assert [stage.id for stage in plan.stages if stage.kind == "source"] == ["talkers_in"]
    pipeline = load(tmp_path / "netmon.py")
    verdict = verify(pipeline, plan, tmp_path / "run", spark)
    assert verdict.ok, verdict.text()
    (stage,) = verdict.stages
    assert stage.late >= 2  # each row once for every chain that it is in
    assert stage.bad == 2
    assert all(sink.comparison.rows_found > 20 for sink in verdict.sinks)


def test_the_plan_says_that_one_query_reads_for_both(spark, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "p.py").write_text(PIPELINE.replace("{base}", str(tmp_path)))
    pipeline = load(tmp_path / "p.py")
    (source,) = (stage for stage in describe(pipeline)["stages"] if stage["kind"] == "source")
    assert source["feeds"] == ["talkers", "heavy"]
    assert source["outlets"] == ["talkers", "heavy"]
    assert "one query reads for talkers and heavy" in explain(pipeline, spark)

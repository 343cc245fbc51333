"""Ports with Spark's schemas: their plans, and what the audit says of their rows."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import ConfigError
from holdfast.model.plan import Plan
from holdfast.pipeline import plan
from holdfast.pipeline.verify import verify

pytestmark = pytest.mark.spark

SCHEMA = "ts timestamp, src string, bytes long, note string"


def pipeline(tmp_path, schema=SCHEMA, **options):
    p = hf.Pipeline("p")
    packets = p.port("packets", schema=schema, event_time="ts", watermark="2 s", **options)
    talkers = packets.window("10 s").by("src").agg(n=hf.count(), bytes=hf.sum("bytes"), name="talkers")
    talkers.write(lambda df: df.writeStream.format("parquet").option("path", str(tmp_path / "out")), name="out")
    return p


def test_a_port_is_planned_with_the_rows_it_takes(spark, tmp_path):
    made = plan(pipeline(tmp_path, late_to="/tmp/late"), spark)
    assert msgspec.json.decode(msgspec.json.encode(made), type=Plan) == made
    stage = made.stage("packets")
    assert (stage.kind, stage.delay_us, stage.event_time, stage.late_to) == ("port", 2_000_000, "ts", "/tmp/late")
    assert pa.ipc.read_schema(pa.py_buffer(stage.rows)).names == ["ts", "src", "bytes", "note"]
    given = made.operator("talkers").inputs[0]
    assert (given.source, given.by, given.partial) == ("packets", ("src",), True)
    assert pa.ipc.read_schema(pa.py_buffer(given.schema)).names == ["ts", "src", "bytes"]
    assert made.topology.stage["packets"].foreign


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ("ts timestamp, src sting, bytes long", "its schema cannot be read"),
        ("ts timestamp, src string, bytes long, tags array<int>", "column 'tags' has a type that cannot be held"),
        ("ts string, src string, bytes long", "event time 'ts' is not a timestamp"),
        ("ts timestamp, bytes long", "no column named 'src'"),
    ],
)
def test_a_schema_that_cannot_be_is_said_before_anything_starts(spark, tmp_path, schema, text):
    with pytest.raises(ConfigError, match=text):
        plan(pipeline(tmp_path, schema), spark)


def test_rows_of_a_port_are_compared_only_if_they_can_be_had_again(spark, tmp_path):
    unknown = pipeline(tmp_path)
    verdict = verify(unknown, plan(unknown, spark), tmp_path, spark)
    assert not verdict.ok
    assert "sink out: not compared: the rows of port packets came from another program" in verdict.text()

    rows = "values (timestamp'2026-01-01 00:00:01Z', 'a', 5L, ''), (timestamp'2026-01-01 00:00:02Z', 'a', 7L, '')"
    known = pipeline(tmp_path, batch=lambda spark: spark.sql(f"select * from {rows} as t(ts, src, bytes, note)"))
    right = "select timestamp'2026-01-01 00:00:00Z' as window_start, timestamp'2026-01-01 00:00:10Z' as window_end, "
    spark.sql(right + "'a' as src, 2L as n, 12L as bytes").write.parquet(str(tmp_path / "out"))
    verdict = verify(known, plan(known, spark), tmp_path, spark)
    assert verdict.ok, verdict.text()
    assert verdict.stages[0].rows == 2

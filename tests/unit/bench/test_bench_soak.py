"""What the soak calls flat, bounded and growing, what belongs to whom, and that its batch is its stream."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from bench.soak import is_ours, judged
from bench.soak.judge import judge, slope
from bench.soak.sample import folder_of, kind_of

HOUR = [10.0 * i for i in range(360)]


def noise(size: float) -> list[float]:
    chance = random.Random(1)
    return [chance.gauss(0, size) for _ in HOUR]


def test_a_slope_does_not_mind_outliers():
    values = [3.0 * t for t in HOUR]
    values[40], values[300] = 1e9, -1e9
    assert slope(HOUR, values) == pytest.approx(3.0, rel=0.01)
    assert slope([1.0, 1.0], [0.0, 5.0]) == 0.0


def test_what_wobbles_is_flat():
    found = judge(HOUR, [300 + n for n in noise(5)])
    assert found.verdict == "flat"
    assert found.start == pytest.approx(300, abs=10)


def test_what_rises_only_in_the_first_half_is_flat():
    assert judge(HOUR, [min(t, 1_500.0) for t in HOUR]).verdict == "flat"


def test_a_leak_grows_however_it_wobbles():
    found = judge(HOUR, [300 + 60 * t / 3600 + n for t, n in zip(HOUR, noise(5), strict=True)])
    assert found.verdict == "grows"
    assert found.per_hour == pytest.approx(60, rel=0.1)


def test_one_descriptor_a_minute_grows():
    assert judge(HOUR, [100 + t // 60 for t in HOUR], grain=1.0).verdict == "grows"


def test_what_rises_below_a_limit_that_is_kept_is_bounded():
    values = [t / 100 for t in HOUR]
    assert judge(HOUR, values, limit=40.0).verdict == "bounded"
    assert judge(HOUR, values, limit=30.0).verdict == "grows"


def test_what_fills_and_is_emptied_again_is_bounded():
    teeth = [(t % 1_500.0) for t in HOUR]
    assert judge(HOUR, teeth).verdict in ("flat", "bounded")


def test_a_megabyte_is_a_grain():
    assert judge(HOUR, [t / 3600 for t in HOUR], grain=1.0).verdict == "flat"


def test_only_what_has_a_unit_is_judged_and_the_sink_is_the_users():
    rows = [{"s": t, "nodes, MB": 300.0, "rows/s through": 1.0, "the user's sink, MB": t} for t in HOUR]
    found = judged(rows)
    assert set(found) == {"nodes, MB", "the user's sink, MB"}
    assert [name for name in found if not is_ours(name)] == ["the user's sink, MB"]


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        ("run/nodes/n0/journal", "journals"),
        ("run/nodes/n0/lives", "journals"),
        ("run/nodes/n0/events.1.jsonl", "events"),
        ("run/nodes/n0/logs/node.log", "logs"),
        ("run/nodes/n0/spill/7", "spill"),
        ("run/late/x/batch=1.parquet", "late"),
        ("run/checkpoints/x/offsets/1", "Spark's checkpoints"),
        ("run/plan.json", "settings"),
        ("run/nodes/n0/node.toml", "settings"),
        ("out/00000001.parquet", "the user's sink"),
        ("tmp/spark-1/x", "temporary"),
        ("arrivals.jsonl", ""),
    ],
)
def test_every_file_belongs_to_a_folder(path, folder):
    assert folder_of(Path(path)) == folder


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        (["/usr/bin/java", "-cp", "x", "org.apache.spark.deploy.SparkSubmit", "pyspark-shell"], "JVMs"),
        (["python", "-m", "holdfast.spark.daemon"], "Python workers"),
        (["python", "-m", "pyspark.sql.worker.x"], "Python workers"),
        (["python", "-m", "holdfast.spark.child"], "stage drivers"),
        (["python", "-m", "holdfast.runtime.node", "--config", "x"], "nodes"),
        (["python", "-I", "-S", "x/leash.py", "1", "python", "-m", "holdfast.runtime.node"], "guards"),
        (["sleep", "1"], ""),
    ],
)
def test_every_process_is_of_a_kind(command, kind):
    assert kind_of(command) == kind


def test_the_rows_of_a_stream_and_of_a_batch_are_the_same():
    source = pytest.importorskip("bench.soak.source")
    given = {"start_us": 1_000_000_000, "rate": 20_000, "keys": 50}
    whole = source.soaked(0, 30_000, **given)
    parts = [source.soaked(a, b, **given) for a, b in ((0, 9_999), (9_999, 10_001), (10_001, 30_000))]
    assert pa.Table.from_batches(parts).combine_chunks().to_batches()[0].equals(whole)
    micros = whole.column(0).cast(pa.int64()).to_pylist()
    behind = [i for i, m in enumerate(micros) if m < given["start_us"] + i * 50 - 1]
    assert behind == [0, 10_000, 20_000]

"""What of the prescriber touches Spark: `--sweep`, and reading events for checkpoint sizes."""

import csv

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.cli.main import main
from holdfast.errors import ConfigError
from holdfast.prescriber import Scenario
from holdfast.prescriber.emulator.sizes import grouped_count_sizes, read_with_arrow, read_with_spark
from holdfast.prescriber.recommend import front_runners
from holdfast.prescriber.sweep import sweep_file, winner_row

HEAD = "team,sla,window,checkpoint_size,input_rate,mtbf,rr_max\n"


def test_one_row_holds_the_winner_and_the_runner_up():
    row = winner_row(
        {
            "team": "a",
            "sla": "99.99%",
            "window": "10min",
            "checkpoint_size": "300MB",
            "input_rate": "2MB/s",
            "mtbf": "30d",
            "rr_max": None,
        }
    )
    first, second = front_runners(
        Scenario(sla=0.9999, window=600.0, checkpoint_size=3e8, input_rate=2e6, mtbf=2592000.0)
    )
    assert (row["winner"], row["cost"], row["runner_up"]) == (first.name, first.cost, second.name)
    assert row["error"] is None


def test_a_row_that_cannot_be_read_says_why_and_nothing_else():
    row = winner_row({"sla": "100%", "window": "10min", "input_rate": "2MB/s", "mtbf": "30d"})
    assert "between 0 and 1" in str(row["error"])
    assert row["winner"] is None


@pytest.mark.spark
def test_a_sweep_on_spark_gives_one_row_for_each_line_and_keeps_going_after_a_bad_one(tmp_path):
    lines = [f"t{i},{sla},{window},30MB,1MB/s,30d,{rr}\n" for i, (sla, window, rr) in enumerate(
        [("99%", "1min", ""), ("99.9%", "0", ""), ("99.99%", "1d", "3"), ("99.999%", "", "2")] * 5
    )]  # fmt: skip
    (tmp_path / "in.csv").write_text(HEAD + "".join(lines))
    with pytest.raises(SystemExit) as left:
        main(["prescribe", "--sweep", str(tmp_path / "in.csv"), "--out", str(tmp_path / "out.csv")])
    assert left.value.code == 0
    with open(tmp_path / "out.csv", newline="") as stream:
        rows = {row["team"]: row for row in csv.DictReader(stream)}
    assert len(rows) == 20
    assert rows["t0"]["winner"] == "replay"
    assert "window" in rows["t1"]["error"]
    assert rows["t1"]["winner"] == ""
    assert float(rows["t2"]["rr"]) <= 3.0
    assert rows["t3"]["winner"] != "replay"


@pytest.mark.spark
def test_events_read_by_spark_are_those_read_by_arrow(tmp_path):
    users = [f"u{i % 7}" for i in range(100)]
    times = np.arange(100)[::-1] * 1_000_000
    pq.write_table(pa.table({"user_id": users, "ts_us": times}), tmp_path / "events.parquet")
    spark, arrow = read_with_spark(tmp_path / "events.parquet"), read_with_arrow(tmp_path / "events.parquet")
    assert np.array_equal(spark.times, arrow.times)
    assert np.array_equal(spark.users, arrow.users)
    assert list(arrow.times) == sorted(arrow.times)
    assert grouped_count_sizes(spark, 4, window_s=20.0, points=5).sizes.min() > 0


def test_a_file_that_is_no_parquet_is_refused(tmp_path):
    (tmp_path / "x.parquet").write_text("no")
    with pytest.raises(ConfigError, match="cannot read"):
        read_with_arrow(tmp_path / "x.parquet")


@pytest.mark.spark
def test_a_session_that_runs_already_is_used_and_left_alone(spark, tmp_path):
    """A sweep once stopped the caller's Spark; every later test of the same process failed on it."""
    pq.write_table(pa.table({"user_id": [1, 2], "ts_us": [10, 20]}), tmp_path / "events.parquet")
    read_with_spark(tmp_path / "events.parquet")
    (tmp_path / "in.csv").write_text(HEAD + "a,99%,1min,30MB,1MB/s,30d,\n")
    before = spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert sweep_file(str(tmp_path / "in.csv"), str(tmp_path / "out.csv")) == 1
    assert spark.range(3).count() == 3
    assert spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch") == before

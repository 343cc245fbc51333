"""Real-time stages on real nodes and a real broker: each row once, whatever is killed and whenever."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.kafka import Broker, TopicFeed
from support.packets import packets

from holdfast.cli.control import finish_run
from holdfast.cli.start import LocalRun, RunOptions, start_run
from holdfast.cli.story import read_events
from holdfast.cli.verify import verify_run
from holdfast.errors import HoldfastError
from holdfast.pipeline.replay import Progress

pytestmark = [pytest.mark.spark, pytest.mark.long]

PIPELINE = """
import holdfast as hf
from pyspark.sql import functions as F

pipeline = hf.Pipeline("netmon")
packets = pipeline.read(
    lambda spark: spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", "{address}").option("subscribe", "packets")
    .option("startingOffsets", "earliest").load()
    .select(F.from_json(F.col("value").cast("string"), "ts long, src string, bytes long").alias("packet"))
    .selectExpr("timestamp_micros(packet.ts) as ts", "packet.src", "packet.bytes"),
    event_time="ts", watermark="2 seconds"{more})
talkers = packets.map({step}).window("10 seconds", every="1 second").by("src").agg(
    packets=hf.count(), bytes=hf.sum("bytes"), shards=4, name="talkers")
talkers.write(lambda df: df.writeStream.format("parquet").option("path", "{out}"))
"""
KEPT = 'lambda df: df.where("bytes > 100")'
PYTHON = 'lambda df: df.where(F.udf(lambda b: b > 100, "boolean")("bytes"))'
LIMIT_S = 300.0
#: Long batches are short here, so that there are several of them.
CONF = ("spark.driver.memory=600m", "spark.holdfast.realTimeBatch=5 seconds")


@pytest.fixture
def broker(tmp_path) -> Iterator[Broker]:
    found = Broker(tmp_path / "kafka")
    yield found
    found.close()


def started_with(tmp_path: Path, broker: Broker, more: str = "", step: str = KEPT, **options: Any) -> LocalRun:
    file, text = tmp_path / "netmon.py", PIPELINE
    for name, value in (("address", broker.address), ("more", more), ("step", step), ("out", str(tmp_path / "out"))):
        text = text.replace(f"{{{name}}}", value)
    file.write_text(text)
    conf = (f"spark.jars={broker.connector}", *CONF)
    return start_run(file, RunOptions(nodes=3, directory=tmp_path / "run", conf=conf, **options))


def wait(what: str, condition: Callable[[], Any], limit_s: float = LIMIT_S) -> Any:
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        try:
            if found := condition():
                return found
        except HoldfastError:
            pass  # nodes are on their way up or down
        time.sleep(0.1)
    raise AssertionError(f"waited {limit_s:g} s for {what}")


def runs_now(started: LocalRun) -> tuple[str, dict]:
    """The node that runs the stage, and its process; fails while there is none."""
    running, _ = started.run.statuses()
    found = [(n, d) for n, s in running.items() if (d := s["drivers"].get("talkers_in", {})).get("epoch")]
    if not found:
        raise HoldfastError("nobody runs it")
    return max(found, key=lambda pair: pair[1]["epoch"])


def wait_for_rows(started: LocalRun, after: int, latency: str = "real-time") -> tuple[str, dict]:
    """Until a driver of a later epoch hands rows over."""

    def hands_over() -> tuple[str, dict] | None:
        node, process = runs_now(started)
        told = process["last"].get("progress") or {}
        return (node, process) if process["epoch"] > after and told.get("latency", "micro-batch") == latency else None

    return wait("the stage to hand rows over", hands_over)


def kept(feed: TopicFeed, before: int) -> int:
    rows = packets(0, rows=before) + [r for i in range(feed.number) for r in packets(i, rows=feed.rows)]
    return sum(row["bytes"] > 100 for row in rows)


def events(started: LocalRun, kind: str) -> list[dict]:
    return [event for event in read_events(started.run.path) if event["event"] == kind]


def test_kill_9_at_any_moment_leaves_every_row_once(broker, tmp_path):
    broker.create("packets", 3)
    broker.send("packets", packets(0, rows=300))
    rng = random.Random(os.environ.get("HOLDFAST_SEED", time.time()))
    started, feed = started_with(tmp_path, broker, ', latency="real-time"'), None
    try:
        _, process = wait_for_rows(started, 0)
        feed = TopicFeed(broker, "packets", every_s=0.05, rows=40)
        for kill in range(4):
            time.sleep(rng.uniform(0.1, 4.0))
            node, process = runs_now(started)
            if kill % 2:
                started.nodes.kill(node)
            else:
                os.kill(process["pid"], signal.SIGKILL)
            if kill == 1:
                broker.grow("packets", 4)
            wait_for_rows(started, process["epoch"])
        feed.wait_sent(feed.sent + 1_000)
        feed.stop()
        finish_run(started.run, limit_s=LIMIT_S)
    finally:
        started.stop()
        if feed is not None:
            feed.stop()
    verdict = verify_run(started.run)
    assert verdict["holds"], verdict["text"]
    assert verdict["rows_in"] == kept(feed, before=300)
    assert verdict["rows_out"] > 0
    assert events(started, "stage-micro-batches") == []
    ends = Progress(tmp_path / "run" / "checkpoints" / "talkers_in").offset(0)
    assert ends is not None
    assert sum(ends["packets"].values()) == feed.sent + 300
    assert list(ends["packets"]) == ["0", "1", "2", "3"]  # also the partition that came later


def test_a_broker_that_is_away_is_waited_for_and_no_silence_is_made_of_it(broker, tmp_path):
    broker.create("packets", 2)
    started = started_with(tmp_path, broker, ', latency="real-time", idle="3 seconds"')
    try:
        wait("the stage to run", lambda: events(started, "stage-running"))
        for number in range(3):
            broker.send("packets", packets(number, rows=200))
        wait("silence to move the watermark", lambda: _watermark(started) > 1_700_000_002_000_000 + 1_000_000)
        broker.kill()
        wait("word of the broker", lambda: events(started, "stage-waiting"))
        before = _watermark(started)
        time.sleep(5)
        assert _watermark(started) == before
        broker.start()
        for number in range(40, 42):
            broker.send("packets", packets(number, rows=200))
        wait("the rows after it", lambda: _watermark(started) > 1_700_000_038_000_000)
        finish_run(started.run, limit_s=LIMIT_S)
    finally:
        started.stop()
    verdict = verify_run(started.run)
    assert verdict["holds"], verdict["text"]
    assert verdict["rows_in"] == sum(r["bytes"] > 100 for n in (0, 1, 2, 40, 41) for r in packets(n, rows=200))


def _watermark(started: LocalRun) -> int:
    running, _ = started.run.statuses()
    found = [ledger["watermark_us"] for s in running.values() for ledger in s["ledgers"].values()]
    return max(found, default=0)


def test_what_cannot_be_in_real_time_says_why_and_runs_in_micro_batches(broker, tmp_path):
    broker.create("packets", 2)
    broker.send("packets", packets(0, rows=300))
    started = started_with(tmp_path, broker, step=PYTHON, latency="real-time", standby=False)
    try:
        explained = (tmp_path / "run" / "explain.txt").read_text()
        assert "in micro-batches, not in real time: PythonUDF holds rows back" in explained
        wait("the event", lambda: events(started, "stage-micro-batches"))
        wait("rows in the sink", lambda: list((tmp_path / "out").glob("*.parquet")) or runs_now(started)[1]["last"])
        finish_run(started.run, limit_s=LIMIT_S)
    finally:
        started.stop()
    verdict = verify_run(started.run)
    assert verdict["holds"], verdict["text"]
    assert verdict["rows_in"] == sum(row["bytes"] > 100 for row in packets(0, rows=300))

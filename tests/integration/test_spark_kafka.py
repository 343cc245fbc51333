"""A topic of a real Kafka broker as the source, by the way a user goes: run, kill -9, stop --finish, verify."""

from __future__ import annotations

import os
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
from holdfast.cli.verify import verify_run
from holdfast.errors import ConfigError, HoldfastError
from holdfast.pipeline.replay import Progress

pytestmark = [pytest.mark.spark, pytest.mark.long]

#: As in docs/kafka.md. Where to begin is not said: Spark's default is the end of the topic.
PIPELINE = """
import holdfast as hf
from pyspark.sql import functions as F

pipeline = hf.Pipeline("netmon")
packets = pipeline.read(
    lambda spark: spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", "{address}").option("subscribe", "packets").load()
    .select(F.from_json(F.col("value").cast("string"), "ts long, src string, bytes long").alias("packet"))
    .selectExpr("timestamp_micros(packet.ts) as ts", "packet.src", "packet.bytes"),
    event_time="ts", watermark="2 seconds")
talkers = packets.map(lambda df: df.where("bytes > 100")).window("10 seconds", every="1 second").by("src").agg(
    packets=hf.count(), bytes=hf.sum("bytes"), shards=4, name="talkers")
talkers.write(lambda df: df.writeStream.format("parquet").option("path", "{out}"))
talkers.write_kafka(topic="talkers", bootstrap="{address}", key="src", name="exact")
"""


@pytest.fixture
def broker(tmp_path) -> Iterator[Broker]:
    found = Broker(tmp_path / "kafka")
    yield found
    found.close()


def wait(what: str, condition: Callable[[], Any], limit_s: float = 180.0) -> Any:
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        try:
            if found := condition():
                return found
        except HoldfastError:
            pass  # nodes are on their way up or down
        time.sleep(0.1)
    raise AssertionError(f"waited {limit_s:g} s for {what}")


def driver(started: LocalRun, stage: str) -> tuple[str, dict]:
    """The node that runs a stage now, and its process; fails while there is none."""
    running, _ = started.run.statuses()
    found = [(n, s["drivers"][stage]) for n, s in running.items() if s["drivers"].get(stage, {}).get("epoch")]
    if not found:
        raise HoldfastError(f"nobody runs {stage}")
    return max(found, key=lambda pair: pair[1]["epoch"])


def wait_new_batch(started: LocalRun, stage: str, after: int) -> None:
    """Until a driver of a later epoch has handed a batch over."""

    def goes_on() -> bool:
        _, process = driver(started, stage)
        return process["epoch"] > after and process["last"].get("event") == "batch"

    wait(f"{stage} to go on", goes_on)


def test_a_topic_is_read_once_through_kill_9_and_equals_spark_batch_over_the_same_offsets(broker, tmp_path):
    broker.create("packets", 3)
    broker.send("packets", packets(0, rows=300))  # before the run: not of its input
    broker.create("talkers", 2)
    broker.send("talkers", packets(0, rows=20))  # nor of its output
    file = tmp_path / "netmon.py"
    file.write_text(PIPELINE.replace("{address}", broker.address).replace("{out}", str(tmp_path / "out")))
    home = tmp_path / "run"
    with pytest.raises(ConfigError, match="the source 'kafka' is not installed"):
        start_run(file, RunOptions(nodes=3, directory=home))
    conf = (f"spark.jars={broker.connector}", "spark.driver.memory=600m")
    started = start_run(file, RunOptions(nodes=3, directory=home, conf=conf, standby=False))
    feed = None
    try:
        wait("the stage to know where it begins", lambda: _has_begun(home))
        feed = TopicFeed(broker, "packets")
        wait("rows in the sink", lambda: list((tmp_path / "out").glob("*.parquet")))
        _, process = driver(started, "talkers_in")
        os.kill(process["pid"], signal.SIGKILL)
        wait_new_batch(started, "talkers_in", process["epoch"])
        broker.grow("packets", 4)
        feed.wait_sent(feed.sent + 1_000)
        node, process = driver(started, "talkers_in")
        started.nodes.kill(node)
        wait_new_batch(started, "talkers_in", process["epoch"])
        feed.wait_sent(feed.sent + 1_000)
        feed.stop()
        finish_run(started.run, limit_s=240.0)
    finally:
        started.stop()
        if feed is not None:
            feed.stop()
    verdict = verify_run(started.run)
    assert verdict["holds"], verdict["text"]
    kept = [row for i in range(feed.number) for row in packets(i, rows=feed.rows) if row["bytes"] > 100]
    assert [sink["not_compared"] for sink in verdict["sinks"]] == ["", ""]
    assert verdict["rows_in"] == len(kept)
    assert verdict["rows_late"] > 0
    assert verdict["rows_out"] > 0
    assert '"3":' in _last_offsets(home)  # the partition that came later

    broker.forget("packets", 0, _began(home)["0"] + 100)
    with pytest.raises(HoldfastError, match="cannot be verified") as failed:
        verify_run(started.run)
    assert "packets" in failed.value.detail


def _has_begun(home: Path) -> bool:
    return (home / "checkpoints" / "talkers_in" / "sources" / "0" / "0").exists()


def _began(home: Path) -> dict[str, int]:
    return Progress(home / "checkpoints" / "talkers_in").beginning(0)["packets"]


def _last_offsets(home: Path) -> str:
    return max((home / "checkpoints" / "talkers_in" / "offsets").glob("[0-9]*"), key=lambda p: int(p.name)).read_text()

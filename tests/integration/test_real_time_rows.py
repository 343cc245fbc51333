"""The Java class that pushes rows, built from its source by javac; and which plans could be real-time."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
from support.kafka import CONNECTOR, Broker, TopicFeed, jars

from holdfast.spark import real_time_jar
from holdfast.spark.checkpoint import source_offsets
from holdfast.spark.real_time_jar import NoJar, jar, with_jar

TESTS = Path(__file__).parents[1]


def answer(*arguments: str) -> Any:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent / "src")])}
    command = [sys.executable, "-m", "support.pushing", *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.spark
@pytest.mark.slow
def test_rows_of_every_type_come_as_spark_collects_them_and_a_stage_that_is_gone_fails_the_query(tmp_path):
    found = answer("rows", str(tmp_path))
    assert found["types"] == []
    assert found["same"]
    assert found["pieces"] > 1
    assert found["positions"] == {"t/0": 7_000, "t/1": 300}
    assert "cannot be reached" in found["error"]


@pytest.mark.spark
@pytest.mark.long
def test_only_narrow_plans_over_kafka_can_be_real_time_and_others_say_why(tmp_path):
    found = answer("plans", ",".join(jars(tmp_path, CONNECTOR, with_what_they_need=False)))
    why = found["why"]
    assert why["narrow"] == why["whole"] == ""
    assert "explode" in why["explode"]
    assert "PythonUDF" in why["python"]
    assert "join" in why["join"]
    assert "repartition" in why["repartition"]
    assert "minpartitions" in why["split"]
    assert "maxoffsetspertrigger" in why["limit"]
    assert "failOnDataLoss" in why["loss"]
    assert "together" in why["union"]
    assert "'rate-micro-batch'" in why["rate"]
    assert "'json'" in why["files"]
    assert found["columns"] == ["offset", "ts", *found["position"]]  # also where a column of the user's has such a name
    assert found["whole"][-3:] == found["position"]


class KilledLife:
    """A process that is one life of a driver."""

    def __init__(self, home: Path, broker: Broker) -> None:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent / "src")])}
        self.ledger = home / "ledger"
        words = ["-m", "support.real_time_life", str(home), broker.connector, broker.address, "t"]
        with (home / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *words], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )

    def wait(self, word: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == word

    def wait_for_batches(self, count: int, limit_s: float = 300.0) -> None:
        """More of them, made in real time."""
        before, until = len(self._made()), time.monotonic() + limit_s
        while len(self._made()) < before + count:
            assert self.process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)

    def _made(self) -> list[str]:
        return [line for line in self.ledger.read_text().splitlines() if '"positions": {"' in line]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def finish(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("finish\n")
        self.process.stdin.flush()
        self.wait("finished")
        self.process.wait()


@pytest.mark.spark
@pytest.mark.long
def test_drivers_that_are_killed_at_any_moment_take_each_row_of_a_topic_once_and_in_order(tmp_path):
    """On a real broker and a real Spark, with a file as the ledger: kills in the middle of long batches of Spark's, at
    their ends, in hand-overs and in starts; a filter; a partition that comes later."""
    home = tmp_path / "life"
    home.mkdir()
    broker, rng = Broker(tmp_path / "kafka"), random.Random()
    try:
        broker.create("t", 2)
        feed = TopicFeed(broker, "t", every_s=0.05, rows=5)
        for number in range(4):
            life = KilledLife(home, broker)
            life.wait("in real time")
            life.wait_for_batches(10)
            time.sleep(rng.uniform(0.0, 5.0))
            if number == 3:
                feed.stop()
                life.finish()
                break
            life.kill()
            if number == 1:
                broker.grow("t", 3)
        sent = feed.sent
    finally:
        broker.close()
    batches = [json.loads(line) for line in (home / "ledger").read_text().splitlines()]
    taken: dict[int, list[int]] = {}
    for batch in batches:
        for partition, offset, _ in batch["rows"]:
            taken.setdefault(partition, []).append(offset)
    (ends,) = source_offsets(batches[-1]["commit"]["plan"])
    assert ends is not None
    assert sum(ends["t"].values()) == sent
    for partition, end in ends["t"].items():
        assert taken.get(int(partition), []) == [at for at in range(end) if at % 7 != 3]
    assert set(ends["t"]) == {"0", "1", "2"}
    ages = sorted(age for batch in batches if batch["commit"]["positions"] for *_, age in batch["rows"])
    at = [f"p{part:g} {ages[int(len(ages) * part / 100)]:g}" for part in (50, 90, 99)]
    print(f"{sent} rows, {len(batches)} batches; ms from the broker to the ledger: {', '.join(at)}")


def test_the_class_is_built_once_and_again_when_its_source_is_another(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(real_time_jar, "_build", lambda file: built.append(file) or _write(file))
    built: list[Path] = []
    first = jar()
    assert jar() == first
    other = tmp_path / "RealTimeWriter.java"
    other.write_text(real_time_jar.SOURCE.read_text() + "// another\n")
    monkeypatch.setattr(real_time_jar, "SOURCE", other)
    assert jar() != first
    assert len(built) == 2


def _write(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(file, "w"):
        pass


def test_without_javac_there_is_a_reason_and_no_error(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    home = tmp_path / "jre"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("#!/bin/sh\n")
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NoJar, match="no javac"):
        jar()
    conf, why = with_jar({"spark.jars": "/a.jar"}, "local[*]")
    assert conf == {"spark.jars": "/a.jar"}
    assert "cannot be built: there is no javac" in why


def test_a_source_that_javac_refuses_is_a_reason(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    wrong = tmp_path / "RealTimeWriter.java"
    wrong.write_text("package holdfast; class RealTimeWriter {")
    monkeypatch.setattr(real_time_jar, "SOURCE", wrong)
    with pytest.raises(NoJar, match="javac refuses it"):
        jar()


@pytest.mark.parametrize("master", ["spark://h:7077", "yarn", "local-cluster[2,1,1024]"])
def test_where_tasks_are_in_other_processes_there_is_a_reason(master):
    conf, why = with_jar({}, master)
    assert conf == {}
    assert master in why

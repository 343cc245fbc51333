"""The Java class that pushes rows, built from its source by javac; and which plans could be real-time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from support.kafka import CONNECTOR, jars

from holdfast.spark import real_time_jar
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
    assert "'rate-micro-batch'" in why["rate"]
    assert "'json'" in why["files"]
    assert found["columns"] == ["offset", "ts", *found["position"]]  # also where a column of the user's has such a name
    assert found["whole"][-3:] == found["position"]


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

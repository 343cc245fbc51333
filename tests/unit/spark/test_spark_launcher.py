"""The Python that Spark starts: the same one, without Spark's zips on its path."""

from __future__ import annotations

import os
import subprocess
import sys

from holdfast.spark.launcher import launcher


def path_of(script: str, *entries: str) -> list[str]:
    program = "import os, sys; print(os.environ['PYTHONPATH']); print(sys.executable); print(sys.argv[1:])"
    said = subprocess.run(
        [script, "-c", program, "a b", "*"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entries)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert said[1:] == [sys.executable, "['a b', '*']"]
    return said[0].split(os.pathsep)


def test_spark_s_zips_are_left_out_and_all_else_stays(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache"))
    script = launcher()
    assert script.startswith(str(tmp_path))
    zips = ["/opt/spark/python/lib/pyspark.zip", "/opt/spark/python/lib/py4j-0.10-src.zip"]
    assert path_of(script, zips[0], "/mine", "/other/jobs.zip", zips[1], "/a dir") == [
        "/mine",
        "/other/jobs.zip",
        "/a dir",
    ]
    assert launcher() == script


def test_without_a_place_for_it_python_itself_is_started(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert launcher() == sys.executable


def test_a_python_that_the_user_names_is_wrapped_if_it_is_this_one(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert launcher(sys.executable) == launcher() != sys.executable
    assert launcher("/opt/another/python") == "/opt/another/python"
    assert launcher(launcher()) == launcher()  # a process below ours inherits it


def test_workers_that_plan_come_from_our_daemon_too(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "python").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "python").chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    said = [
        subprocess.run([launcher(), *arguments], capture_output=True, text=True, check=True).stdout.strip()
        for arguments in (("-m", "pyspark.daemon", "pyspark.sql.worker.x"), ("-m", "pyspark.other", "y"))
    ]
    assert said == ["-m holdfast.spark.daemon pyspark.sql.worker.x", "-m pyspark.other y"]

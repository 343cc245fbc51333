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

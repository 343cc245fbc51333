"""Where a Spark is, as its master says, and what a process of several stages gets."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from holdfast.jvm import find_java
from holdfast.runtime.config import NodeConfig
from holdfast.spark import session as module
from holdfast.spark.session import compiler_options, for_stages, is_here


@pytest.mark.parametrize(
    "master",
    ["local", "local[*]", "local-cluster[2,1,1024]", "spark://localhost:7077", "spark://127.0.0.1:1,127.0.1.1:2"],
)
def test_a_spark_that_is_all_on_this_machine(master):
    assert is_here(master)


@pytest.mark.parametrize(
    "master", ["yarn", "k8s://https://host:6443", "spark://host:7077", "spark://localhost:1,far:2"]
)
def test_a_spark_whose_executors_must_reach_the_driver_from_elsewhere(master):
    assert not is_here(master)


def test_a_process_of_many_stages_has_memory_and_slots_for_each():
    """A task that never ends keeps a slot: there is one for every stage beside those of the cores."""
    master, settings = for_stages("local[*]", 6)
    cores = int(settings["spark.default.parallelism"])
    assert master == f"local[{cores + 6}]"
    assert settings["spark.driver.memory"] == "2048m"
    assert settings["spark.scheduler.mode"] == "FAIR"
    master, settings = for_stages("local[2]", 2)  # as the user wants it
    assert master == "local[2]"
    assert set(settings) == {"spark.scheduler.mode"}
    assert for_stages("local[*]", 1, 1_024)[0] == f"local[{cores + 1 + 1_024}]"  # partitions of a real-time stage
    assert for_stages("local[2]", 1, 1_024)[0] == "local[2]"


@pytest.mark.parametrize("quick", [True, False])
def test_java_takes_what_it_is_told_about_compiling(quick):
    options = compiler_options(quick).split()
    assert options
    ran = subprocess.run(
        [str(Path(find_java()) / "bin" / "java"), *options, "-version"], capture_output=True, text=True, check=True
    )
    assert quick or "2 compiler directives added" in ran.stdout


def test_options_with_a_blank_are_left_out(monkeypatch, tmp_path):
    """A JVM would take the second half for an option of its own, and not start."""
    file = tmp_path / "a b" / "compiler.json"
    file.parent.mkdir()
    file.write_text("[]")
    monkeypatch.setattr(module, "_COMPILER", file)
    assert compiler_options(quick=False) == ""


@pytest.mark.parametrize(
    ("cores", "jit", "quick"), [(2, "auto", True), (4, "auto", False), (2, "full", False), (64, "quick", True)]
)
def test_where_cores_are_few_jvms_compile_little(monkeypatch, cores, jit, quick):
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert NodeConfig(name="n0", dir="d", endpoints={}, jit=jit).compiles_quickly == quick

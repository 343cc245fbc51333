"""Where a Spark is, as its master says, and what a process of several stages gets."""

from __future__ import annotations

import pytest

from holdfast.spark.session import for_stages, is_here


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

"""Where a stage's Spark is, as its master says."""

from __future__ import annotations

import pytest

from holdfast.spark.session import is_here


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

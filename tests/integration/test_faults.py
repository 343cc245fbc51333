"""One of the schedules of `python -m bench faults`, by the same way as a user goes: run, kill, finish, verify."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # the benches are no part of the package


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("seed", [1])
def test_processes_are_killed_and_the_sinks_equal_spark_batch(seed, tmp_path):
    from bench.faults import schedule

    row = schedule(seed, tmp_path)
    assert row["verdict"] == "equal", row
    assert row["rows"] > 0

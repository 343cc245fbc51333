"""One Spark session for all integration tests; commands that end with the test."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.planned import Command


@pytest.fixture(scope="session")
def spark() -> Iterator:
    from pyspark.sql import SparkSession

    from holdfast.jvm import find_java

    find_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    session = (
        SparkSession.builder.master("local[2]")
        .appName("holdfast-oracle")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.execution.arrow.pyspark.enabled", "true")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    started: list[Command] = []

    def start(*arguments: str) -> Command:
        started.append(Command(*arguments, cwd=tmp_path, planned=False))
        return started[-1]

    yield start
    for one in started:
        one.close()

"""All processes of a run are killed at once, once with their directory; it goes on from the store, and `verify` says
equal. The store is a folder, and an S3-like server."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.packets import TALKERS, Traffic
from support.planned import Command
from support.run import free_ports

from holdfast.cli.story import read_events

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SPARK_S = 300.0


def crash_all(one: Command) -> None:
    """kill -9 of everything at once: the command, its nodes, their drivers, the JVMs."""
    below = psutil.Process(one.process.pid).children(recursive=True)
    for pid in [one.process.pid, *(process.pid for process in below)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    one.end()
    assert not psutil.wait_procs(below, timeout=20)[1]


def told(home: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_events(home) if event["event"] == kind]


def files(base: Path) -> int:
    return len(list((base / "out").glob("*.parquet")))


def goes_on(one: Command, base: Path, checkpoints: int, written: int) -> None:
    """More rows reach the sink, and more checkpoints the store."""
    one.wait_until(lambda: files(base) > written, "rows in the sink", SPARK_S)
    one.wait_until(lambda: len(told(base / "run", "checkpoint")) >= checkpoints + 8, "checkpoints", SPARK_S)


def are_restored(home: Path) -> bool:
    texts = " ".join(event["text"] for event in told(home, "restored"))
    return all(f"talkers-{i} " in texts for i in range(4))


def test_a_run_goes_on_after_everything_was_killed_once_with_all_disks(tmp_path: Path, command: Callable[..., Command]):
    home, file = tmp_path / "run", tmp_path / "netmon.py"
    store = f"file://{tmp_path / 'store'}"
    (tmp_path / "in").mkdir()
    # files that have come while everything was down are few batches, also on a busy machine
    file.write_text(
        TALKERS.replace("{base}", str(tmp_path)).replace('"maxFilesPerTrigger", 4', '"maxFilesPerTrigger", 40')
    )
    traffic = Traffic(tmp_path / "in", every_s=0.5)
    arguments = ["--store", store, "--set", 'checkpoint_every = "2 s"', "--no-standby"]
    one = command("run", str(file), "--dir", str(home), "--nodes", "3", *arguments)
    goes_on(one, tmp_path, len(told(home, "checkpoint")), files(tmp_path))
    crash_all(one)
    one = command("run", str(home))
    goes_on(one, tmp_path, len(told(home, "checkpoint")), files(tmp_path))
    assert are_restored(home)
    crash_all(one)
    shutil.rmtree(home)
    one = command("run", str(home), "--resume", store)
    goes_on(one, tmp_path, 0, files(tmp_path))
    assert are_restored(home)
    traffic.stop()
    code, said = command("stop", str(home), "--finish").end(limit_s=SPARK_S)
    assert code == 0, said
    assert one.end(limit_s=SPARK_S)[0] == 0
    code, said = command("verify", str(home), "--json").end(limit_s=SPARK_S)
    assert code == 0, said
    code, said = command("run", str(home)).end()
    assert code == 2
    assert "has finished" in said


@pytest.fixture
def s3() -> Iterator[tuple[str, dict[str, str]]]:
    """An S3-like server with a bucket, and how to reach it."""
    import boto3
    from moto.server import ThreadedMotoServer

    (port,) = free_ports(1)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    keys = {"access_key_id": "somebody", "secret_access_key": "x", "region": "us-east-1"}
    client = boto3.client(
        "s3", endpoint_url=f"http://127.0.0.1:{port}", aws_access_key_id="somebody", aws_secret_access_key="x",
        region_name="us-east-1",
    )  # fmt: skip
    client.create_bucket(Bucket="runs")
    yield "s3://runs/netmon", {**keys, "endpoint": f"http://127.0.0.1:{port}"}
    server.stop()


@pytest.mark.long
def test_a_run_goes_on_without_its_disks_from_a_store_that_is_no_folder(
    tmp_path: Path, command: Callable[..., Command], s3: tuple[str, dict[str, str]]
):
    home, file = tmp_path / "run", tmp_path / "netmon.py"
    store, reach = s3
    (tmp_path / "in").mkdir()
    file.write_text(
        TALKERS.replace("{base}", str(tmp_path)).replace('"maxFilesPerTrigger", 4', '"maxFilesPerTrigger", 40')
    )
    traffic = Traffic(tmp_path / "in", every_s=0.5)
    conf = f"store_conf = {{ {', '.join(f'{key} = {json.dumps(value)}' for key, value in reach.items())} }}"
    arguments = ["--store", store, "--set", conf, "--set", 'checkpoint_every = "2 s"', "--no-standby"]
    one = command("run", str(file), "--dir", str(home), "--nodes", "2", *arguments)
    goes_on(one, tmp_path, 0, files(tmp_path))
    crash_all(one)
    shutil.rmtree(home)
    one = command("run", str(home), "--resume", store, "--set", conf)
    goes_on(one, tmp_path, 0, files(tmp_path))
    assert are_restored(home)
    traffic.stop()
    code, said = command("stop", str(home), "--finish").end(limit_s=SPARK_S)
    assert code == 0, said
    assert one.end(limit_s=SPARK_S)[0] == 0
    code, said = command("verify", str(home), "--json").end(limit_s=SPARK_S)
    assert code == 0, said

"""One run on Spark, attacked through its commands and its directory while rows flow: afterwards `verify` says equal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.nodes import PATHS
from support.packets import TALKERS, Traffic
from support.planned import LIMIT_S, Command

from holdfast.cli.story import read_events
from holdfast.errors import DAMAGED

pytestmark = [pytest.mark.spark, pytest.mark.slow]

#: A node of `run` that shall listen for other machines refuses to start: what a start does that fails late.
FAILS = ("--set", 'listen = "0.0.0.0"')
SPARK_S = 180.0

Start = Callable[..., Command]


def racing_starts(file: Path, home: Path, command: Start) -> None:
    starts = [("run", str(file), "--dir", str(home), *more) for more in ((), ("--fresh",), ("--fresh", *FAILS))]
    for one in [command(*arguments, planned=False) for arguments in starts]:
        code, said = one.end()
        assert code == 2, said
        assert f"a run is under way in {home}" in said


def signals_to_commands(home: Path, command: Start) -> None:
    """Whoever drains, looks or follows is killed in the middle of it."""
    for sign in (signal.SIGKILL, signal.SIGINT, signal.SIGTERM):
        drain = command("drain", "n1", str(home), planned=False)
        time.sleep(1.0)
        if drain.process.poll() is None:
            os.kill(drain.process.pid, sign)
        drain.end()
    events = command("events", str(home), "--follow", planned=False)
    events.wait_for("The driver of")
    events.end(signal.SIGKILL)
    reading, writing = os.pipe()
    os.close(reading)
    program = [sys.executable, "-c", "from holdfast.cli.main import entry; entry()", "status", str(home), "--json"]
    environment = {**os.environ, "PYTHONPATH": PATHS}
    subprocess.run(program, stdout=writing, stderr=subprocess.DEVNULL, env=environment, timeout=LIMIT_S, check=False)
    os.close(writing)


def damaged_journal(home: Path, one: Command) -> None:
    """A node dies, and finds noise in its journal when it is started again."""
    node = home / "nodes" / "n2"
    pid = json.loads((node / "lock").read_text())["pid"]
    os.kill(pid, signal.SIGSTOP)
    raw = bytearray((node / "journal").read_bytes())
    raw[len(raw) // 3] ^= 0xFF
    (node / "journal").write_bytes(raw)
    os.kill(pid, signal.SIGKILL)
    one.wait_until(lambda: damaged(home), f"n2 to end with {DAMAGED}")


def damaged(home: Path) -> bool:
    return any(e["event"] == "journal-damaged" and e["node"] == "n2" for e in read_events(home))


def test_a_run_that_was_attacked_from_all_sides_is_equal_to_batch(tmp_path: Path, command: Start):
    home, file = tmp_path / "run", tmp_path / "netmon.py"
    (tmp_path / "in").mkdir()
    file.write_text(TALKERS.replace("{base}", str(tmp_path)))
    traffic = Traffic(tmp_path / "in")
    one = command("run", str(file), "--dir", str(home), "--nodes", "4", "--no-standby", planned=False)
    one.wait_for("running in", SPARK_S)
    one.wait_until(lambda: list((tmp_path / "out").glob("*.parquet")), "rows in the sink", SPARK_S)
    racing_starts(file, home, command)
    signals_to_commands(home, command)
    damaged_journal(home, one)
    traffic.stop()
    waits = command("stop", str(home), "--finish", planned=False)
    waits.wait_for("waiting for")
    waits.end(signal.SIGINT)
    code, said = command("stop", str(home), "--finish", planned=False).end(limit_s=SPARK_S)
    assert code == 0, said
    code, said = one.end(limit_s=SPARK_S)
    assert code == 0, said
    code, said = command("verify", str(home), "--json", planned=False).end(limit_s=SPARK_S)
    assert code == 0, said

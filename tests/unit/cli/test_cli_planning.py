"""A user's file runs in the planner's process: what it prints must not get between the planner and the command, and
what it waits for must not keep the command from ending."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
import typer

from holdfast.cli import planning
from holdfast.cli.main import main
from holdfast.cli.planning import last_words, plan_file
from holdfast.cli.runs import read_run
from holdfast.cli.verify import verify_run
from holdfast.errors import ConfigError

#: Wrong in a way that shows before Spark is needed.
PRINTS = """
import holdfast as hf
print("{hello}")
first = hf.Pipeline("first")
second = hf.Pipeline("second")
rows = second.read(lambda spark: None, event_time="ts", watermark="1 s").window("10 s").agg(n=hf.count())
rows.write(lambda df: df)
print(second.explain())
"""


def test_a_file_that_prints_does_not_hide_its_own_mistake(tmp_path):
    file = tmp_path / "prints.py"
    file.write_text(PRINTS)
    with pytest.raises(ConfigError, match=r"prints\.py makes 2 pipelines"):
        plan_file(file, tmp_path / "run", query="q", conf={})


def a_run(home: Path, file: Path) -> None:
    """One that has ended, of a pipeline without stages."""
    described = {"pipeline": "p", "source": str(file), "cwd": str(home), "endpoints": {}}
    (home / "run.json").write_text(json.dumps(described))
    plan = {"pipeline": "p", "query": "q", "topology": {"shards": [], "stages": [], "readers": []}}
    (home / "plan.json").write_text(json.dumps({**plan, "operators": [], "stages": []}))


def test_verify_reads_its_own_answer_and_nothing_else(tmp_path):
    (tmp_path / "prints.py").write_text(PRINTS)
    a_run(tmp_path, tmp_path / "prints.py")
    with pytest.raises(ConfigError, match=r"prints\.py makes 2 pipelines"):
        verify_run(read_run(tmp_path))


@pytest.fixture
def waits(tmp_path) -> Path:
    """A file that never ends; it says which process waits."""
    file = tmp_path / "waits.py"
    file.write_text("import os, time\nopen('pid.new', 'w').write(str(os.getpid()))\nos.rename('pid.new', 'pid')\n")
    with file.open("a") as more:
        more.write("time.sleep(600)\n")
    a_run(tmp_path, file)
    return tmp_path


def pid_of(home: Path) -> int:
    until = time.monotonic() + 30
    while not (home / "pid").exists():
        assert time.monotonic() < until
        time.sleep(0.02)
    return int((home / "pid").read_text())


def test_verify_ends_when_its_command_is_told_to_and_leaves_no_process(waits):
    told = threading.Event()
    found: list[int] = []
    threading.Thread(target=lambda: (found.append(pid_of(waits)), told.set()), daemon=True).start()
    with pytest.raises(typer.Exit) as end:
        verify_run(read_run(waits), told)
    assert end.value.exit_code == 130
    assert not psutil.pid_exists(found[0])


def test_ctrl_c_ends_a_command_with_130_and_one_line(waits):
    command = [sys.executable, "-c", "from holdfast.cli.main import entry; entry()", "verify", str(waits), "--json"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=waits, start_new_session=True)
    waiting = pid_of(waits)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of its foreground
    _, told = process.communicate(timeout=30)
    assert (process.returncode, told) == (130, "interrupted\n")
    assert not psutil.pid_exists(waiting)


def test_planning_that_takes_too_long_has_failed_and_is_no_mistake(waits, monkeypatch, capsys):
    monkeypatch.setattr(planning, "PLAN_LIMIT_S", 1)
    monkeypatch.chdir(waits)
    with pytest.raises(SystemExit) as end:
        main(["run", str(waits / "waits.py"), "--explain"])
    assert end.value.code == 1
    assert "takes longer than 1 s" in capsys.readouterr().err


def test_why_a_jvm_did_not_start_is_told_and_not_only_that_it_did_not():
    java = 'Exception in thread "main" java.lang.RuntimeException: [unresolved dependency: org.x#y;1: not found]'
    said = f"resolving\n{java}\n\tat Main\nTraceback:\nPySparkRuntimeError: [JAVA_GATEWAY_EXITED] it exited"
    assert last_words(subprocess.CompletedProcess([], 1, "", said)) == java
    assert last_words(subprocess.CompletedProcess([], 1, "", "a\nb\n")) == "b"
    assert last_words(subprocess.CompletedProcess([], 7, "", "")) == "exit code 7"

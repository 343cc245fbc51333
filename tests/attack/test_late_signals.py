"""Signals after a run has come up: while it drains, finishes or stops, twice in a row, without a reader of its output.

Whatever the phase: the command ends in good order, with a code that says how, and leaves no process and no lock behind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from support.nodes import PATHS
from support.planned import LIMIT_S, Command, run_arguments

from holdfast.cli.story import read_events

pytestmark = pytest.mark.slow

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
#: Something failed while it ran: nobody reads what it says.
NO_READER = 1


def below(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def check_left_nothing(home: Path, started: list[psutil.Process]) -> None:
    assert not psutil.wait_procs(started, timeout=20)[1]
    assert not (home / "lock").exists()
    assert not list(home.glob("nodes/*/lock"))


def draining(one: Command, home: Path, command: Callable[..., Command]) -> Command:
    other = command("drain", "n1", str(home), planned=False)
    one.wait_until(lambda: other.process.poll() is not None or has_dropped(home), "n1 to be drained")
    return other


def has_dropped(home: Path) -> bool:
    return any(event["event"] in ("dropped", "demoted", "joining") for event in read_events(home))


def finishing(one: Command, home: Path, command: Callable[..., Command]) -> Command:
    """The stages of these runs do nothing, so they never finish."""
    other = command("stop", str(home), "--finish", planned=False)
    one.wait_until(lambda: any(event["event"] == "finish" for event in read_events(home)), "it to be told to finish")
    other.wait_for("waiting for")
    return other


PHASES = {"draining": draining, "finishing": finishing}
SHORT = [(signal.SIGTERM, "draining"), (signal.SIGINT, "finishing")]
LONG = [(sign, phase) for sign in SIGNALS for phase in PHASES if (sign, phase) not in SHORT]


@pytest.mark.parametrize(
    ("sign", "phase"), [*SHORT, *(pytest.param(*one, marks=pytest.mark.long) for one in LONG)], ids=str
)
def test_a_signal_ends_a_run_that_is_being_changed(sign, phase, tmp_path, command: Callable[..., Command]):
    home = tmp_path / "run"
    one = command(*run_arguments(home, nodes=3))
    one.wait_for("running in")
    started = below(one.process.pid)
    other = PHASES[phase](one, home, command)
    code, said = one.end(sign)
    assert code == 0, said
    assert "is stopped" in said
    assert "Traceback" not in said
    check_left_nothing(home, started)
    code, said = other.end()
    assert code in (0, 1), said  # what it wanted may have been done by then
    assert "Traceback" not in said
    assert phase == "draining" or (code == 1 and "error:" in said)


@pytest.mark.parametrize("second", SIGNALS, ids=str)
def test_a_second_signal_does_not_break_the_order_of_the_first(second, tmp_path, command: Callable[..., Command]):
    home = tmp_path / "run"
    one = command(*run_arguments(home, nodes=2))
    one.wait_for("running in")
    started = below(one.process.pid)
    os.kill(one.process.pid, signal.SIGTERM)
    for _ in range(3):
        if one.process.poll() is None:
            os.kill(one.process.pid, second)
    code, said = one.end()
    assert code == 0, said
    assert "Traceback" not in said
    check_left_nothing(home, started)


def test_ctrl_c_ends_a_stop_that_waits_and_leaves_the_run_alone(tmp_path, command: Callable[..., Command]):
    home = tmp_path / "run"
    one = command(*run_arguments(home, nodes=2))
    one.wait_for("running in")
    other = finishing(one, home, command)
    code, said = other.end(signal.SIGINT)
    assert code == 130, said
    assert "Traceback" not in said
    assert one.process.poll() is None
    code, said = one.end(signal.SIGTERM)
    assert code == 0, said


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT], ids=str)
def test_a_stop_that_waits_ends_of_other_signals_too(sign, tmp_path, command: Callable[..., Command]):
    home = tmp_path / "run"
    one = command(*run_arguments(home, nodes=1))
    one.wait_for("running in")
    code, said = finishing(one, home, command).end(sign)
    assert code == -sign, said  # it had started nothing: the kernel may end it
    assert one.end(signal.SIGTERM)[0] == 0


def piped(*arguments: str, cwd: Path, stderr: int | None = None) -> subprocess.Popen[bytes]:
    program = [sys.executable, str(Path(run_arguments.__code__.co_filename)), *arguments]
    environment = {**os.environ, "PYTHONPATH": PATHS}
    with (cwd / "stderr.log").open("wb") as log:
        return subprocess.Popen(
            program, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr or log, cwd=cwd, env=environment
        )


def test_a_run_whose_output_nobody_reads_any_more_stops_in_good_order(tmp_path):
    home = tmp_path / "run"
    one = piped(*run_arguments(home, "--json", nodes=2), cwd=tmp_path)
    assert one.stdout is not None
    try:
        assert b"started" in one.stdout.readline()
        started = below(one.pid)
        one.stdout.close()
        assert one.wait(LIMIT_S) == NO_READER
    finally:
        one.kill()
    assert "Traceback" not in (tmp_path / "stderr.log").read_text()
    check_left_nothing(home, started)


def test_a_run_whose_errors_nobody_reads_any_more_stops_in_good_order(tmp_path):
    """`holdfast run x.py 2>&1 | head -1`: the next line that it says finds nobody."""
    home = tmp_path / "run"
    one = piped(*run_arguments(home, nodes=1), cwd=tmp_path, stderr=subprocess.STDOUT)
    assert one.stdout is not None
    try:
        assert one.stdout.readline()
        one.stdout.close()
        assert one.wait(LIMIT_S) == NO_READER
    finally:
        one.kill()
    assert not (home / "lock").exists()


def test_a_command_whose_output_nobody_reads_says_nothing_more(tmp_path, command: Callable[..., Command]):
    home = tmp_path / "run"
    one = command(*run_arguments(home, nodes=1))
    one.wait_for("running in")
    reading, writing = os.pipe()
    os.close(reading)
    program = [sys.executable, "-c", "from holdfast.cli.main import entry; entry()", "status", str(home), "--json"]
    done = subprocess.run(
        program,
        stdout=writing,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": PATHS},
        timeout=LIMIT_S,
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (NO_READER, b"")
    assert one.end(signal.SIGTERM)[0] == 0

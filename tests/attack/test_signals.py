"""Every signal in every phase of `run`: it stops in good order, and leaves no process and no lock behind."""

from __future__ import annotations

import signal
from collections.abc import Callable

import psutil
import pytest
from support.planned import Command, run_arguments

pytestmark = pytest.mark.slow

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
#: What it has said when the phase is reached.
PHASES = {
    "planning": "planning",
    "preparing": "preparing kernels",
    "starting": "starting 2 nodes",
    "running": "running in",
}
#: One of each is enough in the short form: every signal once, every phase once.
SHORT = list(zip(SIGNALS, PHASES, strict=True))
LONG = [(sign, phase) for sign in SIGNALS for phase in PHASES if (sign, phase) not in SHORT]


def below(command: Command) -> list[psutil.Process]:
    return psutil.Process(command.process.pid).children(recursive=True)


def no_more(processes: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(processes, timeout=20)[1]


@pytest.mark.parametrize(
    ("sign", "phase"), [*SHORT, *(pytest.param(*one, marks=pytest.mark.long) for one in LONG)], ids=str
)
def test_a_signal_in_any_phase_ends_a_run_in_good_order(sign, phase, tmp_path, command: Callable[..., Command]):
    home = tmp_path / "run"
    one = command(*run_arguments(home, nodes=2))
    one.wait_for(PHASES[phase])
    started = below(one)
    code, said = one.end(sign)
    assert code in (0, 130), said  # 130: it had not come to run anything
    assert "Traceback" not in said
    assert no_more(started)
    assert not (home / "lock").exists()
    assert not list(home.glob("nodes/*/lock"))


def test_a_run_under_nohup_does_not_mind_a_closed_terminal(tmp_path, command: Callable[..., Command]):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # inherited, as nohup does it
    try:
        one = command(*run_arguments(tmp_path / "run", nodes=1))
    finally:
        signal.signal(signal.SIGHUP, before)
    one.wait_for("running in")
    one.process.send_signal(signal.SIGHUP)
    code, said = one.end(signal.SIGTERM)
    assert code == 0
    assert "is stopped" in said

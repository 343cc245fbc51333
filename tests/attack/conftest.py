"""Commands that a test starts end with it, however it ends, and hear signals however the tests were started."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.planned import Command


@pytest.fixture(autouse=True)
def as_in_a_terminal() -> Iterator[None]:
    """A shell's `&` and `nohup` have signals ignored by all that they start."""
    kept = {sign: signal.getsignal(sign) for sign in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)}
    for sign, handler in kept.items():
        if handler is signal.SIG_IGN:
            signal.signal(sign, signal.SIG_DFL)
    yield
    for sign, handler in kept.items():
        signal.signal(sign, handler)


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Any]:
    started: list[Command] = []

    def start(*arguments: str, **how: Any) -> Command:
        started.append(Command(*arguments, cwd=tmp_path, **how))
        return started[-1]

    yield start
    for one in started:
        one.close()

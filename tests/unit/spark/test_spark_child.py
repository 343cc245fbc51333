"""The process of a stage, without Spark: what it says while it waits."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.errors import HoldfastError
from holdfast.spark import child as module
from holdfast.spark.child import Ears, Mouth, StageProcess


class ActiveQuery:
    isActive = True


class Slow:
    """A role whose last batch takes long: a fail-over, or much to read."""

    query = ActiveQuery()

    def ask_jvm(self) -> None:
        pass

    failure = None

    def is_over(self) -> bool:
        return False

    def on_idle(self) -> None:
        pass

    def finish(self) -> bool:
        time.sleep(0.5)
        return True


class Standby(Slow):
    """Warms up until somebody says otherwise, and has finished when it is started."""

    def __init__(self) -> None:
        self.started: list[int] = []
        self.alive = True

    def ask_jvm(self) -> None:
        if not self.alive:
            raise ConnectionError("no JVM there")

    def warm_up(self, scratch: Path, told: Callable[[], bool]) -> None:
        until = time.monotonic() + 30
        while not told() and time.monotonic() < until:
            time.sleep(0.01)

    def start(self, epoch: int) -> bool:
        self.started.append(epoch)
        return False


def child(monkeypatch, tmp_path: Path, role: Slow) -> tuple[StageProcess, io.StringIO]:
    monkeypatch.setattr(module, "ALIVE_S", 0.05)
    monkeypatch.setattr("holdfast.spark.roles.role_of", lambda *_: role)
    made, out = StageProcess.__new__(StageProcess), io.StringIO()
    made.stage_id, made.mouth, made.ears = "s", Mouth(out), Ears()
    made.order, made.directory, made.plan, made.stage = {"epoch": None}, tmp_path, None, None  # pyright: ignore
    made.began, made.ask_jvm, made.jvm_gone = time.monotonic(), None, threading.Event()
    return made, out


def test_a_stage_that_takes_long_to_finish_still_says_that_it_lives(monkeypatch, tmp_path):
    """The node kills a child that has been silent for long, and would do so again in each of its lives."""
    made, out = child(monkeypatch, tmp_path, Slow())
    made.ears.finish.set()
    threading.Thread(target=made._pulse, daemon=True).start()
    assert made._watch(Slow(), 1) == module.STOPPED
    said = [json.loads(line)["event"] for line in out.getvalue().splitlines()]
    assert said.count("alive") >= 5
    assert said.index("finished") > 5


def test_a_standby_that_is_still_warming_up_goes_when_it_is_told(monkeypatch, tmp_path):
    role = Standby()
    made, _ = child(monkeypatch, tmp_path, role)
    threading.Timer(0.2, made.ears.go.put, (7,)).start()
    began = time.monotonic()
    assert made.run() == module.STOPPED
    assert role.started == [7]
    assert time.monotonic() - began < 10


def test_a_standby_whose_jvm_dies_says_so_and_ends(monkeypatch, tmp_path):
    role = Standby()
    monkeypatch.setattr(role, "warm_up", lambda scratch, told: None)
    made, _ = child(monkeypatch, tmp_path, role)
    threading.Timer(0.2, setattr, (role, "alive", False)).start()
    with pytest.raises(HoldfastError, match="lost its JVM"):
        made.run()
    assert role.started == []

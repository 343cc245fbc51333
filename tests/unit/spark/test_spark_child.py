"""A driver process and the stages in it, without Spark: what they are told, what they say, how they end."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.node import WARM
from holdfast.errors import InvariantError
from holdfast.model.reasons import HandOverReason
from holdfast.runtime.node.starts import Starts
from holdfast.spark import child as module
from holdfast.spark import life as life_module
from holdfast.spark.child import DriverProcess, Mouth
from holdfast.spark.hand_over import Say, StageFenced


class StandInQuery:
    """Like Spark's: not active any more as soon as it is told to stop, whether its thread ends or not."""

    isActive = True
    hangs = False
    error: BaseException | None = None

    def awaitTermination(self) -> None:
        while self.isActive or self.hangs:
            time.sleep(0.01)

    def exception(self) -> BaseException | None:
        return self.error


class StandInRole:
    """Runs until it is told otherwise. What it does beside is set by the test."""

    def __init__(self, say: Say) -> None:
        self.say = say
        self.query: StandInQuery | None = None
        self.failure: BaseException | None = None
        self.started: list[int] = []
        self.closed = False
        #: Of `start`, to be raised; false: it was finished before.
        self.start_gives: bool | BaseException = True
        self.start_s = self.finish_s = self.busy = self.paused_until = 0.0
        self.mark = -1
        self.stops = True
        self.warms = threading.Event()

    def warm_up(self, scratch: Path, told: Callable[[], bool]) -> None:
        self.warms.set()
        until = time.monotonic() + 30
        while not told() and time.monotonic() < until:
            time.sleep(0.01)

    def start(self, epoch: int) -> bool:
        self.started.append(epoch)
        time.sleep(self.start_s)
        if isinstance(self.start_gives, BaseException):
            raise self.start_gives
        self.query = StandInQuery() if self.start_gives else None
        return self.start_gives

    def finish(self) -> bool:
        time.sleep(self.finish_s)
        return True

    def pause(self, until: float, mark: int) -> None:
        self.paused_until, self.mark = until, mark

    def is_paused(self) -> bool:
        return time.monotonic() < self.paused_until

    def is_over(self) -> bool:
        return False

    def on_idle(self) -> None:
        pass

    def busy_s(self) -> float:
        return self.busy

    def stop(self) -> None:
        if self.query is not None:
            self.query.isActive, self.query.hangs = False, not self.stops
            if not self.stops:
                raise TimeoutError("the query does not end")

    def close(self) -> None:
        self.closed = True


class StandInEngine:
    def __init__(self) -> None:
        self.roles: dict[str, list[StandInRole]] = {}
        self.gone = threading.Event()
        self.prepare: Callable[[str, StandInRole], None] = lambda stage, role: None

    def role(self, stage: str, stopping: threading.Event, say: Say) -> StandInRole:
        made = StandInRole(say)
        self.prepare(stage, made)
        self.roles.setdefault(stage, []).append(made)
        return made

    def practise(self, told: Callable[[], bool], gives_way: Callable[[], bool]) -> None:
        pass

    def thread(self, target: Callable[[], None], name: str) -> threading.Thread:
        return threading.Thread(target=target, name=name, daemon=True)

    def ask(self) -> None:
        if self.gone.is_set():
            raise ConnectionError("no JVM there")

    def wait(self) -> int:
        self.gone.wait()
        return 3


class ToldProcess:
    """A driver process on a thread of this one."""

    def __init__(self, engine: StandInEngine, starts: Starts) -> None:
        self.engine = engine
        self.out = io.StringIO()
        self.up = threading.Event()
        self.exits: list[int] = []
        self.process = DriverProcess(Mouth(self.out), self._make, starts)
        threading.Thread(target=lambda: self.exits.append(self.process.run({})), daemon=True).start()

    def _make(self, order: dict[str, Any]) -> StandInEngine:
        self.up.wait()
        return self.engine

    def tell(self, do: str, ticket: int | None = None, stage: str = "", **more: Any) -> None:
        self.process.obey({"do": do, "stage": stage, **({"ticket": ticket} if ticket else {}), **more})

    @property
    def said(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.getvalue().splitlines()]

    def heard(self, event: str, ticket: int, seconds: float = 10.0) -> dict[str, Any]:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for news in self.said:
                if news["event"] == event and news.get("ticket") == ticket:
                    return news
            time.sleep(0.01)
        raise AssertionError(f"waited for {event} of {ticket}: {self.said}")


@pytest.fixture
def told(monkeypatch, tmp_path: Path) -> Iterator[ToldProcess]:
    monkeypatch.setattr(module, "ALIVE_S", 0.05)
    monkeypatch.setattr(life_module, "LOOK_S", 0.01)
    monkeypatch.setattr(module.os, "_exit", lambda code: made.exits.append(code))
    made = ToldProcess(StandInEngine(), Starts(tmp_path))
    made.up.set()
    yield made
    made.tell("stop")


def test_one_stage_is_stopped_and_started_again_while_the_other_goes_on(told: ToldProcess):
    told.tell("run", 1, "a", epoch=3)
    told.tell("run", 2, "b", epoch=5)
    assert told.heard("running", 1)["epoch"] == 3
    assert told.heard("running", 2)["epoch"] == 5
    told.tell("stop", 1)
    ended = told.heard("ended", 1)
    assert (ended["stage"], ended["epoch"], ended["how"]) == ("a", 3, "stopped")
    assert told.engine.roles["a"][0].closed
    told.tell("run", 3, "a", epoch=4)
    told.heard("running", 3)
    assert [role.started for role in told.engine.roles["a"]] == [[3], [4]]
    assert not any(news["event"] == "ended" and news["ticket"] == 2 for news in told.said)


def test_a_query_that_fails_ends_its_stage_alone(told: ToldProcess):
    told.tell("run", 1, "a", epoch=3)
    told.tell("run", 2, "b", epoch=5)
    told.heard("running", 2)
    told.heard("running", 1)
    query = told.engine.roles["a"][0].query
    assert query is not None
    query.error, query.isActive = RuntimeError("no column 'sorce'"), False
    assert "no column" in told.heard("failed", 1)["text"]
    assert told.heard("ended", 1)["how"] == "died"
    time.sleep(0.1)
    assert told.exits == []
    assert not any(news["event"] in ("failed", "ended") and news["ticket"] == 2 for news in told.said)


def test_a_stage_that_was_fenced_says_so_and_one_that_was_finished_before(told: ToldProcess):
    fenced = StageFenced("epoch 3 may not go on", reason=HandOverReason.EPOCH_OVER)
    told.engine.prepare = lambda stage, role: setattr(role, "start_gives", fenced if stage == "a" else False)
    told.tell("run", 1, "a", epoch=3)
    told.tell("run", 2, "b", epoch=5)
    assert told.heard("ended", 1)["how"] == "fenced"
    assert told.heard("finished", 2)["before"]
    assert told.heard("ended", 2)["how"] == "finished"


def test_a_stage_that_hangs_when_it_is_stopped_is_left_behind(told: ToldProcess, monkeypatch):
    monkeypatch.setattr(life_module, "STOP_S_MAX", 0.1)
    told.engine.prepare = lambda stage, role: setattr(role, "stops", stage != "a")
    told.tell("run", 1, "a", epoch=3)
    told.tell("run", 2, "b", epoch=5)
    told.heard("running", 1)
    told.tell("stop", 1)
    assert told.heard("stuck", 1)["stage"] == "a"
    told.tell("stop", 2)
    assert told.heard("ended", 2)["how"] == "stopped"
    query = told.engine.roles["a"][0].query
    assert query is not None
    assert [news["event"] for news in told.said].count("stuck") == 1
    query.hangs = False  # after all
    assert told.heard("ended", 1)["how"] == "stopped"


def test_a_batch_that_takes_long_is_told_once_and_again_after_twice_as_long(told: ToldProcess):
    told.tell("run", 1, "a", epoch=3)
    told.heard("running", 1)
    role = told.engine.roles["a"][0]

    def lasts(seconds: float) -> list[str]:
        role.busy = seconds
        time.sleep(0.1)
        return [news["event"] for news in told.said if news["event"] in ("busy", "waiting")]

    assert lasts(0.1) == []
    assert lasts(1.0) == ["busy"]
    assert lasts(31.0) == lasts(60.0) == ["busy", "waiting"]
    assert lasts(63.0) == ["busy", "waiting", "waiting"]
    assert "never returns" in told.heard("waiting", 1)["text"]
    assert lasts(0.0) == ["busy", "waiting", "waiting"]
    assert lasts(0.3) == ["busy", "waiting", "waiting", "busy"]


@pytest.mark.parametrize("stands_by", [False, True])
def test_a_stage_whose_function_does_not_return_when_it_starts_is_told_and_the_other_goes_on(
    told: ToldProcess, monkeypatch, stands_by: bool
):
    monkeypatch.setattr(life_module, "SLOW_S", 0.1)
    told.engine.prepare = lambda stage, role: setattr(role, "start_s", 2.0 if stage == "a" else 0.0)
    if stands_by:
        told.tell("warm", 1, "a")
        told.heard("session", 1)
        time.sleep(0.15)
        assert not any(news["event"] == "waiting" for news in told.said)  # nobody waits for it
    told.tell("run", 1, "a", epoch=3)
    told.tell("run", 2, "b", epoch=5)
    text = told.heard("waiting", 1)["text"]
    assert text.startswith("a waits for the end of its start. That has taken 0 s.")
    assert "never returns" in text
    told.heard("running", 2)
    told.heard("running", 1)
    assert 2 <= [news["event"] for news in told.said].count("waiting") <= 4  # each time after twice as long
    assert {news["ticket"] for news in told.said if news["event"] == "waiting"} == {1}


def test_a_python_process_that_came_up_late_is_not_a_failure_of_the_stage(told: ToldProcess):
    late = RuntimeError("[STREAM_FAILED] java.io.IOException: Python worker failed to connect back.")
    told.engine.prepare = lambda stage, role: setattr(role, "start_gives", late)
    told.tell("run", 1, "a", epoch=3)
    assert told.heard("ended", 1)["how"] == "again"
    assert not any(news["event"] == "failed" for news in told.said)


def test_a_stage_is_never_started_twice_at_one_epoch(told: ToldProcess):
    told.tell("run", 1, "a", epoch=3)
    with pytest.raises(InvariantError, match="twice at one epoch"):
        told.tell("run", 2, "a", epoch=3)


def test_a_standby_that_is_still_warming_up_goes_when_it_is_told(told: ToldProcess):
    told.tell("warm", 1, "a")
    assert told.heard("session", 1)["epoch"] == WARM
    began = time.monotonic()
    told.tell("run", 1, "a", epoch=7)
    assert told.heard("running", 1)["epoch"] == 7
    assert time.monotonic() - began < 10
    assert [role.started for role in told.engine.roles["a"]] == [[7]]


def test_standbys_warm_up_one_after_another(told: ToldProcess):
    told.tell("warm", 1, "a")
    told.heard("session", 1)
    assert told.engine.roles["a"][0].warms.wait(5)
    told.tell("warm", 2, "b")
    told.heard("session", 2)
    assert not told.engine.roles["b"][0].warms.wait(0.2)
    told.tell("run", 1, "a", epoch=2)
    told.heard("running", 1)
    for _ in range(life_module.FIRST_BATCHES):
        told.engine.roles["a"][0].say("batch")
    assert told.engine.roles["b"][0].warms.wait(5)


def test_a_standby_does_not_warm_up_while_a_stage_starts_that_somebody_waits_for(told: ToldProcess, tmp_path: Path):
    told.tell("run", 1, "a", epoch=3)
    told.heard("running", 1)
    told.tell("warm", 2, "b")
    for _ in range(life_module.FIRST_BATCHES):
        time.sleep(0.1)
        assert "b" not in told.engine.roles
        assert Starts(tmp_path).are_under_way()
        told.engine.roles["a"][0].say("batch")
    told.heard("session", 2)
    assert told.engine.roles["b"][0].warms.wait(5)
    assert not Starts(tmp_path).are_under_way()
    told.tell("run", 3, "c", epoch=1)
    told.tell("warm", 4, "d")
    time.sleep(0.1)
    told.tell("run", 4, "d", epoch=1)  # one that gives way goes when it is told, or ends
    told.heard("running", 4)
    told.tell("warm", 5, "e")
    told.tell("stop", 5)
    assert told.heard("ended", 5)["how"] == "stopped"
    assert "e" not in told.engine.roles


@pytest.mark.parametrize("ends", ["it fails", "it is stopped", "its source has nothing to read"])
def test_a_start_is_over_when_nobody_can_wait_for_it_any_more(told: ToldProcess, tmp_path: Path, monkeypatch, ends):
    starts = Starts(tmp_path)
    if ends == "its source has nothing to read":
        monkeypatch.setattr(life_module, "FIRST_S_MAX", 0.2)
    told.tell("warm", 1, "a")
    told.heard("session", 1)
    assert not starts.are_under_way()
    told.tell("run", 1, "a", epoch=3)
    assert starts.are_under_way()
    told.heard("running", 1)
    if ends == "it is stopped":
        told.tell("stop", 1)
    elif ends == "it fails":
        query = told.engine.roles["a"][0].query
        assert query is not None
        query.error, query.isActive = RuntimeError("no column"), False
    until = time.monotonic() + 5
    while starts.are_under_way() and time.monotonic() < until:
        time.sleep(0.01)
    assert not starts.are_under_way()


def test_a_standby_that_has_ended_starts_anew_when_it_is_told_to_run(told: ToldProcess):
    told.tell("warm", 1, "a")
    told.heard("session", 1)
    told.tell("stop", 1)
    assert told.heard("ended", 1)["epoch"] == WARM
    told.tell("run", 1, "a", epoch=7)
    assert told.heard("running", 1)["epoch"] == 7
    assert len(told.engine.roles["a"]) == 2


def test_a_source_that_is_paused_says_so_and_when_it_goes_on(told: ToldProcess):
    told.tell("run", 1, "a", epoch=3)
    told.heard("running", 1)
    told.tell("pause", 1, seconds=60)
    assert told.heard("paused", 1)["on"]
    (role,) = told.engine.roles["a"]
    assert role.mark == -1
    told.tell("pause", 1, seconds=60, mark=7)
    until = time.monotonic() + 10
    while role.mark != 7 and time.monotonic() < until:
        time.sleep(0.01)
    assert role.mark == 7
    told.tell("pause", 1, seconds=0)
    until = time.monotonic() + 5
    while [n["on"] for n in told.said if n["event"] == "paused"] != [True, False] and time.monotonic() < until:
        time.sleep(0.01)
    assert [n["on"] for n in told.said if n["event"] == "paused"] == [True, False]


def test_a_stage_that_takes_long_to_finish_still_says_that_it_is_alive(told: ToldProcess):
    """The node kills a process that has been silent for long, and would do so again and again."""
    told.engine.prepare = lambda stage, role: setattr(role, "finish_s", 0.5)
    told.tell("run", 1, "a", epoch=3)
    told.heard("running", 1)
    before = sum(news["event"] == "alive" for news in told.said)
    told.tell("finish", 1)
    told.heard("finished", 1)
    assert told.heard("ended", 1)["how"] == "finished"
    assert sum(news["event"] == "alive" for news in told.said) - before >= 5


def test_when_its_jvm_dies_the_process_says_so_for_every_stage_and_ends(told: ToldProcess):
    told.tell("warm", 2, "b")
    told.heard("session", 2)
    told.tell("run", 1, "a", epoch=3)
    told.heard("running", 1)
    told.engine.gone.set()  # with exit code 3, that of a JVM without memory
    assert "JVM is gone" in told.heard("failed", 1)["text"]
    assert "JVM is gone" in told.heard("failed", 2)["text"]
    until = time.monotonic() + 5
    while told.exits != [5] and time.monotonic() < until:
        time.sleep(0.01)
    assert told.exits == [5]


def test_a_stage_that_is_stopped_before_there_is_a_session_never_begins(monkeypatch):
    monkeypatch.setattr(module.os, "_exit", lambda code: None)
    told = ToldProcess(StandInEngine(), Starts(None))
    told.tell("run", 1, "a", epoch=3)
    told.tell("stop", 1)
    assert told.heard("ended", 1)["how"] == "stopped"
    told.up.set()
    told.tell("run", 2, "b", epoch=1)
    told.heard("running", 2)
    assert "a" not in told.engine.roles
    told.tell("stop")
    until = time.monotonic() + 5
    while told.exits != [0] and time.monotonic() < until:
        time.sleep(0.01)
    assert told.exits == [0]


def test_a_session_that_cannot_be_made_fails_every_stage(monkeypatch):
    told = ToldProcess(StandInEngine(), Starts(None))
    monkeypatch.setattr(told.process, "_make", lambda order: None)  # it waits in the real one
    told.tell("run", 1, "a", epoch=3)
    told.process._lose(RuntimeError("no such jar"))
    assert "no such jar" in told.heard("failed", 1)["detail"]

"""The loop of a machine: order of effects, what overtakes what, time, failures; and the pulse of a busy node."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from holdfast.core.ready import AGAIN, TICK, BatchDone, Idle, Ready, Received, Tick
from holdfast.errors import InvariantError
from holdfast.model import messages as m
from holdfast.model.config import MS
from holdfast.runtime.node.loop import LoopStopped, MachineLoop

PULL, DATA = m.Pull(version=1), m.Data(edge="e", epoch=1, blocks=())


class Script:
    """A machine that answers each event with what a test says."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer or (lambda event, now_ns: Ready())
        self.seen: list[Any] = []

    def step(self, event: Any, now_ns: int) -> Ready:
        self.seen.append(event)
        return self.answer(event, now_ns)


class OrderTrace:
    """A disk, a network and effects that write down the order in which they are used."""

    def __init__(self, slow_disk_s: float = 0.0) -> None:
        self.lines: list[Any] = []
        self.slow_disk_s = slow_disk_s

    def write(self, items: list[tuple[str, object]]) -> None:
        time.sleep(self.slow_disk_s)
        self.lines += [("disk", key) for key, _ in items]

    def send(self, target: str, message: m.Message) -> None:
        self.lines.append(("send", target))

    def effect(self, effect: Any) -> None:
        self.lines.append(("effect", type(effect).__name__))


def wait_for(test: Any, seconds: float = 5.0) -> None:
    until = time.monotonic() + seconds
    while not test():
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.002)


def test_nothing_is_sent_before_what_it_stands_on_is_on_disk_not_even_by_a_later_step():
    trace = OrderTrace(slow_disk_s=0.05)

    def answer(event: Any, now_ns: int) -> Ready:
        ready = Ready()
        if event == "vote":
            ready.persist.append(("vote", (1, "n0")))
            ready.send.append(("n1", PULL))
            ready.apply.append(BatchDone(stage="s0", batch=1))
        elif event == "talk":
            ready.send.append(("n2", PULL))
        return ready

    loop = MachineLoop(Script(answer), trace.send, disk=trace, on_effect=trace.effect)
    loop.start(Ready())
    loop.post("vote")
    loop.post("talk")
    wait_for(lambda: len(trace.lines) == 4)
    assert trace.lines == [("disk", "vote"), ("send", "n1"), ("effect", "BatchDone"), ("send", "n2")]
    loop.stop()


def test_placement_overtakes_rows_and_ticks_are_not_starved():
    gate = threading.Event()
    script = Script(lambda event, now_ns: (gate.wait(5), Ready())[1] if event == "block" else Ready())
    loop = MachineLoop(script, lambda target, message: None)
    loop.start(Ready())
    loop.post("block")
    wait_for(lambda: script.seen == ["block"])
    for _ in range(3):
        loop.received("n1", DATA)
    loop.received("n1", PULL)
    loop._wake_ns = 1
    gate.set()
    wait_for(lambda: len(script.seen) == 6)
    assert script.seen[1:] == [Received("n1", PULL), TICK, *[Received("n1", DATA)] * 3]
    loop.stop()


def test_timers_follow_the_monotonic_clock_and_no_other(monkeypatch: pytest.MonkeyPatch):
    """The wall clock jumps back an hour and ahead a day; ticks come as if nothing had happened."""

    def answer(event: Any, now_ns: int) -> Ready:
        ready = Ready()
        ready.wake_ns = now_ns + 20 * MS
        return ready

    script = Script(answer)
    real = time.time
    loop = MachineLoop(script, lambda target, message: None)
    loop.start()
    for jump_s in (-3_600, 86_400, -3_600):
        monkeypatch.setattr(time, "time", lambda jump_s=jump_s: real() + jump_s)
        before = len(script.seen)
        time.sleep(0.2)
        assert 4 <= len(script.seen) - before <= 14
    assert all(isinstance(event, Tick) for event in script.seen)
    loop.stop()


def test_a_question_is_answered_on_the_loops_thread_and_its_error_is_the_askers():
    loop = MachineLoop(Script(), lambda target, message: None)
    loop.start(Ready())
    assert loop.ask(lambda machine, now_ns: threading.current_thread().name) == "loop-loop"
    with pytest.raises(ZeroDivisionError):
        loop.ask(lambda machine, now_ns: 1 // 0)
    assert loop.ask(lambda machine, now_ns: 7) == 7
    loop.stop()


def test_a_broken_invariant_stops_the_machine_and_is_told():
    def answer(event: Any, now_ns: int) -> Ready:
        raise InvariantError("a bug")

    told: list[BaseException] = []
    loop = MachineLoop(Script(answer), lambda target, message: None, on_crash=told.append)
    loop.start(Ready())
    loop.post("anything")
    wait_for(lambda: told)
    assert isinstance(told[0], InvariantError)
    with pytest.raises(LoopStopped):
        loop.ask(lambda machine, now_ns: 1, timeout_s=0.1)


def test_a_busy_loop_is_seen_and_asked_in_vain():
    gate = threading.Event()
    loop = MachineLoop(Script(lambda event, now_ns: (gate.wait(5), Ready())[1]), lambda target, message: None)
    loop.start(Ready())
    loop.post("block")
    wait_for(lambda: loop.busy_since_ns)
    with pytest.raises(LoopStopped, match="busy"):
        loop.ask(lambda machine, now_ns: 1, timeout_s=0.05)
    gate.set()
    wait_for(lambda: not loop.busy_since_ns)
    loop.stop()


def test_rows_that_are_sent_again_while_they_wait_are_kept_once():
    """A driver sends its rows again every 200 ms; a step may take seconds."""
    gate = threading.Event()
    script = Script(lambda event, now_ns: (gate.wait(5), Ready())[1])
    loop = MachineLoop(script, lambda target, message: None)
    loop.start(Ready())
    loop.post("block")
    wait_for(lambda: loop.busy_since_ns)
    parts = {"s0>u0": ()}
    for batch in (1, 1, 1, 2):  # a newer try is all that counts
        again = m.Deliver(stage="s0", epoch=1, batch=batch, attempt=batch, shards={"u0": 1}, parts=parts, last=None)
        loop.received("s0@1", again)
    for _ in range(2):  # these are all different, as far as anybody knows
        loop.received("n1#1", m.Data(edge="u1.0", epoch=1, blocks=()))
    assert loop.backlog == 3
    gate.set()
    wait_for(lambda: not loop.backlog and not loop.busy_since_ns)
    loop.stop()


# --- idle moments


def wants_idle(event: Any, now_ns: int) -> Ready:
    ready = Ready()
    ready.idle = event == "work" or isinstance(event, Received)
    return ready


def test_an_idle_moment_comes_once_for_each_wish_and_never_unasked():
    script = Script(wants_idle)
    loop = MachineLoop(script, lambda target, message: None, idle_budget_ns=7)
    loop.start(Ready())
    loop.post("nothing")
    loop.post("work")
    wait_for(lambda: Idle(7) in script.seen)
    loop.post("nothing")
    wait_for(lambda: len(script.seen) == 4)
    assert script.seen == ["nothing", "work", Idle(7), "nothing"]
    loop.stop()


def test_while_anything_waits_there_is_no_idle_moment():
    """Rows first: a burst is taken whole before a capture or a paste gets its turn."""
    gate = threading.Event()

    def answer(event: Any, now_ns: int) -> Ready:
        if event == "block":
            gate.wait(5)
        return wants_idle("work", now_ns)

    script = Script(answer)
    loop = MachineLoop(script, lambda target, message: None)
    loop.start(Ready())
    loop.post("block")
    wait_for(lambda: script.seen == ["block"])
    for number in range(5):
        loop.received("n1", m.Data(edge=f"e{number}", epoch=1, blocks=()))
    loop.received("n1", PULL)
    gate.set()
    wait_for(lambda: any(isinstance(event, Idle) for event in script.seen))
    first = next(i for i, event in enumerate(script.seen) if isinstance(event, Idle))
    assert first == 7
    loop.stop()


def test_a_machine_that_always_has_work_is_still_told_of_time_and_of_rows():
    def answer(event: Any, now_ns: int) -> Ready:
        ready = Ready()
        ready.idle = True
        ready.wake_ns = now_ns + 5 * MS if isinstance(event, Tick) else 0
        return ready

    script = Script(answer)
    loop = MachineLoop(script, lambda target, message: None)
    loop.start()
    loop.received("n1", DATA)
    wait_for(lambda: Received("n1", DATA) in script.seen)
    wait_for(lambda: sum(isinstance(event, Tick) for event in script.seen) >= 3)
    loop.stop()


def test_early_messages_wait_for_earlier_writes_but_not_for_those_of_their_own_step():
    trace = OrderTrace(slow_disk_s=0.05)

    def answer(event: Any, now_ns: int) -> Ready:
        ready = Ready()
        if isinstance(event, str):
            ready.early = [(f"early {event}", PULL)]
            ready.persist = [(event, 1)]
            ready.send = [(event, PULL)]
        return ready

    loop = MachineLoop(Script(answer), trace.send, disk=trace)
    loop.start(Ready())
    loop.post("a")
    loop.post("b")  # its early message may speak of what "a" writes
    wait_for(lambda: ("send", "b") in trace.lines)
    loop.stop()
    assert trace.lines[0] == ("send", "early a")
    assert trace.lines.index(("disk", "a")) < trace.lines.index(("send", "early b"))
    assert trace.lines.index(("disk", "b")) < trace.lines.index(("send", "b"))


def test_what_nobody_waits_for_is_done_after_the_messages_and_before_heavy_ones():
    trace = OrderTrace()
    gate = threading.Event()

    def answer(event: Any, now_ns: int) -> Ready:
        ready = Ready()
        if event == "block":
            gate.wait(5)
        if event == "seal":
            ready.send, ready.again = [("driver", PULL)], True
        if event is AGAIN:
            trace.lines.append("again")
        if isinstance(event, Received):
            trace.lines.append("heavy")
        return ready

    loop = MachineLoop(Script(answer), trace.send, disk=trace)
    loop.start(Ready())
    loop.post("block")
    loop.received("n1#1", DATA)
    loop.post("seal")
    gate.set()
    wait_for(lambda: "heavy" in trace.lines)
    loop.stop()
    assert trace.lines == [("send", "driver"), "again", "heavy"]

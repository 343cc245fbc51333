"""Stage processes: told what to do, watched, killed with all they started, reported when they die; and the diary."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.election import Standing
from holdfast.core.node import WARM
from holdfast.model import messages as m
from holdfast.model.config import MS
from holdfast.runtime.node import children as children_module
from holdfast.runtime.node.children import Children, cpu_of_sessions
from holdfast.runtime.node.events import EventLog
from holdfast.runtime.node.pulse import Pulse

CHILD = r"""
import json, os, subprocess, sys, time
order = json.loads(sys.stdin.readline())
def say(**news): print(json.dumps(news), flush=True)
say(event="ready", epoch=order["epoch"], pid=os.getpid())
mode = order["mode"]
if mode == "die": sys.exit(5)
if mode == "fail": say(event="failed", text="map (x.py:3): no column 'sorce'"); sys.exit(1)
if mode == "batch": say(event="batch")
if mode == "fenced": sys.exit(3)
if mode == "alive": say(event="alive")
if mode == "jvm": say(event="jvm", pid=subprocess.Popen(["sleep", "1000"]).pid)
if mode == "work":
    say(event="running")
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.3: pass"])
    say(event="worked")
if mode == "noise": print("what is this", flush=True)
for line in sys.stdin:
    command = json.loads(line)
    if "go" in command: say(event="running", epoch=command["go"])
    if command.get("finish"): say(event="finished"); sys.exit(0)
    if command.get("stop"): sys.exit(0)
os._exit(9)
"""


class Watched:
    def __init__(self, tmp_path: Path) -> None:
        self.mode = "run"
        self.died: list[tuple[str, int]] = []
        self.news: list[dict[str, Any]] = []
        self.busy: list[tuple[str, int]] = []
        self.events = EventLog(tmp_path / "events.jsonl", "n0")
        self.children = Children(
            [sys.executable, "-c", CHILD],
            lambda stage, epoch: {"stage": stage, "epoch": epoch, "mode": self.mode},
            tmp_path / "logs",
            self.events,
            lambda stage, epoch: self.died.append((stage, epoch)),
            lambda stage, news: self.news.append(news),
            silence_s=0.4,
            on_busy=lambda stage, busy_ns: self.busy.append((stage, busy_ns)),
            busy_period_s=0.1,
        )

    def heard(self, event: str) -> dict[str, Any]:
        return wait_for(lambda: next((n for n in self.news if n["event"] == event), None))


def wait_for(test: Any, seconds: float = 10.0) -> Any:
    until = time.monotonic() + seconds
    while not (found := test()):
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.01)
    return found


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    made = Watched(tmp_path)
    yield made
    made.children.close()


def test_a_child_that_dies_is_reported_and_one_that_is_stopped_is_not(watched: Watched):
    watched.mode = "die"
    watched.children.start("s0", 3)
    wait_for(lambda: watched.died == [("s0", 3)])
    assert any("exit code 5" in e["text"] for e in watched.events.since(0))
    watched.mode = "run"
    watched.children.start("s0", 4)
    wait_for(lambda: any(n.get("epoch") == 4 for n in watched.news))
    watched.children.stop("s0", 3)  # of an epoch that is over
    assert "s0" in watched.children.children
    process = watched.children.children["s0"].process
    watched.children.stop("s0", 4)
    assert process.wait(5) == 0
    assert watched.died == [("s0", 3)]


def test_what_a_driver_and_all_that_it_has_started_use_of_the_cores_is_told(watched: Watched):
    watched.mode = "work"
    watched.children.start("s0", 1)
    watched.heard("worked")
    told = len(watched.busy)
    wait_for(lambda: len(watched.busy) > told + 1)
    used = [busy_ns for _, busy_ns in watched.busy]
    assert used == sorted(used)
    assert 0.3e9 <= used[-1] < 30e9


def test_a_driver_that_stands_by_or_only_starts_is_not_measured(watched: Watched):
    watched.children.start("s0", 1)
    watched.heard("ready")
    watched.children.warm("s1")
    wait_for(lambda: sum(n["event"] == "ready" for n in watched.news) == 2)
    watched.mode = "work"
    watched.children.start("s2", 1)
    wait_for(lambda: watched.busy)
    assert {stage for stage, _ in watched.busy} == {"s2"}
    assert cpu_of_sessions(set()) == {}


def test_why_drivers_fail_is_kept_until_a_batch_is_through(watched: Watched):
    watched.mode = "fail"
    for epoch in (1, 2):
        watched.children.start("s0", epoch)
        wait_for(lambda epoch=epoch: ("s0", epoch) in watched.died)
    assert watched.children.failures == {"s0": ("map (x.py:3): no column 'sorce'", 2)}
    watched.mode = "batch"
    watched.children.start("s0", 3)
    watched.heard("batch")
    wait_for(lambda: not watched.children.failures)


def test_kill_9_of_a_child_takes_what_it_started_with_it(watched: Watched):
    watched.mode = "jvm"
    watched.children.start("s0", 1)
    jvm = watched.heard("jvm")["pid"]
    os.kill(watched.news[0]["pid"], signal.SIGKILL)
    wait_for(lambda: watched.died == [("s0", 1)])
    wait_for(lambda: gone(jvm))


def test_a_standby_takes_over_without_a_new_process(watched: Watched):
    watched.children.warm("s0")
    assert watched.heard("ready")["epoch"] is None
    pid = watched.children.children["s0"].process.pid
    watched.children.start("s0", 7)
    assert watched.heard("running")["epoch"] == 7
    assert watched.children.children["s0"].process.pid == pid
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: watched.died == [("s0", 7)])


def test_a_standby_that_dies_is_replaced_and_reported_to_nobody(watched: Watched):
    watched.children.warm("s0")
    pid = watched.heard("ready")["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: len(watched.news) == 2)
    assert watched.children.children["s0"].epoch == WARM
    assert watched.died == []


def test_a_standby_that_died_is_not_replaced_where_it_is_no_longer_wanted(watched: Watched):
    watched.mode = "die"
    watched.children.warm("s0")
    wait_for(lambda: len([e for e in watched.events.since(0) if e["event"] == "stage-died"]) == 3)
    watched.children.stop("s0", WARM)  # the next one was to come after half a second
    started = len([e for e in watched.events.since(0) if e["event"] == "stage-start"])
    time.sleep(1.2)
    assert len([e for e in watched.events.since(0) if e["event"] == "stage-start"]) == started


def test_a_process_that_cannot_be_started_is_reported_and_the_node_goes_on(watched: Watched, monkeypatch):
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(children_module, "SPAWN_RETRY_S", 0.05)
    monkeypatch.setattr(children_module, "Child", fail)
    watched.children.finish()
    watched.children.start("s0", 2)
    wait_for(lambda: watched.died == [("s0", 2)])


def test_without_threads_a_process_is_killed_reported_and_the_node_goes_on(watched: Watched, monkeypatch):
    """Nobody would hear what it says, nor that it ends."""
    started = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name.startswith("child-"):
            raise RuntimeError("can't start new thread")
        started(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    monkeypatch.setattr(children_module, "SPAWN_RETRY_S", 0.05)
    watched.children.start("s0", 1)
    wait_for(lambda: ("s0", 1) in watched.died)
    assert "s0" not in watched.children.children
    assert any("can't start new thread" in event["text"] for event in watched.events.since(0))
    monkeypatch.undo()
    watched.children.start("s0", 2)
    assert watched.heard("ready")["epoch"] in (1, 2)


def test_a_look_at_processes_without_a_descriptor_does_not_end_the_watch(watched: Watched, monkeypatch):
    def none(path: str = ".") -> list[str]:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "listdir", none)
    watched.children._measure([])
    watched.mode = "work"
    watched.children.start("s0", 1)
    child = watched.children.children["s0"]
    watched.children._measure([child])
    assert watched.busy == []


def test_a_stopped_child_and_a_silent_one_are_killed_and_reported(watched: Watched):
    watched.children.start("s0", 1)
    os.kill(watched.heard("ready")["pid"], signal.SIGSTOP)
    wait_for(lambda: watched.died == [("s0", 1)])
    watched.mode = "alive"  # promises to speak, and does not: at work it is killed soon, while it starts later
    watched.children.start("s1", 1)
    watched.children.start("s3", 1)
    watched.children.children["s1"].tell({"go": 1})
    wait_for(lambda: ("s1", 1) in watched.died)
    assert ("s3", 1) not in watched.died
    wait_for(lambda: ("s3", 1) in watched.died)
    watched.mode = "run"  # promises nothing
    watched.children.start("s2", 1)
    time.sleep(1)
    assert "s2" in watched.children.children


def test_a_node_that_was_stopped_itself_does_not_take_it_out_on_its_children(watched: Watched, monkeypatch):
    """What a child said while its node was stopped is still in the pipe when the node looks for silent ones."""
    watched.mode = "alive"
    watched.children.start("s0", 1)
    watched.heard("ready")
    watched.children.children["s0"].tell({"go": 1})
    watched.heard("running")
    real, moved = time.monotonic, [0.0]
    monkeypatch.setattr(children_module.time, "monotonic", lambda: real() + moved[0])
    moved[0] = 3.0  # more than the silence that it is granted
    time.sleep(0.3)
    assert watched.died == []


def test_finish_reaches_those_that_run_and_those_that_come_later(watched: Watched):
    watched.children.start("s0", 1)
    watched.heard("ready")
    watched.children.finish()
    watched.heard("finished")
    watched.children.start("s1", 1)
    wait_for(lambda: len([n for n in watched.news if n["event"] == "finished"]) == 2)
    wait_for(lambda: not watched.children.children)
    assert watched.died == []


def test_a_fenced_child_is_reported_later_and_noise_is_told(watched: Watched):
    watched.mode = "fenced"
    watched.children.start("s0", 1)
    watched.mode = "noise"
    wait_for(lambda: any("fenced" in e["text"] for e in watched.events.since(0)))
    assert watched.died == []
    watched.children.start("s1", 1)
    wait_for(lambda: any("what is this" in e["text"] for e in watched.events.since(0)))
    wait_for(lambda: watched.died == [("s0", 1)])


def test_a_child_dies_with_its_node_and_with_it_what_it_started(tmp_path: Path):
    """kill -9 of the parent: the kernel kills the child, whatever it was doing, and its guard the rest. A JVM that went
    on for a while could write to the checkpoint that the next driver had read already."""
    leash = Path(sys.modules["holdfast.runtime.node.children"].__file__ or "").with_name("leash.py")
    child = tmp_path / "child.py"
    child.write_text(
        "import os, subprocess, time\n"
        "jvm = subprocess.Popen(['sleep', '1000'])\n"
        f"open({str(tmp_path / 'new')!r}, 'w').write(f'{{os.getpid()}} {{jvm.pid}}')\n"
        f"os.rename({str(tmp_path / 'new')!r}, {str(tmp_path / 'pids')!r})\n"
        "time.sleep(1000)\n"
    )
    script = (
        "import subprocess, sys, os, time\n"
        f"command = [sys.executable, '-I', '-S', {str(leash)!r}, str(os.getpid()), sys.executable, {str(child)!r}]\n"
        "subprocess.Popen(command, start_new_session=True)\n"
        "time.sleep(1000)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script])
    pids = [
        int(pid) for pid in wait_for(lambda: (tmp_path / "pids").exists() and (tmp_path / "pids").read_text()).split()
    ]
    assert os.getpgid(pids[1]) == pids[0]
    parent.kill()
    parent.wait()
    for pid in pids:
        wait_for(lambda pid=pid: gone(pid))


class _Loop:
    def __init__(self) -> None:
        self.since = time.monotonic_ns()
        self.failure = None

    def clock(self) -> int:
        return time.monotonic_ns()

    def busy_ns(self) -> int:
        return self.clock() - self.since


class _Election:
    standing = Standing.COORDINATOR
    coordinator = "n0"
    accepted = type("R", (), {"members": {"n0": 1, "n1": 1, "n2": 1}})()


class _Node:
    name = "n0"
    config = type("C", (), {"heartbeat_ns": 100 * MS})()
    detector = type("D", (), {"monitor": "n1"})()
    election = _Election()


def test_a_busy_node_is_spoken_for_until_it_counts_as_hung():
    sent: list[tuple[str, m.Message]] = []
    loop, node = _Loop(), _Node()
    pulse = Pulse(loop, node, lambda to, message: sent.append((to, message)), 1_500 * MS)  # pyright: ignore
    beat, heartbeat = m.Beat(term=1, version=2, commit=2), m.Heartbeat(life=1, version=2)
    pulse.start()
    for _ in range(20):  # it speaks for itself
        pulse.saw(beat)
        pulse.saw(heartbeat)
        time.sleep(0.002)
    assert pulse.sent == 0
    wait_for(lambda: pulse.sent >= 3)  # then it is silent, and busy
    assert set(sent) == {("n1", heartbeat), ("n1", beat), ("n2", beat)}
    time.sleep(1.6)
    before = pulse.sent
    time.sleep(0.3)
    assert pulse.sent == before  # it hangs
    pulse.close()

"""Driver processes: told what to do, watched, killed with all they started, reported when they die."""

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

from holdfast.core.node import WARM
from holdfast.runtime.node import children as children_module
from holdfast.runtime.node.child import costs_of_sessions
from holdfast.runtime.node.children import Children
from holdfast.runtime.node.events import EventLog
from holdfast.runtime.node.paces import GUESSES

CHILD = r"""
import json, os, subprocess, sys, time
order = json.loads(sys.stdin.readline())
def say(**news): print(json.dumps(news), flush=True)
stages = {}
def end(ticket, how): say(event="ended", how=how, **stages.pop(ticket))
def begin(told):
    ticket = told["ticket"]
    of = stages[ticket] = {"stage": told["stage"], "ticket": ticket, "epoch": told.get("epoch", 0)}
    mode = open(order["mode"]).read()
    say(event="ready", pid=os.getpid(), **of)
    if mode in ("die", "hungry"): os._exit(5)
    if mode == "fail": say(event="failed", text="map (x.py:3): no column 'sorce'", **of); end(ticket, "died")
    if mode == "batch": say(event="batch", progress={"batchDuration": 30}, **of)
    if mode == "alive": say(event="alive")
    if mode == "jvm": say(event="jvm", jvm=subprocess.Popen(["sleep", "1000"]).pid, **of)
    if mode == "busy": say(event="busy", **of)
    if mode in ("again", "fenced"): end(ticket, mode)
    if mode == "stuck": stages[ticket]["stuck"] = True
    if mode == "work":
        say(event="running", **of)
        subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.3: pass"])
        say(event="worked", **of)
        say(event="batch", progress={"batchDuration": 1000}, **of)
    if mode == "runs": say(event="running", **of); say(event="batch", progress={"batchDuration": 30}, **of)
    if mode == "noise": print("what is this", flush=True)
for line in sys.stdin:
    told = json.loads(line)
    of = stages.get(told.get("ticket"))
    if told["do"] == "stop" and "ticket" not in told: os._exit(0)
    if told["do"] == "warm" or (told["do"] == "run" and not of): begin(told)
    elif of and told["do"] == "run":
        of["epoch"] = told["epoch"]; say(event="running", **of)
        mode = open(order["mode"]).read()
        if mode == "slow": time.sleep(1); say(event="batch", progress={"batchDuration": 900}, **of)
    elif of and told["do"] == "finish": say(event="finished", **of); end(told["ticket"], "finished")
    elif of and told["do"] == "stop":
        if of.get("stuck"): say(event="stuck", **of)
        else: end(told["ticket"], "stopped")
os._exit(9)
"""


class Watched:
    def __init__(self, tmp_path: Path, shared: bool = True, run: Path | None = None) -> None:
        tmp_path.mkdir(exist_ok=True)
        self._mode = tmp_path / "mode"
        self.mode = "run"
        self.died: list[tuple[str, int]] = []
        self.news: list[dict[str, Any]] = []
        self.busy: list[tuple[str, int, int]] = []
        self.events = EventLog(tmp_path / "events.jsonl", "n0")
        self.children = Children(
            [sys.executable, "-c", CHILD],
            lambda: {"mode": str(self._mode)},
            tmp_path / "logs",
            self.events,
            lambda stage, epoch: self.died.append((stage, epoch)),
            lambda stage, news: self.news.append(news),
            silence_s=0.4,
            on_busy=lambda stage, busy_ns, memory_bytes: self.busy.append((stage, busy_ns, memory_bytes)),
            busy_period_s=0.1,
            shared=shared,
            run=run,
            name=tmp_path.name,
            is_light=lambda stage: stage.startswith("light"),
        )

    @property
    def mode(self) -> str:
        """What the next stage that is started does."""
        return self._mode.read_text()

    @mode.setter
    def mode(self, mode: str) -> None:
        self._mode.write_text(mode)

    def heard(self, event: str, stage: str = "") -> dict[str, Any]:
        def found() -> dict[str, Any] | None:
            return next((n for n in self.news if n["event"] == event and (not stage or n["stage"] == stage)), None)

        return wait_for(found)

    def told(self, event: str) -> list[dict[str, Any]]:
        return [e for e in self.events.since(0) if e["event"] == event]

    def run(self, stage: str, epoch: int, mode: str = "run") -> dict[str, Any]:
        """Started, and heard of."""
        self.mode = mode
        self.children.start(stage, epoch)
        return wait_for(lambda: next((n for n in self.news if (n["stage"], n["epoch"]) == (stage, epoch)), None))


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


def test_a_stage_whose_process_dies_is_reported_and_one_that_is_stopped_is_not(watched: Watched):
    watched.run("s0", 3, "die")
    wait_for(lambda: watched.died == [("s0", 3)])
    assert any("exit code 5" in e["text"] for e in watched.told("stage-died"))
    watched.run("s0", 4)
    watched.children.stop("s0", 3)  # of an epoch that is over
    assert "s0" in watched.children.drivers
    child = watched.children.drivers["s0"].child
    watched.children.stop("s0", 4)
    wait_for(lambda: not child.stages)
    assert child.process.poll() is None
    assert watched.died == [("s0", 3)]


def test_all_stages_of_a_node_are_in_one_process_and_end_with_it_each_at_its_own_epoch(watched: Watched):
    pids = {watched.run("s0", 3)["pid"], watched.run("s1", 7)["pid"]}
    watched.children.warm("s2")
    pids.add(watched.heard("ready", "s2")["pid"])
    (pid,) = pids
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: sorted(watched.died) == [("s0", 3), ("s1", 7)])
    wait_for(lambda: "s2" in watched.children.drivers)  # whoever stands by does so again, and nobody is told
    (told,) = watched.told("driver-end")
    assert told["stages"] == ["s0", "s1", "s2"]


def test_a_stage_that_fails_is_reported_alone_and_starts_again_in_the_same_process(watched: Watched):
    pid = watched.run("s0", 1)["pid"]
    watched.run("s1", 1, "fail")
    wait_for(lambda: watched.died == [("s1", 1)])
    assert watched.run("s1", 2)["pid"] == pid
    assert set(watched.children.drivers) == {"s0", "s1"}
    assert watched.told("driver-end") == []


def test_stages_without_spark_run_and_stand_by_in_a_light_process(watched: Watched):
    watched.run("light_1", 1)
    watched.children.warm("light_2")
    watched.heard("ready", "light_2")
    told = watched.children.status()
    assert told["light_1"]["process"] == told["light_2"]["process"] == "light"
    assert told["light_2"]["take_over_s"] == GUESSES["light ready"] < GUESSES["ready"]


def test_standbys_have_a_process_of_their_own_where_that_is_wanted(tmp_path: Path):
    watched = Watched(tmp_path, shared=False)
    try:
        pid = watched.run("s0", 1)["pid"]
        watched.children.warm("s1")
        other = watched.heard("ready", "s1")["pid"]
        assert other != pid
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: watched.died == [("s0", 1)])
        watched.children.start("s1", 4)
        assert watched.heard("running", "s1")["epoch"] == 4
        assert watched.children.drivers["s1"].child.process.pid == other
    finally:
        watched.children.close()


def test_a_stage_that_does_not_stop_is_left_behind_and_starts_again_elsewhere(watched: Watched):
    pid = watched.run("s0", 1)["pid"]
    watched.run("s1", 1, "stuck")
    watched.children.stop("s1", 1)
    watched.heard("stuck")
    assert watched.run("s1", 2)["pid"] != pid
    assert watched.children.drivers["s0"].child.process.poll() is None
    assert watched.run("s2", 1)["pid"] == pid
    for stage in ("s0", "s2"):
        watched.children.stop(stage, 1)
    wait_for(lambda: gone(pid))  # nothing in it goes on
    assert watched.died == []


def test_a_stage_in_whose_batches_processes_run_out_of_memory_gets_one_of_its_own(watched: Watched):
    """Only the one that was in a batch, only after the second time, and whoever kills a process blames nobody."""
    for epoch in (1, 2, 3):
        watched.run("s0", epoch)
        pid = watched.run("s1", epoch, "busy")["pid"]
        assert watched.run("s2", epoch, "busy")["pid"] == pid  # but not for as long
        wait_for(lambda: watched.children.drivers["s2"].busy_since > watched.children.drivers["s1"].busy_since > 0)
        assert not watched.told("stage-alone")
        if epoch == 1:
            os.kill(pid, signal.SIGKILL)
        else:
            watched.mode = "hungry"
            watched.children.start("s3", epoch)
        wait_for(lambda epoch=epoch: {("s0", epoch), ("s1", epoch), ("s2", epoch)} <= set(watched.died))
    (told,) = wait_for(lambda: watched.told("stage-alone"))
    assert told["stage"] == "s1"
    assert watched.run("s0", 4)["pid"] == watched.run("s2", 4)["pid"] != watched.run("s1", 4)["pid"]
    assert watched.children.status()["s1"]["process"] == "alone-s1"


def test_a_stage_that_ended_for_no_fault_of_its_own_is_reported_at_once(watched: Watched):
    for epoch in range(1, 8):
        watched.run("s0", epoch, "again")
        wait_for(lambda epoch=epoch: ("s0", epoch) in watched.died, 0.4)
    assert watched.children.failures == {}


def test_status_says_how_warm_a_standby_is_and_what_a_take_over_would_cost(watched: Watched):
    watched.children._standby_delay_s = 30.0
    watched.children.warm("s0")
    cold, elsewhere = watched.children.status()["s0"], watched.children.status(["s0"])["s0"]
    watched.children._standby_delay_s = 0.0
    watched.children.warm("s0")
    watched.heard("ready")
    warm = watched.children.status()["s0"]
    assert (cold["warmth"], warm["warmth"], warm["epoch"]) == ("cold", "warm", WARM)
    assert warm["take_over_s"] < elsewhere["take_over_s"] == GUESSES["session"] < cold["take_over_s"]
    watched.children.start("s0", 1)
    watched.heard("running")
    assert "warmth" not in watched.children.status()["s0"]


def test_a_process_without_stages_ends_after_a_while(watched: Watched, monkeypatch):
    pid = watched.run("s0", 1)["pid"]
    watched.children.stop("s0", 1)
    time.sleep(0.3)
    assert not gone(pid)
    monkeypatch.setattr(children_module, "UNUSED_S", 0.1)
    wait_for(lambda: gone(pid))
    wait_for(lambda: watched.told("driver-end"))
    assert watched.run("s0", 2)["pid"] != pid
    assert watched.died == []


def test_what_a_driver_and_all_that_it_has_started_use_of_the_cores_is_told(watched: Watched):
    watched.run("s0", 1, "work")
    watched.heard("worked")
    told = len(watched.busy)
    wait_for(lambda: len(watched.busy) > told + 1)
    used = [busy_ns for _, busy_ns, _ in watched.busy]
    assert used == sorted(used)
    assert 0.3e9 <= used[-1] < 30e9
    assert 1e6 < watched.busy[-1][2] < 1e9


def test_of_a_driver_that_stands_by_only_the_memory_counts_and_of_one_that_only_starts_nothing(watched: Watched):
    watched.run("s0", 1)
    watched.children.warm("s1")
    watched.heard("ready", "s1")
    watched.run("s2", 1, "work")
    wait_for(lambda: {stage for stage, _, _ in watched.busy} >= {"s1", "s2"})
    assert {stage for stage, _, _ in watched.busy} == {"s1", "s2"}
    assert {busy_ns for stage, busy_ns, _ in watched.busy if stage == "s1"} == {0}
    assert all(memory_bytes for _, _, memory_bytes in watched.busy)
    assert costs_of_sessions(set()) == {}


def test_the_seconds_of_a_take_over_are_those_that_the_last_ones_took(watched: Watched):
    """A stage that starts cold, and a standby that takes over: each is measured, and changes what `status` says."""
    guess_s = watched.children.paces.seconds("session")
    watched.run("s0", 1, "runs")
    watched.heard("batch", "s0")
    wait_for(lambda: watched.children.paces.seconds("session") < guess_s)
    assert watched.children.paces.seconds("ready") == GUESSES["ready"]
    watched.mode = "run"
    watched.children.warm("s1")
    watched.heard("ready", "s1")
    before_s = watched.children.status()["s1"]["take_over_s"]
    watched.mode = "slow"
    watched.children.start("s1", 1)
    watched.heard("batch", "s1")
    wait_for(lambda: watched.children.paces.seconds("ready") != GUESSES["ready"])
    watched.mode = "run"
    watched.children.warm("s2")
    watched.heard("ready", "s2")
    assert watched.children.status()["s2"]["take_over_s"] > before_s + 0.3


def test_why_drivers_fail_is_kept_until_a_batch_is_through(watched: Watched):
    for epoch in (1, 2):
        watched.run("s0", epoch, "fail")
        wait_for(lambda epoch=epoch: ("s0", epoch) in watched.died)
    assert watched.children.failures == {"s0": ("map (x.py:3): no column 'sorce'", 2)}
    watched.run("s0", 3, "batch")
    watched.heard("batch")
    wait_for(lambda: not watched.children.failures)


def test_kill_9_of_a_child_takes_what_it_started_with_it(watched: Watched):
    pid = watched.run("s0", 1, "jvm")["pid"]
    jvm = watched.heard("jvm")["jvm"]
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: watched.died == [("s0", 1)])
    wait_for(lambda: gone(jvm))


def test_a_standby_takes_over_without_a_new_process(watched: Watched):
    watched.children.warm("s0")
    assert watched.heard("ready")["epoch"] == WARM
    pid = watched.children.drivers["s0"].child.process.pid
    watched.children.start("s0", 7)
    assert watched.heard("running")["epoch"] == 7
    assert watched.children.drivers["s0"].child.process.pid == pid
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: watched.died == [("s0", 7)])


def test_a_standby_that_ends_just_when_it_is_told_to_run_starts_anew(watched: Watched):
    """What it says about its end as a standby is not the end of what was told to run."""
    watched.children.warm("s0")
    watched.heard("ready")
    hosted = watched.children.drivers["s0"]
    hosted.epoch = 7
    watched.children._on_ended(hosted, "died", WARM)
    assert watched.children.drivers["s0"] is hosted
    assert watched.died == []


def test_a_standby_that_dies_is_replaced_and_reported_to_nobody(watched: Watched):
    watched.children.warm("s0")
    pid = watched.heard("ready")["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: len(watched.news) == 2)
    assert watched.children.drivers["s0"].epoch == WARM
    assert watched.died == []


def test_a_standby_that_died_is_not_replaced_where_it_is_no_longer_wanted(watched: Watched):
    watched.mode = "die"
    watched.children.warm("s0")
    wait_for(lambda: len(watched.told("stage-died")) == 3)
    watched.children.stop("s0", WARM)  # the next one was to come after half a second
    started = len(watched.told("stage-start"))
    time.sleep(1.2)
    assert len(watched.told("stage-start")) == started


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
    assert "s0" not in watched.children.drivers
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
    watched.children._measure([watched.children.drivers["s0"].child])
    assert watched.busy == []


def test_a_stopped_process_is_killed_and_reported(watched: Watched):
    os.kill(watched.run("s0", 1)["pid"], signal.SIGSTOP)
    wait_for(lambda: watched.died == [("s0", 1)])


def test_a_silent_process_is_killed_soon_while_a_stage_runs_in_it_and_later_while_it_starts(watched: Watched):
    watched.run("s0", 1)  # promises nothing
    time.sleep(1)
    assert "s0" in watched.children.drivers
    began = time.monotonic()
    watched.run("s1", 1, "alive")  # promises to speak, and does not
    wait_for(lambda: sorted(watched.died) == [("s0", 1), ("s1", 1)])
    assert time.monotonic() - began > 2.0
    watched.run("s2", 1, "alive")
    began = time.monotonic()
    watched.children.drivers["s2"].tell("run")
    wait_for(lambda: ("s2", 1) in watched.died)
    assert time.monotonic() - began < 2.0


def test_a_node_that_was_stopped_itself_does_not_take_it_out_on_its_children(watched: Watched, monkeypatch):
    """What a child said while its node was stopped is still in the pipe when the node looks for silent ones."""
    watched.run("s0", 1, "alive")
    watched.children.drivers["s0"].tell("run")
    watched.heard("running")
    real, moved = time.monotonic, [0.0]
    monkeypatch.setattr(children_module.time, "monotonic", lambda: real() + moved[0])
    moved[0] = 3.0  # more than the silence that it is granted
    time.sleep(0.3)
    assert watched.died == []


def test_finish_reaches_those_that_run_and_those_that_come_later(watched: Watched):
    watched.run("s0", 1)
    watched.children.finish()
    watched.heard("finished")
    watched.children.start("s1", 1)
    watched.heard("finished", "s1")
    wait_for(lambda: not watched.children.drivers)
    assert watched.died == []


def test_a_fenced_child_is_reported_later_and_noise_is_told(watched: Watched):
    watched.run("s0", 1, "fenced")
    wait_for(lambda: any("fenced" in e["text"] for e in watched.events.since(0)))
    assert watched.died == []
    watched.run("s1", 1, "noise")
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

"""The driver processes of this node: started, told which stages to run, watched, reported when they die.

All stages of a node are in one process, with one JVM; those that stand by are in it, too, or in a second one
(`standby_driver`). What ends a stage is told for that stage alone, what ends a process for every stage in it. A process
that is stopped, or falls silent after it had promised to speak, is as dead as one that exited, and is killed first, so
that two drivers of a stage never run here at once. A stage that dies young again and again is reported more and more
slowly. One that did not stop when it was told to is left behind where it is, and starts again in a process of its own;
so does one in whose batches processes ran out of memory (`alone.py`).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from holdfast.core.node import WARM
from holdfast.model.ids import Asset
from holdfast.runtime.node.alone import ENDS, Offenders
from holdfast.runtime.node.child import WARMTH, Child, Hosted, costs_of_sessions, how_it_died
from holdfast.runtime.node.events import EventLog
from holdfast.runtime.node.metrics import Figures
from holdfast.runtime.node.paces import Paces, pace
from holdfast.runtime.node.starts import Starts
from holdfast.runtime.node.wanted import Wanted

YOUNG_S = 10.0
STOP_GRACE_S = 10.0
SPAWN_RETRY_S = 2.0
#: A process in which nothing runs yet may be silent so many times longer: a JVM that starts answers slowly.
STARTING = 6
#: A process without stages ends after this time: one may come back soon, and would find it warm.
UNUSED_S = 60.0
#: A standby does not wait as long where the JVM is up: warming up is less work than starting one. (It waits for the
#: first batches of stages that start, too.)
UP_DELAY = 0.1
FENCED_WAIT_S = 2.0
#: How a stage can end beside its own failure.
HOW = {
    "fenced": "was fenced by a newer one",
    "again": "had to wait too long for a Python process of Spark's; it is started again",
}
DEFAULT_COMMAND = [sys.executable, "-m", "holdfast.spark.child"]
#: Names of processes, and of their logs; of a stage that has its own: alone-STAGE. The light one has no JVM.
DRIVER, STANDBY, LIGHT = "driver", "standby", "light"


class Children:
    """All of this node's. `on_died(stage, epoch)` and `on_busy(stage, CPU so far, memory)` feed the core."""

    def __init__(
        self,
        command: list[str],
        order: Callable[[], dict[str, Any]],
        logs: Path,
        events: EventLog,
        on_died: Callable[[Asset, int], None],
        on_news: Callable[[Asset, dict[str, Any]], None],
        silence_s: float,
        standby_delay_s: float = 0.0,
        on_busy: Callable[[Asset, int, int], None] | None = None,
        busy_period_s: float = 5.0,
        shared: bool = True,
        run: Path | None = None,
        name: str = "",
        is_light: Callable[[Asset], bool] = lambda stage: False,
    ) -> None:
        self._is_light = is_light
        self._command = command or DEFAULT_COMMAND
        self._order = order
        self._logs = logs
        self._events = events
        self._on_died = on_died
        self._on_news = on_news
        self._silence_s = silence_s
        self._standby_delay_s = standby_delay_s
        self._on_busy = on_busy
        self._busy_period_s = busy_period_s
        #: Where stages stand by: among those that run, or in a process for them.
        self._standby_slot = DRIVER if shared else STANDBY
        #: What all nodes of the run share, in its directory.
        self.offenders = Offenders((run or logs) / "alone")
        self.paces = Paces(run / "paces" if run is not None else None, name)
        self._lock = threading.RLock()
        self._tickets = itertools.count(1)
        self.processes: dict[str, Child] = {}
        #: The present start of every stage that runs or stands by here.
        self.drivers: dict[Asset, Hosted] = {}
        self._young_deaths: dict[Asset, int] = {}
        self._wanted = Wanted(Starts(run))
        self.finishing = False
        #: Until when sources begin no batch; some of them only from this watermark on.
        self._paused_until, self._marks = 0.0, dict[Asset, int]()
        #: Stages that have said here that everything is through.
        self.done: set[Asset] = set()
        #: Why drivers of a stage failed here, the last reason and how many in a row; forgotten when a batch is through.
        self.failures: dict[Asset, tuple[str, int]] = {}
        #: What is to be done later, and when.
        self._planned: list[tuple[float, Callable[[], object]]] = []
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="children", daemon=True).start()

    # --- what the core and the operator want

    def start(self, stage: Asset, epoch: int) -> None:
        with self._lock:
            self._wanted.forget(stage)
            hosted = self.drivers.get(stage)
            if hosted is not None and hosted.epoch == WARM and hosted.child.process.poll() is None:
                hosted.epoch, hosted.started = epoch, time.monotonic()
                hosted.ask()
                hosted.tell("run")
                self._events.write("stage-start", f"The standby of {stage} takes over.", stage=stage, epoch=epoch)
            else:
                if hosted is not None:
                    self._stop(hosted)
                self._begin(stage, epoch)
            started = self.drivers.get(stage)
            if started is not None and (left_s := self._paused_until - time.monotonic()) > 0:
                started.tell("pause", seconds=left_s, mark=self._marks.get(stage))
            if self.finishing and started is not None:
                started.tell("finish")

    def warm(self, stage: Asset) -> None:
        """Not at once (`wanted.py`); sooner where a JVM is up."""
        with self._lock:
            hosted = self.drivers.pop(stage, None)
            if hosted is not None:
                self._stop(hosted)
            up = self._standby_slot in self.processes
            share = 0.0 if self._is_light(stage) else UP_DELAY if up else 1.0
            self._wanted.add(stage, share * self._standby_delay_s)

    def stop(self, stage: Asset, epoch: int) -> None:
        with self._lock:
            if epoch == WARM:
                self._wanted.forget(stage)
            hosted = self.drivers.get(stage)
            if hosted is not None and hosted.epoch == epoch:
                self._stop(hosted)
                del self.drivers[stage]

    def finish(self) -> None:
        """Every stage reads what is there, seals a last batch and ends; one that is started later, too."""
        with self._lock:
            self.finishing = True
            for hosted in self.drivers.values():
                if hosted.epoch != WARM:
                    hosted.tell("finish")

    def pause(self, seconds: float, marks: dict[Asset, int]) -> None:
        """Sources begin no batch for this time, also those that are started meanwhile; 0: they go on. One that has a
        mark goes on until its watermark is there."""
        with self._lock:
            self._paused_until, self._marks = time.monotonic() + seconds, marks
            for hosted in self.drivers.values():
                if hosted.epoch != WARM:
                    hosted.tell("pause", seconds=seconds, mark=marks.get(hosted.stage))

    def close(self) -> None:
        """Stop all and wait for them."""
        self._closed.set()
        with self._lock:
            processes = list(self.processes.values())
            self.processes.clear()
            self.drivers.clear()
        for child in processes:
            child.end()
        deadline = time.monotonic() + STOP_GRACE_S
        for child in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(max(0.0, deadline - time.monotonic()))
            child.kill()

    def status(self, passed_over: Collection[Asset] = ()) -> dict[Asset, dict[str, Any]]:
        """Every stage that runs or stands by here, and what a take-over of these would cost. Those that are
        `passed_over` would start elsewhere, where a process is up, if the one here is not."""
        cold = {"epoch": WARM, "pid": None, "process": "", "last": {}, "warmth": "cold"}
        with self._lock:
            waiting = self._wanted.waiting()
            found = {stage: cold | {"take_over_s": self._cold_s(stage, stage in passed_over)} for stage in waiting}
            return found | {s: hosted.status(self.paces, s in passed_over) for s, hosted in self.drivers.items()}

    def _cold_s(self, stage: Asset, passed_over: bool) -> float:
        """What a take-over would cost that has to begin with nothing."""
        light = self._is_light(stage)
        up = self.processes.get(LIGHT if light else self._standby_slot)
        is_up = passed_over or (up is not None and up.up_at)
        start_s = 0.0 if is_up else self.paces.seconds(pace("up", light))
        return round(self.paces.seconds(pace("session", light)) + start_s, 1)

    def figures(self) -> Figures:
        with self._lock:
            busy = {stage: hosted.busy_ns / 1e9 for stage, hosted in self.drivers.items() if hosted.epoch != WARM}
            found: Figures = [("driver_processes", (), len(self.processes))]
        found += [("stage_busy_seconds", (stage,), seconds) for stage, seconds in busy.items()]
        standbys = {stage: told for stage, told in self.status().items() if "take_over_s" in told}
        return found + [("take_over_seconds", (stage,), told["take_over_s"]) for stage, told in standbys.items()]

    # --- starting and stopping

    def _slot(self, stage: Asset, epoch: int) -> str:
        """In which process a stage is started."""
        lone = f"alone-{stage}"
        if self.offenders.is_alone(stage):
            return lone
        slot = LIGHT if self._is_light(stage) else self._standby_slot if epoch == WARM else DRIVER
        child = self.processes.get(slot)
        if child is not None and any(child.stages[ticket].stage == stage for ticket in child.stuck):
            return lone  # Spark does not start a query twice in one JVM
        return slot

    def _begin(self, stage: Asset, epoch: int) -> None:
        text = f"The driver of {stage} starts at epoch {epoch}."
        text = f"A standby of {stage} is wanted here; it is cold for now." if epoch == WARM else text
        self._events.write("stage-start", text, stage=stage, epoch=epoch)
        try:
            child = self._process(self._slot(stage, epoch), self._is_light(stage))
        except (OSError, RuntimeError) as error:  # no memory, files or threads: the node goes on, and so must the stage
            self.drivers.pop(stage, None)
            text, standby = f"The driver of {stage} cannot be started: {error}.", epoch == WARM
            self._events.write("stage-died", text, stage=stage, epoch=epoch, standby=standby)
            self._later(SPAWN_RETRY_S, lambda: self._report(stage, epoch))
            return
        hosted = self.drivers[stage] = child.host(stage, epoch, next(self._tickets))
        if epoch != WARM:
            hosted.ask()
        hosted.tell("warm" if epoch == WARM else "run")

    def _process(self, slot: str, light: bool) -> Child:
        """The one of this name, started if it is not there."""
        child = self.processes.get(slot)
        if child is not None and child.process.poll() is None and not child.told_to_stop:
            return child
        child = Child(slot, self._command, self._order(), self._logs / f"{slot}.log", light)
        try:
            listener = threading.Thread(target=self._listen, args=(child,), name=f"hear-{slot}", daemon=True)
            follower = threading.Thread(target=self._follow, args=(child, listener), name=f"child-{slot}", daemon=True)
            listener.start()
            follower.start()
        except RuntimeError:  # nobody would hear what it says, nor that it ends
            child.kill()
            child.process.wait()
            raise
        pid = child.process.pid
        self._events.write("driver-start", f"The {slot} process is started (pid {pid}).", process=slot, pid=pid)
        self.processes[slot] = child
        return child

    def _stop(self, hosted: Hosted) -> None:
        """Told to stop. The node does not wait for it: a fenced driver does no harm."""
        hosted.told_to_stop = True
        hosted.tell("stop")

        def look() -> None:
            child = hosted.child
            if not child.promised and hosted.ticket in child.stages and child.process.poll() is None:
                child.kill()  # it never spoke: nothing else would find out that it does not listen

        self._later(STOP_GRACE_S, look)

    def _later(self, seconds: float, do: Callable[[], object]) -> None:
        """By the thread that watches: when none is left to be started, this must work all the same."""
        self._planned.append((time.monotonic() + seconds, do))

    # --- what they say

    def _listen(self, child: Child) -> None:
        pipe = child.process.stdout
        for line in pipe or ():
            child.spoke = time.monotonic()
            try:
                news = json.loads(line)
                event = str(news["event"])
                hosted = None if event in ("alive", "up") else child.stages.get(int(news["ticket"]))
            except (ValueError, KeyError, TypeError):
                text = line[:200].decode(errors="replace").strip()
                self._events.limited(("odd", child.slot), 5, "stage-odd", f"A driver said: {text}", process=child.slot)
                continue
            if event == "alive":
                child.promised = True
            elif event == "up":
                self._on_up(child)
            elif hosted is not None:
                self._on_said(hosted, event, news)

    def _on_up(self, child: Child) -> None:
        """It has a session. (Who says something else first has one, too.)"""
        if not child.up_at:
            child.up_at = time.monotonic()
            self.paces.add(pace("up", child.light), child.up_at - child.started)

    def _on_said(self, hosted: Hosted, event: str, news: dict[str, Any]) -> None:
        stage, child = hosted.stage, hosted.child
        self._on_up(child)
        if event in ("busy", "batch"):
            hosted.busy_since = time.monotonic() if event == "busy" else 0.0
        if event == "paused":
            hosted.paused = bool(news.get("on"))
        if event in ("busy", "paused"):
            return
        if event in WARMTH:
            hosted.step = event
        if event == "ended":
            self._on_ended(hosted, str(news.get("how")), news.get("epoch"))
            return
        if event == "finished":
            hosted.finished = True
            self.done.add(stage)
        if event == "running":
            news = hosted.on_running(news)
        if event == "stuck":
            self._on_stuck(hosted)
        if event == "batch":
            self._on_batch(hosted, float((news.get("progress") or {}).get("batchDuration") or 0))
        if event == "failed" and hosted.epoch != WARM:
            self.failures[stage] = (str(news.get("text")), self.failures.get(stage, ("", 0))[1] + 1)
        if event in ("batch", "finished"):
            self.failures.pop(stage, None)
        hosted.last = news
        self._on_news(stage, news)

    def _on_batch(self, hosted: Hosted, batch_ms: float) -> None:
        hosted.batch_ms += batch_ms
        cost_s = hosted.took_s(batch_ms / 1e3)
        if cost_s is not None:
            self.paces.add(pace(hosted.asked_step, hosted.child.light), cost_s)

    def _on_stuck(self, hosted: Hosted) -> None:
        with self._lock:
            hosted.child.stuck.add(hosted.ticket)
            hosted.running = False
            if self.drivers.get(hosted.stage) is not hosted:
                return
            del self.drivers[hosted.stage]
        self._on_death(hosted, "has failed, and does not end")

    def _on_ended(self, hosted: Hosted, how: str, epoch: Any) -> None:
        """One stage has ended, and its process goes on."""
        child = hosted.child
        with self._lock:
            if epoch != hosted.epoch:
                return  # it ended as a standby, and was told to run since: it starts anew
            child.stages.pop(hosted.ticket, None)
            child.stuck.discard(hosted.ticket)
            child.used = time.monotonic()
            if self.drivers.get(hosted.stage) is not hosted or self._closed.is_set():
                return
            del self.drivers[hosted.stage]
        if hosted.told_to_stop or hosted.finished:
            text = f"The driver of {hosted.stage} has ended."
            self._events.write("stage-end", text, stage=hosted.stage, epoch=hosted.epoch)
            return
        self._on_death(hosted, HOW.get(how, "has failed"), how)

    # --- how they end

    def _follow(self, child: Child, listener: threading.Thread) -> None:
        """Its exit ends it, not the end of its output: a JVM that outlives it may still hold the pipe."""
        code = child.process.wait()
        child.kill()  # what it left behind
        listener.join(1.0)
        self._on_exit(child, code)

    def _on_exit(self, child: Child, code: int) -> None:
        """A process has ended, and with it every stage in it."""
        with self._lock:
            if self.processes.get(child.slot) is child:
                del self.processes[child.slot]
            if self._closed.is_set():
                return
            lost = [hosted for hosted in child.stages.values() if self.drivers.get(hosted.stage) is hosted]
            for hosted in lost:
                del self.drivers[hosted.stage]
            child.stages.clear()
        how = "has ended" if child.told_to_stop else how_it_died(code)
        names = [hosted.stage for hosted in lost]
        text = f"The {child.slot} process {how}; in it were {', '.join(names) or 'no stages'}."
        self._events.write("driver-end", text, process=child.slot, code=code, stages=names)
        if child.lacked_memory(code):
            self._blame(lost)
        for hosted in lost:
            if hosted.finished or hosted.told_to_stop:
                text = f"The driver of {hosted.stage} has ended."
                self._events.write("stage-end", text, stage=hosted.stage, epoch=hosted.epoch, code=code)
            else:
                self._on_death(hosted, how, code=code)

    def _blame(self, lost: list[Hosted]) -> None:
        """Of those that were in a batch, the one that had been for the longest time."""
        busy = [hosted for hosted in lost if hosted.busy_since]
        if not busy:
            return
        hosted = min(busy, key=lambda hosted: hosted.busy_since)
        stage = hosted.stage
        if self.offenders.blame(stage, f"epoch {hosted.epoch}, in {hosted.child.slot} of {hosted.child.log.parent}"):
            text = f"{ENDS} processes ran out of memory in batches of {stage}. It has one of its own from now on."
            self._events.write("stage-alone", text, stage=stage)

    def _on_death(self, hosted: Hosted, why: str, how: str = "died", **fields: Any) -> None:
        stage, epoch = hosted.stage, hosted.epoch
        with self._lock:
            young = time.monotonic() - hosted.started < YOUNG_S and how != "again"
            deaths = self._young_deaths.get(stage, 0) + 1 if young else 0
            self._young_deaths[stage] = deaths
        text = f"The driver of {stage} {why}; see {hosted.child.log}."
        self._events.write("stage-died", text, stage=stage, epoch=epoch, standby=epoch == WARM, **fields)
        wait_s = 0.0 if deaths < 2 else min(30.0, 0.5 * 2 ** (deaths - 2))
        wait_s = max(wait_s, FENCED_WAIT_S) if how == "fenced" else wait_s  # the record that names another is coming
        if wait_s:
            self._later(wait_s, lambda: self._report(stage, epoch))
        else:
            self._report(stage, epoch)

    def _report(self, stage: Asset, epoch: int) -> None:
        if self._closed.is_set():
            return
        if epoch == WARM:
            with self._lock:
                self._wanted.again(stage)
        else:
            self._on_died(stage, epoch)

    # --- watching

    def _watch(self) -> None:
        """Find processes that are stopped or silent; let stages stand by, when their time has come."""
        stopped: dict[int, float] = {}
        period_s = min(1.0, self._silence_s / 4)
        looked = measured = time.monotonic()
        while not self._closed.wait(period_s):
            now = time.monotonic()
            slept, looked = now - looked > 2 * period_s, now
            self._do_planned(now)
            with self._lock:
                # here and not where its death was heard: the kernel kills a process with the *thread* that started it
                for stage in self._wanted.take_due(now):
                    if stage not in self.drivers:
                        self._begin(stage, WARM)
                processes = list(self.processes.values())
                self._end_unused(processes, now)
            if self._on_busy is not None and now - measured >= self._busy_period_s:
                measured = now
                self._measure([child for child in processes if child.up_at])
            if slept:  # this process was stopped or starved: what its children said meanwhile has not been read yet
                stopped.clear()
                for child in processes:
                    child.spoke = now
                continue
            for child in processes:
                self._look(child, stopped, now)

    def _do_planned(self, now: float) -> None:
        due = [one for one in self._planned if one[0] <= now]
        for one in due:
            self._planned.remove(one)
            one[1]()

    def _look(self, child: Child, stopped: dict[int, float], now: float) -> None:
        pid = child.process.pid
        if child.is_stopped():
            since = stopped.setdefault(pid, now)
        else:
            stopped.pop(pid, None)
            since = now
        limit_s = self._silence_s if child.running else STARTING * self._silence_s
        silent = child.promised and now - child.spoke > limit_s
        if now - since > self._silence_s or silent:
            text, stages = f"The {child.slot} process has been silent for {limit_s:g} s and is killed.", child.names()
            self._events.write("stage-silent", text, process=child.slot, stages=stages)
            stopped.pop(pid, None)
            child.kill()

    def _end_unused(self, processes: list[Child], now: float) -> None:
        """Processes without stages, after a while; at once where only those are left that do not stop."""
        for child in processes:
            if child.told_to_stop or len(child.stages) > len(child.stuck):
                child.used = now
            elif child.stuck or now - child.used > UNUSED_S:
                child.end()
                self._later(STOP_GRACE_S, lambda child=child: child.process.poll() is None and child.kill())

    def _measure(self, processes: list[Child]) -> None:
        """What stages have used of all cores, and their memory; not while they start, which is work of another kind."""
        used: dict[int, tuple[int, int]] = {}
        with contextlib.suppress(OSError):  # no descriptor is left for a look
            used = costs_of_sessions({child.process.pid for child in processes})
        for child in processes:
            if child.process.pid in used and self._on_busy is not None:
                for hosted in child.share(*used[child.process.pid], time.monotonic()):
                    if self.drivers.get(hosted.stage) is hosted and (hosted.running or hosted.epoch == WARM):
                        self._on_busy(hosted.stage, hosted.busy_ns, child.memory_share)

"""The Spark processes of stages on this node: started, told what to do, watched, reported when they die.

A child gets one JSON object on its first line of stdin, then commands; it answers with JSON lines on stdout, which
go into the event log. It dies with its node, and its JVM with it (`leash.py`). A child that is
stopped or falls silent after it had promised to speak is as dead as one that exited, and is killed first, so that
two drivers never run here at once. One that dies young again and again is reported more and more slowly.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.core.node import WARM
from holdfast.model.ids import Asset
from holdfast.runtime.node.events import EventLog

YOUNG_S = 10.0
STOP_GRACE_S = 10.0
SPAWN_RETRY_S = 2.0
#: A driver that does not run yet may be silent so many times longer: a JVM that starts answers slowly.
STARTING = 6
FENCED = 3
DEFAULT_COMMAND = [sys.executable, "-m", "holdfast.spark.child"]


class Child:
    """One process of one stage. `epoch` is WARM while it stands by."""

    def __init__(self, stage: Asset, epoch: int, command: list[str], order: dict[str, Any], log: Path) -> None:
        self.stage = stage
        self.epoch = epoch
        self.started = time.monotonic()
        self.spoke = self.started
        self.promised = self.running = False
        self.told_to_stop = False
        self.finished = False
        self.last: dict[str, Any] = {}
        log.parent.mkdir(parents=True, exist_ok=True)
        leash = [sys.executable, "-I", "-S", str(Path(__file__).with_name("leash.py")), str(os.getpid())]
        with open(log, "ab") as stderr:
            self.process = subprocess.Popen(
                [*leash, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,  # so that its JVM can be killed with it
            )
        self._lock = threading.Lock()
        self.tell(order)

    def tell(self, command: dict[str, Any]) -> None:
        with self._lock, contextlib.suppress(OSError, ValueError):
            pipe = self.process.stdin
            if pipe is not None:
                pipe.write(json.dumps(command).encode() + b"\n")
                pipe.flush()

    def kill(self) -> None:
        """It and everything it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def is_stopped(self) -> bool:
        try:
            stat = Path(f"/proc/{self.process.pid}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] in "Tt"


class Children:
    """All of this node's. `on_died(stage, epoch)` feeds the core."""

    def __init__(
        self,
        command: list[str],
        order: Callable[[Asset, int | None], dict[str, Any]],
        logs: Path,
        events: EventLog,
        on_died: Callable[[Asset, int], None],
        on_news: Callable[[Asset, dict[str, Any]], None],
        silence_s: float,
        standby_delay_s: float = 0.0,
        on_busy: Callable[[Asset, int], None] | None = None,
        busy_period_s: float = 5.0,
    ) -> None:
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
        self._lock = threading.RLock()
        self.children: dict[Asset, Child] = {}
        self._young_deaths: dict[Asset, int] = {}
        #: Stages that shall stand by here, and when those of them that have no process get one.
        self._warm: set[Asset] = set()
        self._due: dict[Asset, float] = {}
        self.finishing = False
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
            self._forget(stage)
            child = self.children.get(stage)
            if child is not None and child.epoch == WARM and child.process.poll() is None:
                child.epoch = epoch
                child.tell({"go": epoch})
                self._events.write("stage-start", f"The standby of {stage} takes over.", stage=stage, epoch=epoch)
            else:
                if child is not None:
                    self._stop(child)
                self._spawn(stage, epoch)
            started = self.children.get(stage)
            if self.finishing and started is not None:
                started.tell({"finish": True})

    def warm(self, stage: Asset) -> None:
        """Not at once: a JVM that starts takes what the machine has, just when others take over from a dead node."""
        with self._lock:
            self._warm.add(stage)
            child = self.children.pop(stage, None)
            if child is not None:
                self._stop(child)
            self._due[stage] = time.monotonic() + self._standby_delay_s

    def stop(self, stage: Asset, epoch: int) -> None:
        with self._lock:
            if epoch == WARM:
                self._forget(stage)
            child = self.children.get(stage)
            if child is not None and child.epoch == epoch:
                self._stop(child)
                del self.children[stage]

    def _forget(self, stage: Asset) -> None:
        self._warm.discard(stage)
        self._due.pop(stage, None)

    def finish(self) -> None:
        """Every stage reads what is there, seals a last batch and ends; one that is started later, too."""
        with self._lock:
            self.finishing = True
            for child in self.children.values():
                if child.epoch != WARM:
                    child.tell({"finish": True})

    def close(self) -> None:
        """Stop all and wait for them."""
        self._closed.set()
        with self._lock:
            children = list(self.children.values())
            self.children.clear()
        for child in children:
            child.told_to_stop = True
            child.tell({"stop": True})
        deadline = time.monotonic() + STOP_GRACE_S
        for child in children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(max(0.0, deadline - time.monotonic()))
            child.kill()

    # --- processes

    def _spawn(self, stage: Asset, epoch: int) -> None:
        order = self._order(stage, None if epoch == WARM else epoch)
        what = "is warmed up" if epoch == WARM else f"starts at epoch {epoch}"
        self._events.write("stage-start", f"The driver of {stage} {what}.", stage=stage, epoch=epoch)
        child: Child | None = None
        try:
            child = Child(stage, epoch, self._command, order, self._logs / f"{stage}.log")
            listener = threading.Thread(target=self._listen, args=(child,), name=f"hear-{stage}", daemon=True)
            follower = threading.Thread(target=self._follow, args=(child, listener), name=f"child-{stage}", daemon=True)
            listener.start()
            follower.start()
        except (
            OSError,
            RuntimeError,
        ) as error:  # no memory, files or threads left: the node goes on, so must the stage
            if child is not None:
                child.kill()
                child.process.wait()
            self.children.pop(stage, None)
            text = f"The driver of {stage} cannot be started: {error}."
            self._events.write("stage-died", text, stage=stage, epoch=epoch, standby=epoch == WARM)
            self._later(SPAWN_RETRY_S, lambda: self._report(stage, epoch))
            return
        self.children[stage] = child

    def _stop(self, child: Child) -> None:
        """Told to stop, and killed if it does not. The node does not wait for it: a fenced driver does no harm."""
        child.told_to_stop = True
        child.tell({"stop": True})
        self._later(STOP_GRACE_S, lambda: child.process.poll() is None and child.kill())

    def _later(self, seconds: float, do: Callable[[], object]) -> None:
        """By the thread that watches: when none is left to be started, this must work all the same."""
        self._planned.append((time.monotonic() + seconds, do))

    def _listen(self, child: Child) -> None:
        pipe = child.process.stdout
        for line in pipe or ():
            child.spoke = time.monotonic()
            try:
                news = json.loads(line)
                event = str(news["event"])
            except (ValueError, KeyError, TypeError):
                text = line[:200].decode(errors="replace").strip()
                self._events.limited(
                    ("odd", child.stage), 5, "stage-odd", f"{child.stage} said: {text}", stage=child.stage
                )
                continue
            if event == "alive":
                child.promised = True
                continue
            if event == "finished":
                child.finished = True
                self.done.add(child.stage)
            if event == "running":
                child.running = True
            if event == "failed" and child.epoch != WARM:
                self.failures[child.stage] = (str(news.get("text")), self.failures.get(child.stage, ("", 0))[1] + 1)
            if event in ("batch", "finished"):
                self.failures.pop(child.stage, None)
            child.last = news
            self._on_news(child.stage, news)

    def _follow(self, child: Child, listener: threading.Thread) -> None:
        """Its exit ends it, not the end of its output: a JVM that outlives it may still hold the pipe."""
        code = child.process.wait()
        child.kill()  # what it left behind
        listener.join(1.0)
        self._on_exit(child, code)

    def _on_exit(self, child: Child, code: int) -> None:
        with self._lock:
            if self.children.get(child.stage) is not child or self._closed.is_set():
                return
            stage, epoch = child.stage, child.epoch
            del self.children[stage]
            if child.told_to_stop or (child.finished and code == 0):
                self._events.write(
                    "stage-end", f"The driver of {stage} has ended.", stage=stage, epoch=epoch, code=code
                )
                return
            young = time.monotonic() - child.started < YOUNG_S
            deaths = self._young_deaths.get(stage, 0) + 1 if young else 0
            self._young_deaths[stage] = deaths
        why = "was fenced by a newer one" if code == FENCED else _how(code)
        text = f"The driver of {stage} {why}; see {self._logs / (stage + '.log')}."
        self._events.write("stage-died", text, stage=stage, epoch=epoch, code=code, standby=epoch == WARM)
        wait_s = 0.0 if deaths < 2 else min(30.0, 0.5 * 2 ** (deaths - 2))
        if code == FENCED:
            wait_s = max(wait_s, 2.0)  # the record that names another is on its way
        if not self._closed.wait(wait_s):  # on the thread that followed it
            self._report(stage, epoch)

    def _report(self, stage: Asset, epoch: int) -> None:
        if self._closed.is_set():
            return
        if epoch == WARM:
            with self._lock:
                if stage in self._warm:
                    self._due[stage] = time.monotonic()
        else:
            self._on_died(stage, epoch)

    def _do_planned(self, now: float) -> None:
        due = [one for one in self._planned if one[0] <= now]
        for one in due:
            self._planned.remove(one)
            one[1]()

    def _watch(self) -> None:
        """Find children that are stopped or silent; start those that stand by, when their time has come."""
        stopped: dict[int, float] = {}
        period_s = min(1.0, self._silence_s / 4)
        looked = measured = time.monotonic()
        while not self._closed.wait(period_s):
            now = time.monotonic()
            slept, looked = now - looked > 2 * period_s, now
            self._do_planned(now)
            with self._lock:
                # here and not where its death was heard: the kernel kills a process with the *thread* that started it
                for stage in [stage for stage, due in self._due.items() if due <= now]:
                    del self._due[stage]
                    if stage not in self.children:
                        self._spawn(stage, WARM)
                children = list(self.children.values())
            if self._on_busy is not None and now - measured >= self._busy_period_s:
                measured = now
                self._measure([child for child in children if child.running and child.epoch != WARM])
            if slept:  # this process was stopped or starved: what its children said meanwhile has not been read yet
                stopped.clear()
                for child in children:
                    child.spoke = now
                continue
            for child in children:
                pid = child.process.pid
                if child.is_stopped():
                    since = stopped.setdefault(pid, now)
                else:
                    stopped.pop(pid, None)
                    since = now
                limit_s = self._silence_s if child.running else STARTING * self._silence_s
                silent = child.promised and now - child.spoke > limit_s
                if now - since > self._silence_s or silent:
                    text = f"The driver of {child.stage} has been silent for {limit_s:g} s and is killed."
                    self._events.write("stage-silent", text, stage=child.stage, epoch=child.epoch)
                    stopped.pop(pid, None)
                    child.kill()

    def _measure(self, children: list[Child]) -> None:
        """What drivers have used of all cores; not while they start, which is work of another kind."""
        used: dict[int, int] = {}
        with contextlib.suppress(OSError):  # no descriptor is left for a look
            used = cpu_of_sessions({child.process.pid for child in children})
        for child in children:
            if child.process.pid in used and self._on_busy is not None:
                self._on_busy(child.stage, used[child.process.pid])


def cpu_of_sessions(sessions: set[int]) -> dict[int, int]:
    """Nanoseconds of CPU that sessions have used so far: a driver, its JVM, its Python workers. Empty without /proc."""
    found: dict[int, int] = {}
    if not sessions or not os.path.isdir("/proc/self"):
        return found
    tick_ns = 10**9 // os.sysconf("SC_CLK_TCK")
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                if (session := int(fields[3])) in sessions:  # see proc(5); of its own and of its ended children
                    found[session] = found.get(session, 0) + sum(map(int, fields[11:15])) * tick_ns
    return found


def _how(code: int) -> str:
    if code >= 0:
        return f"died with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"

"""One driver process of this node, and the stages in it, as the node sees them.

It dies with its node, and its JVM with it (`leash.py`). What it is told and what it says is in `spark/child.py`.
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
from pathlib import Path
from typing import Any

from holdfast.core.node import WARM
from holdfast.model.ids import Asset
from holdfast.runtime.node.alone import OUT_OF_MEMORY, kills_for_memory
from holdfast.runtime.node.paces import Paces, pace, took_s

#: How warm a standby is, by the last of these that it has said; `paces.py` knows what a take-over costs then. Before
#: the first one it is cold: the JVM may have to come up as well.
WARMTH = {"session": "session up", "planned": "planned", "ready": "warm"}


#: So long after something has started in a process, or has warmed up, it may still be at that: a JVM compiles, and
#: practises what it has not done yet (`spark/practice.py`).
SETTLE_S = 30.0
#: What a stage uses at most for each millisecond of its batches, as long as nothing is known: a core.
CORE_NS = 1e6


class Hosted:
    """One start of a stage in a driver process. `epoch` is WARM while it stands by."""

    def __init__(self, stage: Asset, epoch: int, ticket: int, child: Child) -> None:
        self.stage = stage
        self.epoch = epoch
        self.ticket = ticket
        self.child = child
        self.started = time.monotonic()
        #: When it was told to run, how warm it was then, and when its query ran; 0: it is not, or that is told.
        self.asked, self.asked_step, self.ran = 0.0, "", 0.0
        self.running = self.finished = self.told_to_stop = False
        #: A source that has said that nothing is under way, and that nothing begins before its pause ends.
        self.paused = False
        #: Since when it has been in the middle of a batch; 0: it is not.
        self.busy_since = 0.0
        #: As a standby, what it said last about itself.
        self.step = ""
        self.last: dict[str, Any] = {}
        #: What its batches have taken so far, and the CPU of its process that is counted as its own.
        self.batch_ms = 0.0
        self.busy_ns = 0

    def ask(self) -> None:
        """It is told to run, now."""
        self.asked, self.asked_step, self.ran = time.monotonic(), self.step or "session", 0.0

    def on_running(self, news: dict[str, Any]) -> dict[str, Any]:
        """Its query runs: what it says, with the time since this node was to start it. The driver itself knows only
        what came after its Spark session."""
        self.running, self.ran = True, time.monotonic()
        after_s, query_s = round(self.ran - self.started, 1), news.get("seconds")
        text = f"{self.stage} runs at epoch {self.epoch}, {after_s:g} s after this node was to start it"
        text += f"; starting the query took {query_s:g} s of that." if isinstance(query_s, int | float) else "."
        return {**news, "text": text, "after_s": after_s}

    @property
    def is_settled(self) -> bool:
        """Has it done what a start, or warming up, takes?"""
        return self.step == "ready" if self.epoch == WARM else self.running and not self.asked

    def took_s(self, batch_s: float) -> float | None:
        """What its start has cost, when its first batch is through; only once. The JVM's own start is not in it."""
        asked, self.asked = max(self.asked, self.child.up_at) if self.asked else 0.0, 0.0
        return took_s(asked, self.ran, time.monotonic(), batch_s) if asked and self.ran else None

    def status(self, paces: Paces, passed_over: bool = False) -> dict[str, Any]:
        """For `status`. `passed_over`: it would start in another process, as long as this one is not up."""
        found = {"epoch": self.epoch, "pid": self.child.process.pid, "process": self.child.slot, "last": self.last}
        found["paused"] = self.paused
        if self.epoch == WARM:
            light = self.child.light
            seconds = paces.seconds(pace(self.step or "session", light))
            if not self.step and not self.child.up_at and not passed_over:
                seconds += max(1.0, paces.seconds(pace("up", light)) - (time.monotonic() - self.child.started))
            found |= {"warmth": WARMTH.get(self.step, "cold"), "take_over_s": round(seconds, 1)}
        return found

    def tell(self, do: str, **more: Any) -> None:
        command = {"do": do, "stage": self.stage, "ticket": self.ticket, **more}
        self.child.tell(command | ({"epoch": self.epoch} if do == "run" else {}))


class Child:
    """One process. `slot` is what it is for, and the name of its log."""

    def __init__(self, slot: str, command: list[str], order: dict[str, Any], log: Path, light: bool = False) -> None:
        self.slot = slot
        #: Its stages need no Spark: it has no JVM.
        self.light = light
        self.log = log
        self.started = self.spoke = self.used = time.monotonic()
        self.promised = self.told_to_stop = False
        #: Since when it has a session; 0: it has none yet.
        self.up_at = 0.0
        self.kills_before = kills_for_memory()
        #: By ticket: everything that was started in it and has not ended, also what is stuck.
        self.stages: dict[int, Hosted] = {}
        #: Tickets of those that were told to stop, and do not.
        self.stuck: set[int] = set()
        #: Of all cores, as far as it is counted; and the memory that it and all it started take now.
        self.cpu_ns = self.memory_bytes = 0
        #: When something in it last started, or warmed up; when CPU was last counted; and what its stages used for each
        #: millisecond of their batches when nothing did.
        self.unsettled_at = self.counted_at = self.started
        self.batch_ns = CORE_NS
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
        self.tell(order | {"light": light})

    def host(self, stage: Asset, epoch: int, ticket: int) -> Hosted:
        """A stage is about to start in it, or to stand by."""
        hosted = self.stages[ticket] = Hosted(stage, epoch, ticket, self)
        self.unsettled_at = hosted.started
        return hosted

    @property
    def running(self) -> bool:
        return any(hosted.running for hosted in list(self.stages.values()))

    def names(self) -> list[Asset]:
        return [hosted.stage for hosted in list(self.stages.values())]

    def tell(self, command: dict[str, Any]) -> None:
        with self._lock, contextlib.suppress(OSError, ValueError):
            pipe = self.process.stdin
            if pipe is not None:
                pipe.write(json.dumps(command).encode() + b"\n")
                pipe.flush()

    def end(self) -> None:
        """Told to end, all stages in it."""
        self.told_to_stop = True
        for hosted in list(self.stages.values()):
            hosted.told_to_stop = True
        self.tell({"do": "stop"})

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

    def lacked_memory(self, code: int) -> bool:
        """Is that why it ended? A process that was killed may have been killed by the kernel."""
        return code == OUT_OF_MEMORY or (code == -signal.SIGKILL and kills_for_memory() > self.kills_before)

    def share(self, cpu_ns: int, memory_bytes: int, now: float) -> list[Hosted]:
        """Count what it has used since the last look for the stages that run in it, by the time of their batches.

        While one of them starts (one that fails does so again and again), or a standby warms up, that is most of what
        the process uses, and not the cost of those that run: they count no more than they used for their batches
        before. Otherwise whoever has standbys or a failing stage beside it would be moved for balance, and the move
        would warm up the next. Where no batch has ended, all have the same share. Of the memory everything in it has
        the same share, standbys, too: all that runs in a JVM is in one heap.
        """
        self.memory_bytes = memory_bytes
        hosted = dict(self.stages)
        if any(not one.is_settled for ticket, one in hosted.items() if ticket not in self.stuck):
            self.unsettled_at = now
        at_work = [one for one in hosted.values() if one.running]
        spans = [one.batch_ms for one in at_work]
        total = sum(spans)
        settled = self.counted_at - self.unsettled_at > SETTLE_S
        if at_work and not total and not settled:
            return list(hosted.values())  # it is counted when a batch has ended
        used, self.cpu_ns, self.counted_at = max(0, cpu_ns - self.cpu_ns), cpu_ns, now
        if not settled:
            used = min(used, int(total * self.batch_ns))
        elif total:
            self.batch_ns = used / total
        for one, span in zip(at_work, spans, strict=True):
            one.busy_ns += int(used * span / total) if total else used // len(at_work)
            one.batch_ms = 0.0
        return list(hosted.values())

    @property
    def memory_share(self) -> int:
        return self.memory_bytes // max(1, len(self.stages))


def costs_of_sessions(sessions: set[int]) -> dict[int, tuple[int, int]]:
    """What sessions (a driver, its JVM, its Python workers) have used so far: nanoseconds of CPU, and bytes of memory
    now, in which pages that workers share count for each of them. Empty without /proc."""
    found: dict[int, tuple[int, int]] = {}
    if not sessions or not os.path.isdir("/proc/self"):
        return found
    tick_ns, page = 10**9 // os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                if (session := int(fields[3])) in sessions:  # see proc(5); of its own and of its ended children
                    cpu_ns, taken = found.get(session, (0, 0))
                    cpu_ns += sum(map(int, fields[11:15])) * tick_ns
                    found[session] = (cpu_ns, taken + int(fields[21]) * page)
    return found


def how_it_died(code: int) -> str:
    if code >= 0:
        return f"died with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"

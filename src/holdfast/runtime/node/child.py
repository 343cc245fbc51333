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
from holdfast.runtime.node.paces import Paces, took_s

#: How warm a standby is, by the last of these that it has said; `paces.py` knows what a take-over costs then. Before
#: the first one it is cold: the JVM may have to come up as well.
WARMTH = {"session": "session up", "planned": "planned", "ready": "warm"}


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

    def took_s(self, batch_s: float) -> float | None:
        """What its start has cost, when its first batch is through; only once. The JVM's own start is not in it."""
        asked, self.asked = max(self.asked, self.child.up_at) if self.asked else 0.0, 0.0
        return took_s(asked, self.ran, time.monotonic(), batch_s) if asked and self.ran else None

    def status(self, paces: Paces) -> dict[str, Any]:
        """For `status`."""
        found = {"epoch": self.epoch, "pid": self.child.process.pid, "process": self.child.slot, "last": self.last}
        found["paused"] = self.paused
        if self.epoch == WARM:
            seconds = paces.seconds(self.step or "session")
            if not self.step and not self.child.up_at:
                seconds += max(1.0, paces.seconds("up") - (time.monotonic() - self.child.started))
            found |= {"warmth": WARMTH.get(self.step, "cold"), "take_over_s": round(seconds, 1)}
        return found

    def tell(self, do: str, **more: Any) -> None:
        command = {"do": do, "stage": self.stage, "ticket": self.ticket, **more}
        self.child.tell(command | ({"epoch": self.epoch} if do == "run" else {}))


class Child:
    """One process. `slot` is what it is for, and the name of its log."""

    def __init__(self, slot: str, command: list[str], order: dict[str, Any], log: Path) -> None:
        self.slot = slot
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
        #: Of all cores, so far; and the memory that it and all it started take now.
        self.cpu_ns = self.memory_bytes = 0
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

    @property
    def running(self) -> bool:
        return any(hosted.running for hosted in list(self.stages.values()))

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

    def share(self, cpu_ns: int, memory_bytes: int) -> list[Hosted]:
        """Count what it has used since the last look for the stages that run in it, by the time of their batches.

        What its standbys use is counted for those that run; where no batch has ended, all have the same share. Of the
        memory everything in it has the same share, standbys, too: all that runs in a JVM is in one heap.
        """
        used, self.cpu_ns = max(0, cpu_ns - self.cpu_ns), cpu_ns
        self.memory_bytes = memory_bytes
        at_work = [hosted for hosted in list(self.stages.values()) if hosted.running]
        spans = [hosted.batch_ms for hosted in at_work]
        total = sum(spans)
        for hosted, span in zip(at_work, spans, strict=True):
            hosted.busy_ns += int(used * span / total) if total else used // len(at_work)
            hosted.batch_ms = 0.0
        return list(self.stages.values())

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

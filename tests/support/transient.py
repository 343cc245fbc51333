"""Transient failures of real processes, for tests and benches (hybrid-ha §V-A): their CPU is taken, they are
stopped, memory is short, the disk is slow. Each is bounded in time, and undone even if whoever caused it is killed.

    Frozen(pid)              SIGSTOP, then SIGCONT
    Squeezed(pid, share)      so much of the CPU is taken from this process alone: a quota of a CPU cgroup (needs root)
    CpuHog(share, cores)      so much of each of some cores is taken from everybody; `nice` says how rudely
    MemoryHog(megabytes)      so much memory is touched over and over; at most a quarter of what is free
    DiskHog(directory)        another program writes and syncs there as fast as it can

`Outages` brings one on in every spell of a schedule (`sim/spells.py`: regular or Poisson arrivals). A process is
known by its id and the moment at which it began, so that nothing is ever done to another one that got the id since.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from holdfast.sim.spells import Spell

HOG = Path(__file__).with_name("hog.py")
CPU_CGROUPS = Path("/sys/fs/cgroup/cpu")
#: A quota is so much of each of these: shorter than any heartbeat.
QUOTA_PERIOD_US = 20_000
#: The kernel takes no quota below this.
QUOTA_US_MIN = 1_000
#: A failure that nobody ends is over after this.
LIMIT_S = 120.0
#: Of the memory that is free, a hog takes at most this part.
MEMORY_PART = 4


class Injury(Protocol):
    """What is done to a process or a machine for a while. Ending twice, or what has not begun, does nothing."""

    def begin(self) -> None: ...

    def end(self) -> None: ...


def began_at(pid: int) -> str:
    """When this process began, in the kernel's ticks; empty if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (FileNotFoundError, ProcessLookupError):
        return ""


class _Leash:
    """A small program that undoes something after a time, or as soon as this process is gone."""

    def __init__(self, undo: str, limit_s: float) -> None:
        # `read` returns at the end of its input: when we close it, or are killed
        script = f"trap '' HUP INT TERM; read -t {limit_s:g} _; {undo}"
        self._process = subprocess.Popen(
            ["bash", "-c", script], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )

    def release(self) -> None:
        """Now, and wait until it is done."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)


class _Leashed:
    """Done at once, and undone by a leash."""

    def __init__(self, pid: int, limit_s: float) -> None:
        self.pid, self.limit_s = pid, limit_s
        self._born = began_at(pid)
        self._leash: _Leash | None = None

    def begin(self) -> None:
        if self._leash is None and self._born and began_at(self.pid) == self._born:
            self._leash = _Leash(self._only_it(self.undo()), self.limit_s)
            with contextlib.suppress(ProcessLookupError):
                self.do()

    def end(self) -> None:
        leash, self._leash = self._leash, None
        if leash is not None:
            leash.release()

    def do(self) -> None:
        raise NotImplementedError

    def undo(self) -> str:
        """What a shell does to undo it."""
        raise NotImplementedError

    def _only_it(self, script: str) -> str:
        same = f"[ \"$(sed 's/.*) //' /proc/{self.pid}/stat 2>/dev/null | cut -d' ' -f20)\" = {self._born} ]"
        return f"if {same}; then {script}; fi"


class Frozen(_Leashed):
    """It does nothing at all: SIGSTOP."""

    def __init__(self, pid: int, limit_s: float = LIMIT_S) -> None:
        super().__init__(pid, limit_s)

    def do(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def undo(self) -> str:
        return f"kill -CONT {self.pid}"


def can_squeeze() -> bool:
    return os.geteuid() == 0 and os.access(CPU_CGROUPS / "cpu.cfs_quota_us", os.W_OK)


class Squeezed(_Leashed):
    """Others take `share` of a core from this process and from no other: what is left of one core is its quota. A share
    of 1 leaves it the least that the kernel allows (a twentieth of a core)."""

    def __init__(self, pid: int, share: float, limit_s: float = LIMIT_S) -> None:
        super().__init__(pid, limit_s)
        self.quota_us = max(QUOTA_US_MIN, int((1 - share) * QUOTA_PERIOD_US))
        self.group = CPU_CGROUPS / f"holdfast-squeeze-{pid}"
        self._home = CPU_CGROUPS

    def do(self) -> None:
        self.group.mkdir(exist_ok=True)
        (self.group / "cpu.cfs_period_us").write_text(str(QUOTA_PERIOD_US))
        (self.group / "cpu.cfs_quota_us").write_text(str(self.quota_us))
        (self.group / "cgroup.procs").write_text(str(self.pid))

    def undo(self) -> str:
        group = shlex.quote(str(self.group))
        return f"echo -1 > {group}/cpu.cfs_quota_us; echo {self.pid} > {self._cgroup()}/cgroup.procs; rmdir {group}"

    def _cgroup(self) -> str:
        """Where it is now, and comes back to."""
        for line in Path(f"/proc/{self.pid}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if "cpu" in controllers.split(","):
                return shlex.quote(str(self._home) + path.rstrip("/"))
        return shlex.quote(str(self._home))


class _Hogs:
    """Programs that take something. They end by themselves, and with this process."""

    def __init__(self, what: str, given: object, count: int, nice: int, limit_s: float) -> None:
        self._command = [
            "nice",
            "-n",
            str(nice),
            sys.executable,
            "-S",
            "-E",
            str(HOG),
            what,
            f"{limit_s:g}",
            str(given),
        ]
        self._count = count
        self.running: list[subprocess.Popen[bytes]] = []

    def begin(self) -> None:
        if not self.running:
            self.running = [subprocess.Popen(self._command, stdin=subprocess.PIPE) for _ in range(self._count)]

    def end(self) -> None:
        running, self.running = self.running, []
        for one in running:
            assert one.stdin is not None
            one.stdin.close()
        for one in running:
            one.wait(10)


class CpuHog(_Hogs):
    def __init__(self, share: float, cores: int = 1, nice: int = 0, limit_s: float = LIMIT_S) -> None:
        super().__init__("cpu", share, cores, nice, limit_s)


class MemoryHog(_Hogs):
    def __init__(self, megabytes: int, limit_s: float = LIMIT_S) -> None:
        self.megabytes = min(megabytes, free_megabytes() // MEMORY_PART)
        super().__init__("memory", self.megabytes, 1, 0, limit_s)


class DiskHog(_Hogs):
    def __init__(self, directory: Path, limit_s: float = LIMIT_S) -> None:
        super().__init__("disk", directory, 1, 0, limit_s)


def free_megabytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable"):
            return int(line.split()[1]) >> 10
    return 0


@dataclass
class Inflicted:
    """What was really done, by the monotonic clock."""

    began: float
    ended: float


class Outages:
    """One injury, again and again: in each spell, counted from the moment of `start`."""

    def __init__(self, injury: Injury, spells: Sequence[Spell]) -> None:
        self._injury = injury
        self._spells = tuple(spells)
        self._stopping = threading.Event()
        self.inflicted: list[Inflicted] = []
        self._thread = threading.Thread(target=self._run, name="outages", daemon=True)

    def start(self) -> Outages:
        self._thread.start()
        return self

    def stop(self) -> list[Inflicted]:
        """End it, now if need be."""
        self._stopping.set()
        self._thread.join(30)
        return self.inflicted

    def wait(self, limit_s: float) -> list[Inflicted]:
        self._thread.join(limit_s)
        return self.stop()

    def _run(self) -> None:
        started = time.monotonic()
        for spell in self._spells:
            if self._stopping.wait(max(0.0, started + spell.at_s - time.monotonic())):
                return
            self._injury.begin()
            began = time.monotonic()
            self._stopping.wait(spell.for_s)
            self._injury.end()
            self.inflicted.append(Inflicted(began, time.monotonic()))

    def __enter__(self) -> Outages:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

"""What tests and benches do to real processes for a while: it happens, it is bounded, and it is undone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from support.nodes import PATHS
from support.transient import CpuHog, DiskHog, Frozen, MemoryHog, Outages, Squeezed, began_at, can_squeeze

from holdfast.sim.spells import Spell, regular

#: Counts as fast as it can, and says how far it is.
COUNTS = "import time\nwhile True:\n    end = time.monotonic() + 0.01\n    while time.monotonic() < end: pass\n"


@pytest.fixture
def victim() -> Iterator[psutil.Process]:
    process = subprocess.Popen([sys.executable, "-c", COUNTS])
    yield psutil.Process(process.pid)
    process.send_signal(signal.SIGCONT)
    process.kill()
    process.wait(10)


def until(test: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not test():
        assert time.monotonic() < end
        time.sleep(0.005)


def is_stopped(process: psutil.Process) -> bool:
    return process.status() == psutil.STATUS_STOPPED


def test_a_stopped_process_goes_on_when_its_time_is_over_even_if_nobody_ends_it(victim: psutil.Process):
    injury = Frozen(victim.pid, limit_s=0.3)
    injury.begin()
    until(lambda: is_stopped(victim))
    until(lambda: not is_stopped(victim))
    injury.end()
    injury.end()


def test_a_stopped_process_goes_on_when_whoever_stopped_it_is_killed(victim: psutil.Process):
    code = f"import time\nfrom support.transient import Frozen\nFrozen({victim.pid}).begin()\ntime.sleep(60)\n"
    other = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": PATHS})
    until(lambda: is_stopped(victim))
    other.kill()
    other.wait(10)
    until(lambda: not is_stopped(victim))


def test_nothing_is_done_to_another_process_that_has_the_same_id(victim: psutil.Process):
    injury = Frozen(victim.pid)
    injury._born = "1"
    injury.begin()
    assert not is_stopped(victim)
    assert began_at(1 << 22) == ""


def test_a_outages_keeps_to_its_spells_and_leaves_nothing_behind(victim: psutil.Process):
    seen = []
    with Outages(Frozen(victim.pid), regular(0.3, 0.1, 0.9)) as outages:
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            seen.append(is_stopped(victim))
            time.sleep(0.01)
    assert True in seen
    assert False in seen
    assert len(outages.inflicted) == 3
    assert not is_stopped(victim)


def test_a_outages_that_is_stopped_ends_what_it_does(victim: psutil.Process):
    with Outages(Frozen(victim.pid), (Spell(0.0, 60.0),)):
        until(lambda: is_stopped(victim))
    until(lambda: not is_stopped(victim))


@pytest.mark.skipif(not can_squeeze(), reason="needs root and a cgroup of CPUs (v1)")
def test_a_squeezed_process_gets_what_is_left_and_no_other_does(victim: psutil.Process):
    def used(seconds: float) -> float:
        before = sum(victim.cpu_times()[:2])
        time.sleep(seconds)
        return (sum(victim.cpu_times()[:2]) - before) / seconds

    injury = Squeezed(victim.pid, 0.8)
    home = Path(f"/proc/{victim.pid}/cgroup").read_text()
    injury.begin()
    time.sleep(0.1)
    assert used(1.0) <= 0.3
    injury.end()
    assert Path(f"/proc/{victim.pid}/cgroup").read_text() == home
    assert not injury.group.exists()


def test_hogs_take_about_what_they_were_told_to_and_end_in_time(tmp_path: Path):
    cpu, disk = CpuHog(0.4, limit_s=3.0), DiskHog(tmp_path, limit_s=3.0)
    memory = MemoryHog(64, limit_s=3.0)
    for hog in (cpu, disk, memory):
        hog.begin()
    busy, takes = psutil.Process(cpu.running[0].pid), psutil.Process(memory.running[0].pid)
    until(lambda: takes.memory_info().rss > memory.megabytes << 20)
    until(lambda: any(tmp_path.iterdir()))
    before, began = sum(busy.cpu_times()[:2]), time.monotonic()
    time.sleep(1.0)
    share = (sum(busy.cpu_times()[:2]) - before) / (time.monotonic() - began)
    assert 0.1 <= share <= 0.5  # others may take some of it
    disk.end()
    assert not any(tmp_path.iterdir())
    processes = [*cpu.running, *memory.running]
    assert [p.wait(15) for p in processes] == [0, 0]  # by themselves
    for hog in (cpu, memory):
        hog.end()

"""What a node notices about its own slowness: samples of the kernel's figures, and the standard set."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from support.plans import layered_plan

from holdfast.core.detect.stalls import SAMPLE_NS
from holdfast.runtime.node.benchmark import BenchmarkWatch, StandardSet
from holdfast.runtime.node.procfs import CpuClock, RunQueue
from holdfast.runtime.node.sampler import StallSampler

TESTS = Path(__file__).parents[2]


def test_a_sample_that_comes_late_is_a_stall_as_long_as_it_is_late():
    now = [10**12]
    sampler = StallSampler(threading.get_native_id(), clock=lambda: now[0])
    for took_ns in (SAMPLE_NS, SAMPLE_NS, 9 * SAMPLE_NS, SAMPLE_NS):
        now[0] += took_ns
        sampler.look()
    told = sampler.told()["node"]
    assert told["stalls"] == 1
    assert told["lengths"]["longest_s"] == 8 * SAMPLE_NS / 1e9
    sampler.close()


def test_where_the_kernel_says_nothing_nothing_is_made_up(monkeypatch):
    monkeypatch.setattr("holdfast.runtime.node.procfs._opened", lambda path: -1)
    assert CpuClock().busy() == 0.0
    assert RunQueue(1).waited() == 0


def test_a_thread_of_a_busy_machine_waits_and_the_machine_is_seen_to_be_busy():
    script = "import time\nend = time.monotonic() + 5\nwhile time.monotonic() < end: pass"
    others = [subprocess.Popen([sys.executable, "-S", "-c", script]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        cpus, queue = CpuClock(), RunQueue(threading.get_native_id())
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            pass
        assert cpus.busy() > 0.9
        assert queue.waited() > 50_000_000
    finally:
        for other in others:
            other.kill()
            other.wait(10)


def test_a_process_that_was_stopped_knows_for_how_long():
    code = (
        "import sys, threading, time\n"
        "from holdfast.runtime.node.sampler import StallSampler\n"
        "sampler = StallSampler(threading.get_native_id())\n"
        "sampler.start()\n"
        "print('up', flush=True)\n"
        "sys.stdin.readline()\n"
        "time.sleep(0.6)\n"
        "told = sampler.told()['node']\n"
        "print(told['lengths']['longest_s'], flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": f"{TESTS.parent / 'src'}"},
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGSTOP)
    time.sleep(1.2)
    process.send_signal(signal.SIGCONT)
    process.stdin.write("\n")
    process.stdin.flush()
    assert 0.7 <= float(process.stdout.readline()) <= 2.5
    assert process.wait(10) == 0


def test_the_standard_set_runs_through_the_pipelines_own_operator_and_stays_small():
    plan = layered_plan(shards=1, tops=0)
    standard = StandardSet(plan)
    sizes = []
    for _ in range(250):
        assert standard.run() > 0
        sizes.append(standard._operator.op.state_bytes())
    assert max(sizes) <= 4 * sizes[0]


def test_whoever_runs_the_benchmark_tells_when_it_changes_and_only_then():
    told: list[bool] = []
    watch = BenchmarkWatch(layered_plan(shards=1, tops=0), told.append)
    assert watch.benchmark.benchmark_ns > 0
    watch.benchmark.load_max = -1.0  # whatever the machine does, the set is run
    watch.benchmark.longer_max = -1.0  # and takes too long
    watch.start()
    end = time.monotonic() + 10
    while not told or watch.benchmark.runs < 5:
        assert time.monotonic() < end
        time.sleep(0.01)
    watch.close()
    assert told == [True]

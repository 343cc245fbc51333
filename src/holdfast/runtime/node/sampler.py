"""Samples, every 0.25 s, whether this node gets the CPU that it wants (hybrid-ha §II-B; `core/detect/stalls.py`).

Two causes, kept apart: the *machine* has no CPU left (the paper's threshold), and the *node* itself does not get one,
because others come first, a quota holds it back, it swaps, or it was stopped. The second is how long the loop's thread
waited in the run queue, or how much later than it wanted the sampler itself woke up.

`Watches` is this, and the benchmark where that is the detector: all that a node notices about its own slowness.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.core.detect.stalls import BUSY, SAMPLE_NS, STARVED, Stalls
from holdfast.core.ready import Benchmarked
from holdfast.model.plan import Plan
from holdfast.runtime.node.loop import MachineLoop
from holdfast.runtime.node.procfs import CpuClock, RunQueue

if TYPE_CHECKING:
    from holdfast.runtime.node.benchmark import BenchmarkWatch


class Watches:
    """Of one node, from the moment on at which its loop runs."""

    def __init__(self, detector: str, plan: Plan, loop: MachineLoop) -> None:
        self.sampler = StallSampler(loop.thread_id)
        self.benchmark: BenchmarkWatch | None = None
        if detector == "benchmark":  # what runs the set is loaded only where it is wanted
            from holdfast.runtime.node.benchmark import BenchmarkWatch

            self.benchmark = BenchmarkWatch(plan, lambda slow: loop.post(Benchmarked(slow)))
            self.benchmark.start()
        self.sampler.start()

    def close(self) -> None:
        self.sampler.close()
        if self.benchmark is not None:
            self.benchmark.close()

    def told(self) -> dict[str, Any]:
        """For `holdfast status --stalls`."""
        found = self.sampler.told()
        if self.benchmark is not None:
            decided = self.benchmark.benchmark
            found["benchmark"] = {
                "benchmark_ms": decided.benchmark_ns / 1e6,
                "runs": decided.runs,
                "slow": decided.slow,
            }
        return found


class StallSampler:
    def __init__(self, loop_thread: int, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self._cpus = CpuClock()
        self._queue = RunQueue(loop_thread)
        self._closed = threading.Event()
        self._lock = threading.Lock()
        now_ns = clock()
        self.machine, self.node = Stalls(BUSY, now_ns), Stalls(STARVED, now_ns)
        self._looked_ns = self._started_ns = now_ns
        self._waited_ns = 0
        self._stolen_ns = 0.0
        self._spent_ns = 0
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(2)
        for file in (self._cpus, self._queue):
            file.close()

    def _run(self) -> None:
        while not self._closed.wait(SAMPLE_NS / 1e9):
            self.look()
            self._spent_ns = time.thread_time_ns()

    def look(self) -> None:
        """One sample: of the time since the last one."""
        now_ns = self._clock()
        began_ns, self._looked_ns = self._looked_ns, now_ns
        took_ns = max(1, now_ns - began_ns)
        late_ns = max(0, took_ns - SAMPLE_NS)
        busy, waited_ns = self._cpus.busy(), self._queue.waited()
        with self._lock:
            self._waited_ns += waited_ns
            self._stolen_ns += self._cpus.stolen * took_ns
            self.machine.sample(began_ns, now_ns, busy)
            if late_ns > took_ns * STARVED:  # it stood still, from about where it wanted to look
                self.node.sample(began_ns, now_ns - late_ns, 0.0)
                self.node.sample(now_ns - late_ns, now_ns, 1.0)
            else:
                self.node.sample(began_ns, now_ns, min(1.0, waited_ns / took_ns))

    def told(self) -> dict[str, Any]:
        """What was seen so far."""
        with self._lock:
            watched_ns = max(1, self._looked_ns - self._started_ns)
            return {
                "machine": self.machine.told(),
                "node": self.node.told(),
                "run_queue_share": self._waited_ns / watched_ns,
                "steal_share": self._stolen_ns / watched_ns,
                #: What the sampling itself takes of a core.
                "own_share": self._spent_ns / watched_ns,
            }

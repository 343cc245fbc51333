"""The benchmark method (hybrid-ha §IV-A): a node notices its own slowness by a standard set of elements.

What an operator takes for the set on an idle machine is its *benchmark*. A thread looks at the CPU's load every 50 ms;
above `L_TH` the operator takes the set again, and if that took longer than the benchmark by more than `P_TH` of it, the
node is slow. Here is what is decided; who runs the set is `runtime/node/benchmark.py`. A node that is slow tells its
peers (`Heartbeat.slow`), to whom that is one missed heartbeat's worth of suspicion and no more.

The paper gives no values. Its figure 12 has every load found at 60%, so `L_TH` is below that. The fastest run is the
benchmark, since no deployment has an idle machine to ask.
"""

from __future__ import annotations

#: CPU load above which the set is run, and how much longer than the benchmark it may take, as a part of it.
L_TH, P_TH = 0.5, 0.5
#: Elements of the standard set, and how often the load is looked at.
ELEMENTS, LOOK_NS = 20, 50_000_000


class Benchmark:
    __slots__ = ("benchmark_ns", "load_max", "longer_max", "runs", "slow")

    def __init__(self, load_max: float = L_TH, longer_max: float = P_TH) -> None:
        self.load_max = load_max
        self.longer_max = longer_max
        #: 0: not measured yet.
        self.benchmark_ns = 0
        self.runs = 0
        self.slow = False

    def learn(self, took_ns: int) -> None:
        """The set took this long; the fastest run was disturbed the least."""
        self.benchmark_ns = min(took_ns, self.benchmark_ns or took_ns)

    def wants(self, load: float) -> bool:
        """Shall the set be run? Below the threshold nothing is slow."""
        if load <= self.load_max:
            self.slow = False
            return False
        return self.benchmark_ns > 0

    def on_ran(self, took_ns: int) -> bool:
        """Is this node slow?"""
        self.runs += 1
        self.slow = took_ns > self.benchmark_ns * (1 + self.longer_max)
        self.learn(took_ns)
        return self.slow

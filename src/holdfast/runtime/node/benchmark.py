"""Runs the standard set of the benchmark detector, where `detector = "benchmark"` (`core/detect/benchmark.py` decides).

The set is 20 rows for a small copy of the pipeline's first operator, on a thread of its own: the same kernels, and the
same fight for a core and for Python's lock, as the rows that users send.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pyarrow as pa

from holdfast.core.detect.benchmark import ELEMENTS, LOOK_NS, Benchmark
from holdfast.model.ids import operator_of
from holdfast.model.plan import Plan
from holdfast.operators import StateConfig
from holdfast.runtime.net.rows import ArrowRows
from holdfast.runtime.node.operators import ShardOperator, read_schema
from holdfast.runtime.node.procfs import CpuClock
from holdfast.runtime.node.warm import sample_rows

#: Runs from which the benchmark is learnt at the start.
LEARN = 20
#: After so many runs the operator is made anew, so that what it keeps stays small.
RUNS_KEPT = 100
_CONFIG = StateConfig(page_bytes=65536, limit_bytes=1 << 26)


class StandardSet:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._spec = plan.topology.shards[0]
        operator = plan.operator(operator_of(self._spec.id))
        few = sample_rows(read_schema(operator.inputs[0].schema), 0)
        many = pa.Table.from_batches([few] * (ELEMENTS // few.num_rows + 1)).slice(0, ELEMENTS).combine_chunks()
        self._rows = many.to_batches()
        self._runs = 0
        self._operator = ShardOperator(self._spec, plan, _CONFIG)

    def run(self) -> int:
        """How long it took, in nanoseconds."""
        if self._runs == RUNS_KEPT:
            self._runs, self._operator = 0, ShardOperator(self._spec, self._plan, _CONFIG)
        self._runs += 1
        began_ns = time.monotonic_ns()
        self._operator.step(self._spec.inputs[0], ArrowRows(self._rows), 0)
        return time.monotonic_ns() - began_ns


class BenchmarkWatch:
    """Tells whenever the node becomes slow, or is not any more."""

    def __init__(self, plan: Plan, tell: Callable[[bool], None]) -> None:
        self._tell = tell
        self._closed = threading.Event()
        self.set = StandardSet(plan)
        self.benchmark = Benchmark()
        for _ in range(LEARN):
            self.benchmark.learn(self.set.run())
        self._thread = threading.Thread(target=self._run, name="benchmark", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closed.set()

    def _run(self) -> None:
        cpus = CpuClock()
        while not self._closed.wait(LOOK_NS / 1e9):
            was = self.benchmark.slow
            if self.benchmark.wants(cpus.busy()):
                self.benchmark.on_ran(self.set.run())
            if self.benchmark.slow != was:
                self._tell(self.benchmark.slow)
        cpus.close()

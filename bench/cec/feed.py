"""The paper's query on one operator: rows of (item, price), a count window per item (cec §IV).

All times are CPU time of this process, the writing of the log included, since the machine is shared: waiting for the
disk is not in them (it is in the `wall` columns). The clock of a run is the CPU time that its operator has used, so CI
and CP are shares of that too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.harness import Report
from holdfast.core.eventual import Calibration
from holdfast.model.ids import Edge
from holdfast.operators import Agg, CountWindow, CountWindowAggregate, StateConfig
from holdfast.operators.operator import StatefulOperator
from holdfast.runtime.disk.eventual import BroughtBack, ControlLog, EventualOperator, InputStep, Policy, recover

EDGE = Edge("average.0")
NOTES = (
    "The machine was shared with other work: times are CPU seconds unless a column says wall.",
    "One operator and its log in one process, no cluster: not the paper's three servers and PVFS.",
)
SCHEMA = pa.schema([("item", pa.int64()), ("price", pa.int64())])
#: The paper's tuples have 100 bytes.
PAPER_TUPLE_BYTES = 100


def average(window: int) -> CountWindowAggregate:
    return CountWindowAggregate(
        "average",
        SCHEMA,
        window=CountWindow(window, window),
        by=["item"],
        aggs={"price": Agg("avg", "price")},
        config=StateConfig(limit_bytes=4 << 30),
    )


@dataclass
class Purchases:
    """Rows at random over some items, the same whenever they are asked for."""

    items: int
    rows: int
    batch: int = 10_000
    seed: int = 5
    #: So many different batches are made, and come again in turn.
    different: int = 400
    _made: list[pa.RecordBatch] = field(default_factory=list)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        for _ in range(min(self.different, self.steps)):
            columns = [pa.array(rng.integers(0, self.items, self.batch)), pa.array(rng.integers(1, 1000, self.batch))]
            self._made.append(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))

    @property
    def steps(self) -> int:
        return self.rows // self.batch

    def step(self, number: int) -> InputStep:
        return InputStep(self._made[(number - 1) % len(self._made)])

    def again(self, first: int, last: int) -> Iterator[InputStep]:
        """For a recovery."""
        return (self.step(number) for number in range(first, last + 1))


def part(name: str, plot: Callable[[Any, Report], None]) -> Report:
    """The report of one part, which can be run alone."""
    report = Report("cec", name)
    report.notes += NOTES
    report.plot = lambda figure: plot(figure.subplots(), report)
    return report


def cpu_ns() -> int:
    return time.process_time_ns()


def start(path: Path, window: int, how: object = None, cadence: object = None) -> EventualOperator:
    """An operator with a log of its own, whose policy goes by CPU time."""
    policy = Policy(how, cadence, Calibration(), cpu_ns)  # type: ignore[arg-type]
    return EventualOperator(average(window), ControlLog(path, EDGE), policy)


def run_to(live: EventualOperator, given: Purchases, last: int, *, keep: bool = False) -> Iterator[int]:
    """Feed it up to a step; after each one the CPU nanoseconds that it took. The log keeps what is needed, or all."""
    while live.steps < last:
        step = given.step(live.steps + 1)
        began = cpu_ns()
        live.step(step)
        live.log.flush()
        if not keep:
            live.log.drop(live.needed[0])
        yield cpu_ns() - began


@dataclass
class Crash:
    """What a recovery of this operator took, as it would be after kill -9 now; the times in `found` are CPU."""

    found: BroughtBack
    wall_s: float
    cpu_s: float


def crash(path: Path, fresh: StatefulOperator, given: Purchases) -> Crash:
    """Recover another operator from the same log, while the first one stands still."""
    began, cpu = time.perf_counter(), cpu_ns()
    found = recover(fresh, path, EDGE, given.again, cpu_ns)  # type: ignore[arg-type]
    return Crash(found, time.perf_counter() - began, (cpu_ns() - cpu) / 1e9)

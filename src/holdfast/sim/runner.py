"""Many runs: a violation stops them, is shrunk to the faults it needs, and is printed with the command to replay it.

Shrinking drops faults, then shortens what is left, as long as the same rule is still broken. The replay needs only the
seed and the numbers of the faults that were kept, because everything else follows from the seed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import msgspec

from holdfast.sim.faults import Fault
from holdfast.sim.simulation import Outcome, Setup, Simulation
from holdfast.sim.story import Trace


class Summary(msgspec.Struct, kw_only=True):
    """What a batch of schedules contained, and what came of it."""

    schedules: int = 0
    violations: int = 0
    excused: int = 0
    events: int = 0
    checks: int = 0
    faults: int = 0
    rows: int = 0
    late: int = 0
    results: int = 0
    messages: int = 0
    promotions: int = 0
    records: int = 0
    virtual_s: float = 0.0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    instability_ms_mean: float = 0.0
    instability_ms_max: float = 0.0
    first: Outcome | None = None

    @property
    def per_minute(self) -> float:
        """Schedules a minute of one core."""
        return self.schedules / self.cpu_s * 60 if self.cpu_s else 0.0


def run_all(setups: Iterable[Setup], tell: Callable[[int], None] = lambda done: None) -> Summary:
    """Run schedules until the first violation."""
    summary = Summary()
    wall, cpu = time.perf_counter(), time.process_time()
    unstable: list[float] = []
    for setup in setups:
        outcome = Simulation(setup).run()
        summary.schedules += 1
        for name in ("events", "checks", "faults", "rows", "late", "results", "messages", "promotions", "records"):
            setattr(summary, name, getattr(summary, name) + getattr(outcome, name))
        summary.excused += outcome.excused
        summary.virtual_s += outcome.virtual_ms / 1_000
        unstable.extend(outcome.instability_ms)
        tell(summary.schedules)
        if outcome.violation:
            summary.violations += 1
            summary.first = outcome
            break
    summary.wall_s = time.perf_counter() - wall
    summary.cpu_s = time.process_time() - cpu
    if unstable:
        summary.instability_ms_mean = sum(unstable) / len(unstable)
        summary.instability_ms_max = max(unstable)
    return summary


def keep(setup: Setup, numbers: tuple[int, ...]) -> Setup:
    """The same run with only these of its faults."""
    return msgspec.structs.replace(setup, faults=tuple(setup.faults[i] for i in numbers))


def shrink(setup: Setup, rule: str) -> tuple[int, ...]:
    """The numbers of the faults that are needed to break this rule: none can be left out."""

    def still_broken(numbers: tuple[int, ...]) -> bool:
        return Simulation(keep(setup, numbers)).run().rule == rule

    needed = tuple(range(len(setup.faults)))
    for number in reversed(range(len(setup.faults))):
        fewer = tuple(n for n in needed if n != number)
        if still_broken(fewer):
            needed = fewer
    return needed


def retrace(setup: Setup, *, messages: bool = False) -> tuple[Outcome, Trace]:
    """The same run again, with its trace."""
    trace = Trace(messages=messages)
    return Simulation(setup, trace).run(), trace


def faults_text(faults: tuple[Fault, ...]) -> list[str]:
    return [f"  {number}: {fault}" for number, fault in enumerate(faults)]

"""What footprints of opening windows cost when nothing else is asked for: figure 5, fast and slow windows."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from bench.cec.feed import EDGE, Purchases, average, cpu_ns, part
from bench.harness import Ratio, Report, scratch
from holdfast.logs.control import with_control
from holdfast.model.block import shard_block
from holdfast.operators.traced import TracedOperator
from holdfast.runtime.disk.eventual import ControlLog, stepped
from holdfast.runtime.net.rows import ArrowRows

WORKLOADS = {"fast windows (1 row)": 1, "slow windows (1,000 rows)": 1000}
ARMS = ("native", "log only", "G_open/Net", "G_open/Disk")
_encoder = msgspec.msgpack.Encoder()


def run(quick: bool) -> Report:
    report = part("baseline", plot)
    rounds, rows = (3, 400_000) if quick else (8, 1_000_000)
    table = report.data["figure 5: what footprints of opening windows cost"] = []
    for name, window in WORKLOADS.items():
        given = Purchases(items=2, rows=rows)
        times: dict[str, list[float]] = {arm: [] for arm in ARMS}
        walls: dict[str, list[float]] = {arm: [] for arm in ARMS}
        for turn in range(rounds + 1):
            for arm in ARMS[turn % 4 :] + ARMS[: turn % 4]:
                with scratch("cec") as path:
                    cpu, wall = _measure(arm, window, given, path)
                if turn:  # the first one warms up
                    times[arm].append(cpu)
                    walls[arm].append(wall)
        for arm, base in (("log only", "native"), ("G_open/Net", "native"), ("G_open/Disk", "log only")):
            ratio = Ratio.of(times[base], times[arm])
            table.append(
                {
                    "workload": name,
                    "arm": arm,
                    "against": base,
                    "rows/s (CPU)": rows / (sum(times[arm]) / rounds),
                    "CPU": ratio.told(1.10),
                    "wall": Ratio.of(walls[base], walls[arm]).told(1.10),
                }
            )
            if arm != "log only":
                what = f"{name}: {arm} against {base}, CPU per row"
                report.claim(what, "cec figure 5", "< 10%", ratio.told(1.10), ratio.is_at_most(1.10))
    return report


def _measure(arm: str, window: int, given: Purchases, path: Path) -> tuple[float, float]:
    """(CPU seconds, seconds) for all of the input."""
    operator = average(window)
    if arm.startswith("G_open"):
        operator.keep_footprints()
    log = ControlLog(path, EDGE) if arm in ("log only", "G_open/Disk") else None
    step = _stepper(arm, operator, log)
    began, cpu = time.perf_counter(), cpu_ns()
    for number in range(1, given.steps + 1):
        step(number, given)
    return (cpu_ns() - cpu) / 1e9, time.perf_counter() - began


def _stepper(arm: str, operator: TracedOperator, log: ControlLog | None) -> Callable[[int, Purchases], None]:
    """One step of an arm. All of them make the bytes of their results, as if to send them."""
    at = 0

    def step(number: int, given: Purchases) -> None:
        nonlocal at
        results = stepped(operator, given.step(number))
        rows = ArrowRows.of(results) if results.num_rows else ()
        block: Any = shard_block(at, rows, 0, 0)
        if arm.startswith("G_open"):
            block = with_control(block, operator.leave(number, at, results.num_rows))
        at = block.end
        if log is not None:
            log.put(block)
            log.flush()
        elif isinstance(rows, ArrowRows):
            rows.to_ipc()

    return step


def plot(axes: Any, report: Report) -> None:
    rows = report.data["figure 5: what footprints of opening windows cost"]
    names = [f"{one['workload'].split()[0]}\n{one['arm']}" for one in rows]
    axes.bar(names, [one["rows/s (CPU)"] / 1e6 for one in rows])
    axes.set_title("figure 5: million rows per second of CPU")
    axes.tick_params(axis="x", labelsize=6)

"""What protection costs: mode `passive` against mode `none` on one running cluster, in turns, at four numbers of keys.

Two measurements of each size. `nodes`: real nodes and a driver without Spark, which hands over batches that are in
memory (`fed.py`). Protection adds a second holder of the input, captures, their way to another node, and pastes; that
is set against what nodes and driver do anyway. Spark is not in the denominator, so the percentage is larger than any
user sees: read the CPU seconds per 100,000 rows. `pipeline`: the same query with Spark at both ends (`piped.py`), which
is what a user loses; the goals are for that. A third figure joins them: the CPU that protection adds, from `nodes`,
where it can be measured well, over the CPU of the unprotected pipeline.

The mode is switched live, so that both arms have the same processes, places and warm JVMs, and rounds are pairs that
lie next to each other; the order changes from round to round. A ratio is the mean of the rounds' logarithms with its
95% (Student's t). A goal holds if the upper end does.

The papers: cooperative-ha promises "small run-time overhead" by doing captures and pastes in idle moments (§5);
hybrid-ha's figure 6 has about 10% more traffic for passive standby, since its captures carry hardly any output. Here
nothing is ever idle (the driver, or the source's backlog, keeps two shared cores busy), and captures carry the output
that no sink has acknowledged. That is the worst case for protection.

HOLDFAST_PROTECTION="nodes 1000 100000" chooses measurements and sizes; HOLDFAST_ROUNDS=1 the rounds.
"""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import Any, Protocol

from bench.harness import Ratio, Report, scratch
from bench.overhead.fed import NODES, SHARDS, Fed, Spent
from bench.overhead.piped import Piped

DESCRIPTION = "what protection costs at 1,000 to 10,000,000 keys: mode passive against mode none, switched live"
SOURCE = "issue 12; cooperative-ha §5"
ROWS, QUICK_ROWS = 500_000, 100_000
ROUNDS, QUICK_ROUNDS = 5, 2
MODES = ("none", "passive")
MEASUREMENTS = ("nodes", "pipeline")
#: Keys: windows of one span with the driver alone, with Spark, micro-batches before that do not count, and the goal.
SIZES = {
    1_000: (10, 2, 40, 0.03),
    100_000: (4, 2, 30, 0.03),
    1_000_000: (2, 1, 20, 0.03),
    10_000_000: (1, 1, 15, 0.10),
}
QUICK_SIZES = {1_000: (1, 1, 10, 0.03)}


class Arms(Protocol):
    def switch(self, mode: str) -> None: ...
    def feed(self, windows: int) -> Spent: ...
    def close(self) -> None: ...


def _rounds(arms: Arms, rounds: int, windows: int, told: dict[str, Any]) -> list[dict[str, Any]]:
    """Each mode once a round, in the other order every second round, so that what drifts favours neither."""
    rows = []
    for number in range(rounds):
        for mode in MODES if number % 2 == 0 else MODES[::-1]:
            arms.switch(mode)
            rows.append({**told, "round": number, "mode": mode, **_figures(arms.feed(windows))})
            print(f"    {rows[-1]}", flush=True)
    return rows


def _figures(spent: Spent) -> dict[str, Any]:
    per = spent.rows / 100_000
    return {
        "rows_per_s": round(spent.rows / spent.seconds),
        "cpu_s_per_100k": round((spent.nodes_s + spent.driver_s) / per, 5),
        "nodes_cpu_s_per_100k": round(spent.nodes_s / per, 5),
        "captures": spent.captures,
        "captured_mb": None if spent.captured_bytes is None else round(spent.captured_bytes / 1e6, 1),
        "load": round(os.getloadavg()[0], 1),
    }


def _nodes(home: Path, keys: int, rows: int, rounds: int, size: tuple[int, int, int, float]) -> list[dict[str, Any]]:
    fed = Fed(home, keys, rows)
    try:
        fed.begin()
        return _rounds(fed, rounds, size[0], {"measurement": "nodes", "keys": keys})
    finally:
        fed.close()


def _pipeline(home: Path, keys: int, rows: int, rounds: int, size: tuple[int, int, int, float]) -> list[dict[str, Any]]:
    _, windows, warm, _ = size
    piped = Piped(home, keys, rows, warm=warm, spans=2 * rounds, windows=windows)
    try:
        return _rounds(piped, rounds, windows, {"measurement": "pipeline", "keys": keys})
    finally:
        piped.close()


def run(quick: bool) -> Report:
    report = Report("overhead/protection", DESCRIPTION)
    sizes, rows = (QUICK_SIZES, QUICK_ROWS) if quick else (SIZES, ROWS)
    rounds = int(os.environ.get("HOLDFAST_ROUNDS", QUICK_ROUNDS if quick else ROUNDS))
    asked = os.environ.get("HOLDFAST_PROTECTION", "").split()
    chosen = [name for name in MEASUREMENTS if name in asked] or list(MEASUREMENTS)
    sizes = {keys: size for keys, size in sizes.items() if str(keys) in asked} or sizes
    found: list[dict[str, Any]] = []
    began = time.monotonic()
    for keys, size in sizes.items():
        for name in chosen:
            with scratch("protection") as base:
                measure = _nodes if name == "nodes" else _pipeline
                found += measure(base / f"{name}-{keys}", keys, rows, rounds, size)
    tell(report, found, {keys: size[-1] for keys, size in sizes.items()})
    report.notes.append(
        f"{NODES} nodes on loopback, {SHARDS} shards, {rows:,} rows a batch, windows of 10 batches, {rounds} rounds of"
        f" both modes in turns; {(time.monotonic() - began) / 60:.0f} min in all"
    )
    return report


# --- what it comes to


def tell(report: Report, rows: list[dict[str, Any]], goals: dict[int, float]) -> None:
    """Claims, tables and the picture of what was measured."""
    costs: list[dict[str, Any]] = []
    for name in MEASUREMENTS:
        for keys in dict.fromkeys(r["keys"] for r in rows):
            mine = [r for r in rows if (r["measurement"], r["keys"]) == (name, keys)]
            if mine:
                costs.append(_cost(report, name, keys, mine, 1 + goals[keys]))
    for keys in dict.fromkeys(r["keys"] for r in rows):
        _added(report, keys, [r for r in rows if r["keys"] == keys], goals[keys])
    report.data |= {"protection: cost": costs, "protection: rounds": rows}
    report.plot = lambda figure: _plot(figure, costs)
    report.notes.append("nodes: Spark is not in the denominator, so no goal is set; its CPU seconds are what counts")


def _cost(report: Report, name: str, keys: int, rows: list[dict[str, Any]], goal: float) -> dict[str, Any]:
    off, on = ([r for r in rows if r["mode"] == mode] for mode in MODES)

    def both(column: str) -> tuple[list[float], list[float]]:
        return [r[column] for r in off], [r[column] for r in on]

    speeds = both("rows_per_s")
    time_ratio = Ratio.of([1 / s for s in speeds[0]], [1 / s for s in speeds[1]])
    cpu_off, cpu_on = both("cpu_s_per_100k")
    cpu_ratio = Ratio.of(cpu_off, cpu_on)
    if name == "pipeline":
        what = f"protection, {keys:,} keys, whole pipeline"
        text = f"<= {100 * (goal - 1):.0f}%"
        report.claim(f"{what}: time per row", SOURCE, text, time_ratio.told(goal), time_ratio.is_at_most(goal))
        report.claim(f"{what}: CPU per row", SOURCE, text, cpu_ratio.told(goal), cpu_ratio.is_at_most(goal))
    return {
        "measurement": name,
        "keys": keys,
        "rows_per_s none": round(statistics.median(speeds[0])),
        "rows_per_s passive": round(statistics.median(speeds[1])),
        "time %": round(100 * (time_ratio.mean - 1), 1),
        "time 95%": [round(100 * (end - 1), 1) for end in (time_ratio.low, time_ratio.high)],
        "CPU s none": round(statistics.median(cpu_off), 4),
        "CPU s passive": round(statistics.median(cpu_on), 4),
        "CPU %": round(100 * (cpu_ratio.mean - 1), 1),
        "CPU 95%": [round(100 * (end - 1), 1) for end in (cpu_ratio.low, cpu_ratio.high)],
    }


def _added(report: Report, keys: int, rows: list[dict[str, Any]], goal: float) -> None:
    """CPU that protection adds to nodes and driver, over the CPU of the whole unprotected pipeline."""

    def cpu(name: str, mode: str) -> list[float]:
        return [r["cpu_s_per_100k"] for r in rows if (r["measurement"], r["mode"]) == (name, mode)]

    whole, off, on = cpu("pipeline", "none"), cpu("nodes", "none"), cpu("nodes", "passive")
    if whole and off:
        base = statistics.median(whole)
        share = Ratio.of([base] * len(off), [base + b - a for a, b in zip(off, on, strict=True)])
        text = f"{share.told(1 + goal)}: {statistics.mean(on) - statistics.mean(off):.4f} s over {base:.3f} s"
        report.claim(
            f"protection, {keys:,} keys: CPU that nodes and driver add, over the pipeline's", SOURCE,
            f"<= {100 * goal:.0f}%", text, share.is_at_most(1 + goal),
        )  # fmt: skip


def _plot(figure: Any, costs: list[dict[str, Any]]) -> None:
    left, right = figure.subplots(1, 2)
    for name in dict.fromkeys(c["measurement"] for c in costs):
        mine = [c for c in costs if c["measurement"] == name]
        keys = [c["keys"] for c in mine]
        for mode in MODES:
            left.plot(keys, [c[f"CPU s {mode}"] for c in mine], marker="o", label=f"{name}, {mode}")
        for column in ("time", "CPU"):
            middle = [c[f"{column} %"] for c in mine]
            ends = [[m - c[f"{column} 95%"][0] for m, c in zip(middle, mine, strict=True)],
                    [c[f"{column} 95%"][1] - m for m, c in zip(middle, mine, strict=True)]]  # fmt: skip
            right.errorbar(keys, middle, yerr=ends, marker="o", capsize=4, label=f"{name}, {column} per row")
    left.set_ylabel("CPU seconds per 100,000 rows")
    right.set_ylabel("more with protection, %, and its 95%")
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_xlabel("keys")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)

"""Seconds from the end of a window to its arrival at the sink, before and after one driver per node, in one run.

The query of bench/recovery (20,000 rows a second by the wall clock, windows of 100 ms, a watermark of 200 ms, a
foreachBatch sink that takes the newest window) on three nodes, without standbys: in rounds, the two trees in turns, the
other one first in every second round, so that what else the machine does hits both. `before` is the tree that
bench/drivers compares with. Each round is a cluster of its own; the claim is about the mean of the rounds' ratios. The
third arm, `arrow`, is the present tree with an Arrow sink, whose function takes the newest window of each table.
"""

from __future__ import annotations

import os
import statistics
import subprocess
from typing import Any

from bench.drivers import BEFORE, ROOT, ask, failed
from bench.harness import Ratio, Report, earlier, scratch

DESCRIPTION = "seconds from window end to sink, before and after one driver per node"
GOAL = 0.6
#: A sink without Spark against one of Spark's.
ARROW_GOAL = 0.8
NODES, RATE = 3, 20_000
#: Rounds and seconds of each.
SIZE, QUICK_SIZE = (4, 40.0), (1, 15.0)
ARMS = ("before", "after", "arrow")


def _row(number: int, arm: str, found: list[float]) -> dict[str, Any]:
    return {
        "round": number,
        "arm": arm,
        "arrivals": len(found),
        "p50_s": round(statistics.median(found), 3),
        "p99_s": round(found[int(len(found) * 0.99)], 3),
        "most_s": round(found[-1], 3),
        "load": round(os.getloadavg()[0], 1),
    }


def run(quick: bool) -> Report:
    report = Report("drivers/delay", DESCRIPTION)
    rounds, seconds = QUICK_SIZE if quick else SIZE
    rows: list[dict[str, Any]] = []
    with scratch("delay") as base, earlier(BEFORE, base) as before:
        trees = {"before": before, "after": ROOT, "arrow": ROOT}
        for number in range(rounds):
            for arm in ARMS if number % 2 == 0 else reversed(ARMS):
                asked = {"what": "delay", "home": str(base / f"{number}-{arm}"), "stages": 2, "nodes": NODES,
                         "standby": False, "rate": RATE, "seconds": seconds, "arrow": arm == "arrow"}  # fmt: skip
                try:
                    rows.append(_row(number, arm, ask(trees[arm], cwd=str(base), **asked)["delays_s"]))
                    print(f"    {rows[-1]}", flush=True)
                except (RuntimeError, subprocess.TimeoutExpired) as error:  # the other rounds are of use all the same
                    failed(report, f"{arm}, round {number}", error, base)
    report.data["delay"] = rows
    claims(report, rows)
    report.plot = lambda figure: _plot(figure, rows)
    report.notes.append(
        f"{NODES} nodes, {RATE:,} rows/s, watermark 0.2 s (it is in the delay of both); before: {BEFORE}, arms in turns"
    )
    return report


def claims(report: Report, rows: list[dict[str, Any]]) -> None:
    _compare(report, rows, "before", "after", "issue 14", GOAL)
    _compare(report, rows, "after", "arrow", "own", ARROW_GOAL)


def _compare(report: Report, rows: list[dict[str, Any]], one: str, other: str, source: str, goal: float) -> None:
    """One arm over another, in the rounds that have both."""
    whole = {row["round"] for row in rows if row["arm"] == one} & {r["round"] for r in rows if r["arm"] == other}
    if not whole:
        return
    for name in ("p50_s", "p99_s"):
        mine = sorted((row for row in rows if row["round"] in whole), key=lambda row: row["round"])
        first, second = ([row[name] for row in mine if row["arm"] == arm] for arm in (one, other))
        ratio = Ratio.of(first, second)
        text = f"{ratio.mean:.2f}: {statistics.median(first):.2f} -> {statistics.median(second):.2f} s"
        if len(first) > 1:
            text += f", 95% of the rounds' mean {ratio.low:.2f} to {ratio.high:.2f}"
        report.claim(f"delay from window end to sink, {name[:3]}, {other} over {one}", source, f"<= {goal}", text,
                     ratio.mean <= goal)  # fmt: skip


def _plot(figure: Any, rows: list[dict[str, Any]]) -> None:
    for axes, name in zip(figure.subplots(1, 2), ("p50_s", "p99_s"), strict=True):
        for arm in ARMS:
            mine = sorted((r for r in rows if r["arm"] == arm), key=lambda r: r["round"])
            axes.plot([r["round"] for r in mine], [r[name] for r in mine], marker="o", label=arm)
        axes.set_xlabel("round")
        axes.set_ylabel(f"{name[:3]}: seconds from window end to sink")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend()

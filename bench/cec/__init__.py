"""Continuous eventual checkpoints on one operator and a real log, beside the paper's figures 5 to 9 (cec §IV)."""

from __future__ import annotations

from typing import Any

from bench.cec import baseline, events, objective, period, targets
from bench.harness import Report
from holdfast.operators import warm_up

DESCRIPTION = "continuous eventual checkpoints: what footprints cost, and what a recovery from them takes"
PARTS = (baseline, targets, period, events, objective)


def run(quick: bool) -> Report:
    report = Report("cec", DESCRIPTION)
    warm_up()
    for one in PARTS:
        print(f"  {one.__name__.removeprefix('bench.')} ...", flush=True)
        found = one.run(quick)
        report.add(found)
        report.samples |= found.samples
    report.notes = list(dict.fromkeys(report.notes))
    report.plot = lambda figure: _plot(figure, report)
    return report


def _plot(figure: Any, report: Report) -> None:
    axes = figure.subplots(2, 3).ravel()
    baseline.plot(axes[0], report)
    targets.plot(axes[1], report)
    period.plot(axes[2], report)
    period.plot_extent(axes[3], report)
    objective.plot(axes[4], report)
    events.plot(axes[5], report)

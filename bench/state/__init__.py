"""The state engine against sguard §6.1 and cooperative-ha figure 7: what pages cost, and what they save."""

from __future__ import annotations

from typing import Any

from bench.harness import Report
from bench.state import captures, latency, memory, prepare, recovery, transfer, upserts
from holdfast.operators import warm_up

DESCRIPTION = "the state engine: pages, snapshots, recovery, upserts, captures, transfer, memory"


def run(quick: bool) -> Report:
    report = Report("state", DESCRIPTION)
    warm_up()
    for part in (upserts, memory, prepare, recovery, captures, transfer, latency):
        print(f"  {part.__name__.removeprefix('bench.')} ...", flush=True)
        report.add(part.run(quick))
    report.plot = lambda figure: _plot(figure, report)
    return report


def _plot(figure: Any, report: Report) -> None:
    axes = figure.subplots(2, 3).ravel()
    upserts.plot(axes[0], report)
    memory.plot(axes[1], report)
    for part, place in ((prepare, axes[2]), (recovery, axes[3]), (captures, axes[4]), (latency, axes[5])):
        part.plot(place, report)
    for place in axes:
        place.title.set_fontsize(9)

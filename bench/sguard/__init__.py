"""sguard, figure by figure: what its scheduler of writes to the store brings."""

from __future__ import annotations

from bench.harness import Report
from bench.sguard import peace

DESCRIPTION = "sguard's figures: Peace against writes that nobody schedules"


def run(quick: bool) -> Report:
    report = Report("sguard", DESCRIPTION)
    part = peace.run(quick)
    report.add(part)
    report.samples |= part.samples
    report.plot = part.plot
    return report

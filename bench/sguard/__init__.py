"""sguard, figure by figure: what pages and its scheduler of writes to the store bring. Parts: pages, parallel (a real
HDFS), restart (needs Spark), peace."""

from __future__ import annotations

from bench.harness import Report
from bench.sguard import pages, parallel, peace, restart

DESCRIPTION = (
    "sguard's figures: pages, parallel I/O, restart from the store, Peace against writes that nobody schedules"
)


def run(quick: bool) -> Report:
    report = Report("sguard", DESCRIPTION)
    for part in (pages, parallel, restart, peace):
        print(f"  {part.__name__.removeprefix('bench.sguard.')} ...", flush=True)
        found = part.run(quick)
        report.add(found)
        report.samples |= found.samples
        report.plot = found.plot  # of Peace, the last one; every part draws its own (`--part`)
    return report

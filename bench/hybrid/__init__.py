"""hybrid-ha, figure by figure, as far as it can be had without a quiet cluster.

Parts: `simulated` (figures 4 and 6 to 10 and sweeping captures, in the simulator) and `detectors` (figures 12 and 13,
on synthesised loads). What modes promise on real nodes is in tests/integration/test_transient_modes.py.
"""

from __future__ import annotations

from bench.harness import Report
from bench.hybrid import detectors, simulated

DESCRIPTION = "hybrid-ha's figures: delay, traffic, recovery, switching and detection of none, passive, hybrid, active"


def run(quick: bool) -> Report:
    report = Report("hybrid", DESCRIPTION)
    for part in (simulated, detectors):
        print(f"  {part.__name__.removeprefix('bench.hybrid.')} ...", flush=True)
        found = part.run(quick)
        report.add(found)
        report.samples |= found.samples
        report.plot = report.plot or found.plot  # of the first one; every part draws its own (`--part`)
    return report

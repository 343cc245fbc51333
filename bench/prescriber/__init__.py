"""The prescriber against its paper: figures 13 to 21 of shrink.txt, and how fast it ranks.

`measure(quick, out)` does the work and returns the claims; PNGs go to `out`, and a CSV with
every emulated point and its interval. Figures 14-21 come from the published
models, figure 13 from the emulator. The quick form emulates a part of the grid with fewer failures.
"""

from __future__ import annotations

import time
from pathlib import Path

from bench.harness import ROOT, Report
from bench.prescriber.figures import FIGURES_IN_ORDER, Claim, claim
from bench.prescriber.validation import (
    EXACT,
    PRINTED,
    draw,
    exact_claims,
    grid,
    loss_claim,
    other_failures,
    printed_claims,
    real_size_claims,
    write_points,
)
from holdfast.prescriber import Scenario, prescribe

DESCRIPTION = "The prescriber: figures 13-21 of shrink.txt, models against the emulator, time of a ranking"


def ranking_claims() -> list[Claim]:
    """Time of a full ranking, everything compiled and loaded, the slowest of several scenarios.

    CPU time of this one-threaded process: what a user waits for on a machine that is not busy with something else.
    """
    base = Scenario(sla=0.9999, window=600, checkpoint_size=300e6, input_rate=2e6, mtbf=30 * 86400)
    prescribe(base)
    slowest = 0.0
    for sla, rr_max in ((0.99, None), (0.9999, None), (0.99999, 3.0), (0.999, 1.5), (0.9999999, 2.0)):
        start = time.process_time()
        prescribe(base.but(sla=sla), rr_max=rr_max)
        slowest = max(slowest, time.process_time() - start)
    return [
        claim(
            "full ranking of all strategies, slowest of 5, CPU seconds",
            "issue 5",
            "under 0.5 s",
            slowest,
            slowest < 0.5,
        )
    ]


def measure(quick: bool, out: Path | None = None) -> list[Claim]:
    """All claims; draws into `out` when given."""
    claims = [one for figure in FIGURES_IN_ORDER for one in figure(out)]
    failures = 2_000_000 if quick else 25_000_000
    exact = grid("exact", quick=quick, failures_max=failures, names=EXACT)
    printed = grid("published", quick=quick, failures_max=failures // 4, names=PRINTED)
    claims += exact_claims(exact) + printed_claims(printed)
    claims += [loss_claim(failures), *real_size_claims(failures), *other_failures(failures)]
    if out is not None:
        draw(out / "figure-13.png", exact, printed)
        write_points(out / "figure-13.csv", exact, printed)
    return claims + ranking_claims()


def run(quick: bool) -> Report:
    """The claims for the harness; the pictures go to a folder of their own, there are nine."""
    out = Path("out/bench/prescriber") if quick else ROOT / "prescriber" / "results"
    out.mkdir(parents=True, exist_ok=True)
    report = Report("prescriber", DESCRIPTION, notes=[f"figures are in {out}"])
    for one in measure(quick, out):
        measured = one["measured"]
        text = f"{measured:.4g}" if isinstance(measured, float) else str(measured)
        report.claim(str(one["claim"]), str(one["source"]), str(one["goal"]), text, bool(one["holds"]))
    return report

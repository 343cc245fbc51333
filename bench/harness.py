"""What every bench shares: claims, a table, JSON with the machine and the commit, a picture.

A bench is a package `bench/NAME` with `DESCRIPTION` and `run(quick) -> Report`. A claim names its source (paper and
figure, or our own goal), the goal, what was measured, and whether it holds: a bench that falls short says so. Only
ratios within one run are claimed; the machine is shared and noisy.
"""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent
#: Two-sided 95% of Student's t, by degrees of freedom.
T95 = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}


@dataclass
class Claim:
    claim: str
    source: str
    goal: str
    measured: str
    holds: bool


@dataclass
class Report:
    """The outcome of one bench."""

    name: str
    description: str
    claims: list[Claim] = field(default_factory=list)
    #: Measurements behind the claims: name -> rows.
    data: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    #: Measurements that are saved, and too many to be printed: name -> rows.
    samples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    #: Draws the picture into a Matplotlib figure; None: nothing to see.
    plot: Callable[[Any], None] | None = None
    notes: list[str] = field(default_factory=list)

    def claim(self, claim: str, source: str, goal: str, measured: str, holds: bool) -> None:
        self.claims.append(Claim(claim, source, goal, measured, bool(holds)))

    def add(self, other: Report) -> None:
        """Take in the claims and data of a part."""
        self.claims += other.claims
        self.data |= other.data
        self.notes += other.notes


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    model = ""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    except OSError:
        model = platform.processor()
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    load = os.getloadavg()[0]
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "load_before": round(load, 2),
        "python": platform.python_version(),
        "commit": git.stdout.strip() or "unknown",
        "date": time.strftime("%Y-%m-%d"),
    }


@contextmanager
def scratch(name: str) -> Iterator[Path]:
    """A directory for one run of a bench, gone afterwards. If the bench fails, its logs and diaries are kept."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as made:
        try:
            yield Path(made)
        except BaseException as error:
            kept = Path("out/bench").resolve() / f"{name}-failed"
            keep_logs(Path(made), kept)
            error.add_note(f"What was logged is kept in {kept}.")
            raise


@contextmanager
def earlier(commit: str, base: Path) -> Iterator[Path]:
    """The code as it was at a commit: in the worktree that HOLDFAST_BEFORE names, or in one that is gone afterwards."""
    given = os.environ.get("HOLDFAST_BEFORE")
    if given:
        yield Path(given).resolve()
        return
    home = base / "before"
    subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(home), commit], cwd=ROOT, check=True)
    try:
        yield home
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", str(home)], cwd=ROOT, check=True)


def keep_logs(home: Path, kept: Path) -> None:
    """Copy what tells what happened, as it lies: not rows, checkpoints, secrets."""
    shutil.rmtree(kept, ignore_errors=True)  # of an earlier failure
    for file in sorted(home.rglob("*")):
        if file.is_file() and (file.suffix in (".log", ".jsonl") or file.parent.name == "logs"):
            target = kept / file.relative_to(home)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, target)


def best_of(runs: int, body: Callable[[], float]) -> float:
    """The least of several timings: on a noisy machine the one that was disturbed the least."""
    return min(body() for _ in range(runs))


def interval(values: list[float]) -> tuple[float, float]:
    """95% of the mean, if rounds are alike; of one round there is none."""
    if len(values) < 2:
        return (math.nan, math.nan)
    half = T95[len(values) - 1] * statistics.stdev(values) / math.sqrt(len(values))
    return (statistics.mean(values) - half, statistics.mean(values) + half)


@dataclass
class Ratio:
    """How much larger one arm is than the other, from pairs of rounds: the mean of the logarithms, and its 95%."""

    mean: float
    low: float
    high: float

    @staticmethod
    def of(base: list[float], other: list[float]) -> Ratio:
        logs = [math.log(b / a) for a, b in zip(base, other, strict=True)]
        low, high = interval(logs)
        return Ratio(math.exp(statistics.mean(logs)), math.exp(low), math.exp(high))

    def is_at_most(self, goal: float) -> bool:
        """Only if the upper end is; a single round shows nothing."""
        return self.high <= goal

    def told(self, goal: float) -> str:
        """As a percentage more, with its interval, and whether that leaves the goal open."""
        text = f"{100 * (self.mean - 1):+.1f}% (95%: {100 * (self.low - 1):+.1f} to {100 * (self.high - 1):+.1f})"
        return text if self.high <= goal or self.low > goal else f"not resolved: {text}"


def print_report(report: Report) -> None:
    print(f"\n{report.name}: {report.description}")
    widths = [max((len(getattr(c, name)) for c in report.claims), default=0) for name in ("claim", "source")]
    for c in report.claims:
        verdict = "ok  " if c.holds else "MISS"
        print(f"  {verdict} {c.claim:<{widths[0]}}  {c.source:<{widths[1]}}  {c.measured}  (goal {c.goal})")
    for rows_name, rows in report.data.items():
        print(f"\n  {rows_name}")
        if rows:
            print_rows(rows)
    for note in report.notes:
        print(f"  note: {note}")


def print_rows(rows: list[dict[str, Any]]) -> None:
    names = list(rows[0])
    cells = [[_cell(r.get(n)) for n in names] for r in rows]
    widths = [max(len(n), *(len(c[i]) for c in cells)) for i, n in enumerate(names)]
    print("    " + "  ".join(n.rjust(w) for n, w in zip(names, widths, strict=True)))
    for c in cells:
        print("    " + "  ".join(v.rjust(w) for v, w in zip(c, widths, strict=True)))


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def save(report: Report, target: Path, info: dict[str, Any]) -> None:
    """JSON, and a PNG beside it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    body = {
        "name": report.name,
        "description": report.description,
        "machine": info,
        "claims": [asdict(c) for c in report.claims],
        "data": report.data,
        **({"samples": report.samples} if report.samples else {}),
        "notes": report.notes,
    }
    target.write_text(json.dumps(body, indent=1) + "\n")
    if report.plot is not None:
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib.figure import Figure

        figure = Figure(figsize=(13, 8), layout="constrained")
        report.plot(figure)
        figure.savefig(target.with_suffix(".png"), dpi=90)

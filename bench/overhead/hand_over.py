"""Milliseconds of one batch from delivery to seal, before and after "deliver is the prepare", on the same machine.

Real nodes on loopback, a driver without Spark, batches of 1,000 rows: `paced`, with a pause of 30 ms after each (Spark
makes a longer one: it notes the batch and plans the next), and `back to back`. Paced is the wait of one batch; back to
back, the nodes step a batch while the next is delivered, so that it is their CPU that is measured. `before` is the tree
of commit 633d481 in a worktree of its own, `after` is this tree; each round runs one cluster of each, in turns, so that
what else the machine does meanwhile hits both. A batch is timed from `RunBatch` until the driver knows that every
holder has sealed it (`sealed`: the goal), and until `foreachBatch` may return (`done`). Before, these were one moment;
now Spark goes on when the batch counts.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.harness import Report, earlier, interval, scratch

DESCRIPTION = "milliseconds of one batch from delivery to seal, before and after deliver was made the prepare"
ROOT = Path(__file__).resolve().parents[2]
BEFORE = "633d481"
ROWS, SHARDS = 1_000, 4
#: Rounds, batches of each, and those before that do not count.
SIZE, QUICK_SIZE = (5, 200, 60), (1, 100, 50)
LIMIT_S = 600.0
PAUSE_S = 0.03
PACES = ("paced", "back to back")
ENDS = ("sealed", "done")


def _arm(tree: Path, home: Path, batches: int, warm: int) -> dict[str, dict[str, list[float]]]:
    """One cluster of this tree: milliseconds of each batch, by pace and by the end that is meant."""
    asked = {"home": str(home), "batches": batches, "warm": warm, "rows": ROWS, "shards": SHARDS, "pause_s": PAUSE_S}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "arm.py"), json.dumps(asked)],
        env={**os.environ, "PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree / 'tests'}"},
        cwd=tree,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the arm of {tree} failed:\n{done.stderr[-3_000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _row(number: int, arm: str, pace: str, end: str, took: list[float]) -> dict[str, Any]:
    ordered = sorted(took)
    return {
        "round": number,
        "arm": arm,
        "pace": pace,
        "end": end,
        "batches": len(ordered),
        "p50_ms": round(statistics.median(ordered), 3),
        "p99_ms": round(ordered[int(len(ordered) * 0.99)], 3),
        "least_ms": round(ordered[0], 3),
        "load": round(os.getloadavg()[0], 1),
    }


def run(quick: bool) -> Report:
    report = Report("overhead/hand_over", DESCRIPTION)
    rounds, batches, warm = QUICK_SIZE if quick else SIZE
    rows: list[dict[str, Any]] = []
    with scratch("hand_over") as base, earlier(BEFORE, base) as before:
        for number in range(rounds):
            for arm, tree in (("before", before), ("after", ROOT)):
                for pace, ends in _arm(tree, base / f"{arm}-{number}", batches, warm).items():
                    for end, took in ends.items():
                        rows.append(_row(number, arm, pace, end, took))
                        print(f"    {rows[-1]}", flush=True)
    report.data = {"hand_over": rows}
    _claims(report, rows)
    report.plot = lambda figure: _plot(figure, rows)
    report.notes.append(f"3 nodes on loopback, {SHARDS} shards, {ROWS} rows a batch; before: {BEFORE}, arms in turns")
    return report


def _claims(report: Report, rows: list[dict[str, Any]]) -> None:
    for pace, end, name in ((p, e, n) for p in PACES for e in ENDS for n in ("p50_ms", "p99_ms")):
        mine = [r for r in rows if (r["pace"], r["end"]) == (pace, end)]
        before, after = ([r[name] for r in mine if r["arm"] == arm] for arm in ("before", "after"))
        ratios = [b / a for a, b in zip(before, after, strict=True)]
        ratio = statistics.median(after) / statistics.median(before)
        low, high = interval(ratios)
        text = f"{ratio:.2f}: {statistics.median(before):.1f} -> {statistics.median(after):.1f} ms"
        text += f", 95% of rounds' mean {low:.2f} to {high:.2f}"
        report.claim(
            f"hand-over of one batch until {end}, {pace}, {name[:3]}, after over before",
            "issue 12",
            "<= 0.5",
            text,
            ratio <= 0.5,
        )


def _plot(figure, rows: list[dict[str, Any]]) -> None:
    for axes, name in zip(figure.subplots(1, 2), ("p50_ms", "p99_ms"), strict=True):
        for arm, pace in ((a, p) for p in PACES for a in ("before", "after")):
            mine = [r for r in rows if (r["arm"], r["pace"], r["end"]) == (arm, pace, "sealed")]
            axes.plot([r["round"] for r in mine], [r[name] for r in mine], marker="o", label=f"{arm}, {pace}")
        axes.set_xticks(sorted({r["round"] for r in rows}))
        axes.set_xlabel("round")
        axes.set_ylabel(f"{name[:3]}, ms from delivery until every holder has sealed")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend()

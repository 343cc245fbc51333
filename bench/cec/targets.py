"""Recovery against the targets Q and U: figures 6 and 7. 100,000 items, windows of 10 rows, CI 5 ms, CP 100 ms."""

from __future__ import annotations

from typing import Any

from bench.cec.feed import EDGE, PAPER_TUPLE_BYTES, Purchases, average, crash, part, run_to, start
from bench.harness import Report, scratch
from holdfast.core.eventual import Cadence, Targets
from holdfast.runtime.disk.eventual import recover

MS = 1_000_000
#: Of the paper, read off its text: extent -> seconds to load it.
PAPER_LOADS = ((120_000, 3.5), (180_000, 5.0))
LOAD_GOAL_TUPLES, LOAD_GOAL_S = 180_000, 0.5


def run(quick: bool) -> Report:
    report = part("targets", plot)
    items, rows = (10_000, 500_000) if quick else (100_000, 6_000_000)
    given = Purchases(items=items, rows=rows)
    by_q = [(f"{n} x open windows", Targets(n * items, None)) for n in ((1, 2, 8) if quick else (1, 2, 3, 4, 6, 8))]
    limits = (0.125, 1.0) if quick else (0.125, 0.25, 0.5, 0.75, 1.0)
    by_u = [(f"{round(u * 10 * items):,} rows", Targets(None, round(u * 10 * items))) for u in limits]
    for name, targets in (("figure 6: Q", by_q), ("figure 7: U", by_u)):
        report.data[name] = [_measure(label, target, given) for label, target in targets]
    _claims(report, quick)
    return report


def _measure(label: str, target: Targets, given: Purchases) -> dict[str, Any]:
    with scratch("cec") as path:
        live = start(path, 10, target, Cadence(5 * MS, 100 * MS))
        took = sum(run_to(live, given, given.steps))
        extent = live.extent
        wall = recover(average(10), path, EDGE, given.again)
        done = crash(path, average(10), given)
        found = done.found
        return {
            "target": label,
            "checks": live.policy.checks,
            "open windows": extent.windows,
            "extent": extent.tuples,
            "load CPU s": (found.read_ns + found.load_ns) / 1e9,
            "load wall s": (wall.read_ns + wall.load_ns) / 1e9,
            "log read MB": found.bytes_read / 1e6,
            "rows replayed": found.replayed_rows,
            "replayed MB, as the paper's": found.replayed_rows * PAPER_TUPLE_BYTES / 1e6,
            "replay CPU s": found.replay_ns / 1e9,
            "CPU us/row": took / given.rows / 1e3,
        }


def _claims(report: Report, quick: bool) -> None:
    for name in ("figure 6: Q", "figure 7: U"):
        rows = report.data[name]
        first, last = rows[0], rows[-1]
        trend = first["extent"] < last["extent"] and first["rows replayed"] < last["rows replayed"]
        told = f"extent {first['extent']:,} -> {last['extent']:,}, replayed {first['rows replayed']:,} -> "
        told += f"{last['rows replayed']:,}, checks {first['checks']:,} -> {last['checks']:,}"
        source = f"cec {name[:8]}"
        more = "a looser target: longer extent, more to replay, fewer checks"
        report.claim(f"{name}: {more}", source, "as in the paper", told, trend and first["checks"] > last["checks"])
    if quick:
        return
    every = report.data["figure 6: Q"] + report.data["figure 7: U"]
    near = min((one for one in every if one["extent"] >= LOAD_GOAL_TUPLES), key=lambda one: one["extent"])
    what = f"an extent of at least {LOAD_GOAL_TUPLES:,} tuples is read and loaded"
    paper = "(paper: 3.5 to 5 s for 120,000 to 180,000)"
    for kind in ("CPU", "wall"):
        took = near[f"load {kind} s"]
        told = f"{took:.2f} s for {near['extent']:,} {paper}"
        report.claim(f"{what}, {kind}", "issue 18", f"< {LOAD_GOAL_S} s", told, took < LOAD_GOAL_S)


def plot(axes: Any, report: Report) -> None:
    for name in ("figure 6: Q", "figure 7: U"):
        rows = report.data[name]
        points = sorted((one["extent"] / 1e3, one["load CPU s"]) for one in rows)
        axes.plot([x for x, _ in points], [y for _, y in points], "o-", label=name)
    axes.plot([x / 1e3 for x, _ in PAPER_LOADS], [y for _, y in PAPER_LOADS], "s--", label="paper")
    axes.set_yscale("log")
    axes.set_title("figures 6, 7: seconds to load an extent (thousand tuples)")
    axes.legend(fontsize=7)

"""What the Spark side of a pipeline costs: JVMs, memory, CPU while nothing happens, and how soon everything is warm.

Pipelines of two, four and eight stages (a source and a sink in turn), four nodes, a standby of every stage; each in
three arms, one after the other in one run: `shared` (standbys in the node's one JVM: the default below 8 cores), `own`
(standbys in a second JVM of the node), and `before`: the last commit in which every stage and every standby was a JVM
of its own, in a worktree that is made for it (or in the one that HOLDFAST_BEFORE names). HOLDFAST_STAGES="4" and
HOLDFAST_ARMS="shared before" choose.

An idle minute begins when the CPU use after the last row has come down (JVMs of standbys practise for a while). Seconds
are counted from the moment at which the nodes are started; planning, and compiling kernels once per machine, come
before that.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.harness import Report, earlier, keep_logs, scratch

DESCRIPTION = "JVMs, memory, idle CPU and seconds until all is warm, by number of stages, before and after"
ROOT = Path(__file__).resolve().parents[2]
#: The last commit with a JVM for each stage and each standby.
BEFORE = "15d6da4"
NODES = 4
STAGES, QUICK_STAGES = (2, 4, 8), (4,)
ARMS = ("before", "shared", "own")
#: Seconds of idleness, and for how long all may take to get warm.
SIZE, QUICK_SIZE = (60.0, 400.0), (15.0, 300.0)
WARM_GOAL_S = 30.0
LIMIT_S = 1_200.0


def chosen(name: str, default: tuple[Any, ...]) -> list[str]:
    return os.environ.get(name, "").split() or [str(one) for one in default]


def ask(tree: Path, **asked: Any) -> dict[str, Any]:
    """Run one arm, a process of its own."""
    path = os.pathsep.join([str(tree / "src"), str(ROOT)])
    inherited = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}  # each tree has its own
    done = subprocess.run(
        [sys.executable, "-m", "bench.drivers.arm", json.dumps(asked)],
        env={**inherited, "PYTHONPATH": path},
        cwd=asked["cwd"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the arm of {tree} failed:\n{done.stderr[-3_000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def failed(report: Report, what: str, error: Exception, base: Path) -> None:
    kept = Path("out/bench").resolve() / f"{report.name.replace('/', '-')}-failed"
    keep_logs(base, kept)
    why = str(error).strip().splitlines()[-1]
    report.claim(f"{what}: it runs", "own", "it does", f"{why} (logs: {kept})", False)
    print(f"    {what}: {why}", flush=True)


def settings(arm: str) -> list[str]:
    """Before, there was nothing to set."""
    return [] if arm == "before" else [f'standby_driver = "{arm}"']


def run(quick: bool) -> Report:
    report = Report("drivers", DESCRIPTION)
    idle_s, warm_limit_s = QUICK_SIZE if quick else SIZE
    rows: list[dict[str, Any]] = []
    with scratch("drivers") as base, earlier(BEFORE, base) as before:
        for stages in map(int, chosen("HOLDFAST_STAGES", QUICK_STAGES if quick else STAGES)):
            for arm in chosen("HOLDFAST_ARMS", ARMS):
                home = base / f"{stages}-{arm}"
                tree = before if arm == "before" else ROOT
                asked = {"what": "drivers", "home": str(home), "stages": stages, "nodes": NODES, "standby": True,
                         "settings": settings(arm), "idle_s": idle_s, "warm_limit_s": warm_limit_s}  # fmt: skip
                try:
                    rows.append({"stages": stages, "arm": arm, **ask(tree, cwd=str(base), **asked)})
                    print(f"    {rows[-1]}", flush=True)
                except (RuntimeError, subprocess.TimeoutExpired) as error:  # the other arms are of use all the same
                    failed(report, f"{arm}, {stages} stages", error, base)
    report.data["drivers"] = rows
    claims(report, rows)
    report.plot = lambda figure: _plot(figure, rows)
    report.notes.append(
        f"{NODES} nodes, 2,000 rows/s in every source until the idle minute; rss_mb counts what processes share once"
        " for each of them, shared_out_mb once in all; warm: every stage has a warm standby, every shard a backup"
    )
    return report


def claims(report: Report, rows: list[dict[str, Any]]) -> None:
    found = {(row["stages"], row["arm"]): row for row in rows}
    for (stages, arm), row in found.items():
        if arm == "shared":
            report.claim(f"JVMs, {stages} stages", "issue 14", f"<= {NODES}, one a node",
                         f"{row['jvms']} (most while it started: {row['jvms_most']})",
                         max(row["jvms"], row["jvms_most"]) <= NODES)  # fmt: skip
            _claim_warm(report, stages, row)
    pairs = {stages: (found[stages, "before"], row) for (stages, arm), row in found.items()
             if arm == "shared" and (stages, "before") in found}  # fmt: skip
    for stages, (before, after) in pairs.items():
        ratio = after["rss_mb"] / before["rss_mb"]
        goal = "<= 0.5" if stages >= 4 else "< 1"
        report.claim(f"resident memory over before, {stages} stages", "issue 14", goal,
                     f"{ratio:.2f}: {before['rss_mb']} -> {after['rss_mb']} MB (what is shared counted once: "
                     f"{after['shared_out_mb'] / before['shared_out_mb']:.2f})",
                     ratio <= 0.5 if stages >= 4 else ratio < 1)  # fmt: skip
        cpu = after["idle_cpu_s_a_minute"] / before["idle_cpu_s_a_minute"]
        report.claim(f"CPU of an idle minute over before, {stages} stages", "own", "< 1",
                     f"{cpu:.2f}: {before['idle_cpu_s_a_minute']:.1f} -> {after['idle_cpu_s_a_minute']:.1f} s",
                     cpu < 1)  # fmt: skip


def _claim_warm(report: Report, stages: int, row: dict[str, Any]) -> None:
    warm_s = None if row["warm_s"] is None else row["warm_s"] - row["first_row_s"]
    measured = (
        "not within the limit" if warm_s is None else f"{warm_s:.1f} s, the first row after {row['first_row_s']} s"
    )
    report.claim(f"all warm after the first row, {stages} stages", "issue 14", f"<= {WARM_GOAL_S:.0f} s, quiet machine",
                 f"{measured} (load {row['load']})", warm_s is not None and warm_s <= WARM_GOAL_S)  # fmt: skip


def _plot(figure: Any, rows: list[dict[str, Any]]) -> None:
    what = (("jvms", "JVMs"), ("rss_mb", "resident memory, MB"), ("idle_cpu_s_a_minute", "CPU s in an idle minute"),
            ("warm_s", "seconds until all is warm"))  # fmt: skip
    arms = list(dict.fromkeys(row["arm"] for row in rows))
    stages = sorted({row["stages"] for row in rows})
    for axes, (name, label) in zip(figure.subplots(2, 2).flat, what, strict=True):
        for shift, arm in enumerate(arms):
            mine = {row["stages"]: row[name] or 0 for row in rows if row["arm"] == arm}
            places = [stages.index(count) + 0.25 * shift for count in mine]
            axes.bar(places, list(mine.values()), width=0.22, label=arm)
        axes.set_xticks([i + 0.25 for i in range(len(stages))], [f"{count} stages" for count in stages])
        axes.set_ylabel(label)
        axes.grid(axis="y", alpha=0.3)
    figure.axes[0].legend()

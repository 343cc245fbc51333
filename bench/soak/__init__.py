"""Does anything grow? An hour at 20,000 rows a second through a pipeline with Spark on four nodes.

`holdfast run` as a user starts it. Every ten seconds: resident memory, open descriptors and threads of nodes, stage
drivers, JVMs, Python workers and the supervisor; the disk by folder; rows through and their delay. At the end `holdfast
stop --finish` and `holdfast verify`. What is called flat, bounded or growing is said in judge.py. One row in 10,000 is
late, so that the files of late rows are among what is looked at.

HOLDFAST_SOAK_MINUTES sets the length. Below JUDGED_MINUTES a slope per hour says nothing, and resources are shown, but
not judged.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from bench import recovery
from bench.harness import Report, scratch
from bench.soak.judge import FLAT, Judged, judge
from bench.soak.sample import Sampler

DESCRIPTION = "an hour at 20,000 rows/s on four nodes: memory, descriptors, threads and disk, flat or bounded"
ROOT = Path(__file__).resolve().parents[2]
MINUTES, QUICK_MINUTES, JUDGED_MINUTES = 60.0, 2.0, 20.0
PERIOD_S, QUICK_PERIOD_S = 10.0, 2.0
NODES, KEYS, SHARDS, WINDOW, DELAY = 4, 5_000, 8, "5 seconds", "1 second"
START_LIMIT_S, FINISH_LIMIT_S, VERIFY_LIMIT_S, END_LIMIT_S = 300.0, 900.0, 3_600.0, 60.0
#: A JVM's heap is limited to 1 GB (spark/session.py); its code, classes, threads and buffers come on top.
JVM_MB = 1_600.0
#: A node turns its event log over at 16 MB and keeps one old file.
EVENTS_MB = 2 * 17.0
#: A journal is compacted from 1 MB on, or from twice what is alive in it.
JOURNAL_MB = 4.0
#: Rises that are none: a megabyte, a descriptor, a thread, a file.
GRAINS = {"MB": 1.0, "descriptors": 1.0, "threads": 1.0, "processes": 0.0, "files": 5.0}


def _options(home: Path) -> dict[str, Any]:
    return {
        "start_us": int(time.time() * 1_000_000),
        "rate": recovery.RATE,
        "end": str(home / "end"),
        "keys": KEYS,
        "window": WINDOW,
        "delay": DELAY,
        "shards": SHARDS,
        "out": str(home / "out"),
        "arrivals": str(home / "arrivals.jsonl"),
    }


def run(quick: bool) -> Report:
    report = Report("soak", DESCRIPTION)
    minutes = float(os.environ.get("HOLDFAST_SOAK_MINUTES") or (QUICK_MINUTES if quick else MINUTES))
    with scratch("soak") as home:
        rows, verdict, code = _soak(home, _options(home), minutes * 60, QUICK_PERIOD_S if quick else PERIOD_S)
    tell(report, rows, verdict, code, minutes)
    return report


def _soak(
    home: Path, options: dict[str, Any], seconds: float, period_s: float
) -> tuple[list[dict[str, float]], dict[str, Any], int]:
    """The samples, what `verify` said, and the exit code of the run."""
    (home / "tmp").mkdir()
    temporary = {"TMPDIR": str(home / "tmp"), "SPARK_LOCAL_DIRS": str(home / "tmp")}
    environment = {**recovery._environment(options), **temporary}
    query, directory = Path(__file__).parent / "query.py", home / "run"
    with (home / "run.log").open("ab") as log:
        command = ["run", str(query), "--nodes", str(NODES), "--dir", str(directory)]
        supervisor = subprocess.Popen(
            _holdfast(*command), env=environment, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        _wait_for_output(options, supervisor)
        sampler = Sampler(supervisor.pid, home, period_s, Path("out/bench/soak-samples.jsonl").resolve())
        with closing(sampler):
            _watch(options, seconds, supervisor, sampler)
        _run(
            _holdfast("stop", str(directory), "--finish", "--limit", str(FINISH_LIMIT_S)),
            environment,
            2 * FINISH_LIMIT_S,
        )
        code = supervisor.wait(END_LIMIT_S)
        verdict = json.loads(_run(_holdfast("verify", str(directory), "--json"), environment, VERIFY_LIMIT_S))
    finally:
        if supervisor.poll() is None:
            supervisor.send_signal(signal.SIGTERM)
            supervisor.wait(END_LIMIT_S)
    return sampler.rows, verdict, code


def _holdfast(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from holdfast.cli.main import entry; entry()", *arguments]


def _run(command: list[str], environment: dict[str, str], limit_s: float) -> str:
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=limit_s, check=False
    )
    if done.returncode and not done.stdout.strip():
        raise RuntimeError(f"holdfast {' '.join(command[3:])}: exit code {done.returncode}\n{done.stderr[-3_000:]}")
    return done.stdout


def _wait_for_output(options: dict[str, Any], supervisor: subprocess.Popen) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while not Path(options["arrivals"]).exists():
        if supervisor.poll() is not None:
            raise RuntimeError(f"holdfast run ended with exit code {supervisor.returncode}; see run.log")
        if time.monotonic() > deadline:
            raise RuntimeError(f"no output within {START_LIMIT_S:.0f} s")
        time.sleep(0.2)


def _watch(options: dict[str, Any], seconds: float, supervisor: subprocess.Popen, sampler: Sampler) -> None:
    """For this long; then the source has no more rows."""
    ends, end = time.time() + seconds, Path(options["end"])
    end.with_suffix(".new").write_text(str(int((ends - options["start_us"] / 1e6) * options["rate"])))
    end.with_suffix(".new").replace(end)
    told = 0
    while time.time() < ends:
        if supervisor.poll() is not None:
            raise RuntimeError(f"holdfast run ended with exit code {supervisor.returncode}; see run.log")
        if sampler.rows and len(sampler.rows) // 30 > told:
            told = len(sampler.rows) // 30
            last = sampler.rows[-1]
            shown = ("nodes, MB", "nodes, descriptors", "JVMs, MB", "rows/s through", "delay s")
            figures = "; ".join(f"{name}: {last.get(name, 0.0):,.1f}" for name in shown)
            print(f"    {last['s']:.0f} s: {figures}", flush=True)
        time.sleep(1.0)


# --- what it comes to -------------------------------------------------------------------------------------------------


def _limit(name: str, rows: list[dict[str, float]]) -> float | None:
    """What somebody keeps a resource below, if somebody does."""
    if name == "JVMs, MB":
        return JVM_MB * max(row.get("JVMs, processes", 0.0) for row in rows)
    return {"events, MB": NODES * EVENTS_MB, "journals, MB": NODES * JOURNAL_MB}.get(name)


def judged(rows: list[dict[str, float]]) -> dict[str, Judged]:
    """Every resource that was there in the second half."""
    names = dict.fromkeys(name for row in rows[len(rows) // 2 :] for name in row)
    times = [row["s"] for row in rows]
    return {
        name: judge(times, [row.get(name, 0.0) for row in rows], grain=GRAINS[unit], limit=_limit(name, rows))
        for name in names
        if (unit := name.rpartition(", ")[2]) in GRAINS
    }


def is_ours(name: str) -> bool:
    return not name.startswith("the user's sink")


def tell(report: Report, rows: list[dict[str, float]], verdict: dict[str, Any], code: int, minutes: float) -> None:
    found = judged(rows)
    report.data["resources"] = [
        {"resource": name, "start": round(j.start, 2), "end": round(j.end, 2), "highest": round(j.highest, 2),
         "per hour": round(j.per_hour, 2), "verdict": j.verdict, "why": j.why}
        for name, j in sorted(found.items())
    ]  # fmt: skip
    long_enough = minutes >= JUDGED_MINUTES
    if long_enough:
        for unit in GRAINS:
            mine = {name: j for name, j in found.items() if name.endswith(f", {unit}") and is_ours(name)}
            grows = [f"{name} {j.per_hour:+,.1f} an hour" for name, j in mine.items() if j.verdict == "grows"]
            counts = {v: sum(j.verdict == v for j in mine.values()) for v in ("flat", "bounded")}
            measured = "; ".join(grows) or f"{counts['flat']} flat, {counts['bounded']} bounded"
            what = f"{unit}, by kind of process or folder"
            report.claim(what, "issue 13", "every one flat or bounded", measured, not grows)
        _claim_output(report, rows)
    report.claim("sink equals Spark batch, row for row", "issue 13", "equal",
                 f"{verdict.get('rows_out', 0):,} rows of {verdict.get('rows_in', 0):,},"
                 f" {verdict.get('rows_late', 0):,} late: {'equal' if verdict.get('holds') else verdict.get('text')}",
                 bool(verdict.get("holds")))  # fmt: skip
    report.claim("`holdfast run` after stop --finish", "own", "exit code 0", str(code), code == 0)
    report.notes.append(
        f"flat: over the second half the median slope of all pairs of samples is at most {100 * FLAT:.0f}% of the"
        " median an hour, or less than a megabyte, a descriptor, a thread, five files, or than the samples scatter;"
        " bounded: it rises more, but below a limit that is kept, or without a new height in the last quarter"
    )
    if not long_enough:
        report.notes.append(f"{minutes:.0f} minutes are too short to judge slopes per hour: shown, not claimed")
    report.notes.append(f"{NODES} nodes with standbys, {KEYS:,} skewed keys, windows of {WINDOW}, {SHARDS} shards")
    report.samples["soak"] = [{name: round(value, 3) for name, value in row.items()} for row in rows]
    report.plot = lambda figure: _plot(figure, rows, found)


def _claim_output(report: Report, rows: list[dict[str, float]]) -> None:
    half = rows[len(rows) // 2 :]
    rate = statistics.mean(row["rows/s through"] for row in half)
    delays = [row["delay s"] for row in half if "delay s" in row]
    report.claim("rows through, second half", "own", f">= 99% of {recovery.RATE:,}/s", f"{rate:,.0f}/s",
                 rate >= 0.99 * recovery.RATE)  # fmt: skip
    trend = judge([row["s"] for row in rows if "delay s" in row], [row["delay s"] for row in rows if "delay s" in row],
                  grain=0.2)  # fmt: skip
    report.claim("delay of windows at the sink", "own", "flat or bounded",
                 f"{trend.verdict}: {statistics.median(delays):.2f} s in the median, highest {max(delays):.2f} s",
                 trend.verdict != "grows")  # fmt: skip


def _plot(figure: Any, rows: list[dict[str, float]], found: dict[str, Judged]) -> None:
    """Small multiples: kinds of processes, disk by folder, output."""
    minutes = [row["s"] / 60 for row in rows]
    panels = [f"{unit}, processes" for unit in ("MB", "descriptors", "threads")]
    panels += ["MB, folders", "files, folders", "rows/s through", "delay s"]
    all_axes = list(figure.subplots(2, 4).flat)
    kinds = {name.partition(", ")[0] for name in found if name.endswith(", threads")}
    for axes, panel in zip(all_axes, panels, strict=False):
        unit, _, which = panel.partition(", ")
        if not which:
            there = [row for row in rows if unit in row]
            axes.plot([row["s"] / 60 for row in there], [row[unit] for row in there], lw=0.8)
        for name in sorted(found) if which else []:
            owner, _, measured = name.rpartition(", ")
            if measured == unit and (owner in kinds) == (which == "processes"):
                style = "-" if is_ours(name) else ":"
                axes.plot(
                    minutes, [row.get(name, 0.0) for row in rows], style, lw=1, label=f"{owner}: {found[name].verdict}"
                )
        axes.set_title(panel.replace(", ", " of "), fontsize=9)
        axes.set_xlabel("minutes", fontsize=8)
        axes.set_ylim(bottom=0)
        axes.tick_params(labelsize=7)
        axes.grid(alpha=0.3)
        if which:
            axes.legend(fontsize=6)
    for axes in all_axes[len(panels) :]:
        axes.set_visible(False)
    figure.suptitle(f"{recovery.RATE:,} rows a second, {NODES} nodes: does anything grow?")

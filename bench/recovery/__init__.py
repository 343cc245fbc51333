"""How long the output pauses after kill -9: Holdfast beside plain Structured Streaming, same query, same rows, one run.

Both read a source that makes 20,000 rows a second by the wall clock, count per key over short tumbling windows (short,
so that the cadence of the output does not hide the gap) and write through the same foreachBatch sink. Plain Spark is
killed (driver and JVM) and started again at once with its checkpoint. On Holdfast nodes are killed: those that hold
shards only, and those that also run a Spark stage. A gap is the longest pause between two arrivals at the sink around
the kill; Holdfast's is also measured on the stream itself, by a guest, because the sink is a Spark query with a cadence
of its own.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.harness import Report, scratch

DESCRIPTION = "output gap after kill -9, against plain Structured Streaming restarted at once"
ROOT = Path(__file__).resolve().parents[2]
RATE, KEYS, WINDOW, DELAY, SHARDS = 20_000, 5_000, "100 milliseconds", "200 milliseconds", 8
FIRST_LIMIT_S = 180.0
RESUME_LIMIT_S = 120.0
CALM_LIMIT_S = 240.0
HEARTBEAT = "100 ms"
#: A pause counts as the kill's if it begins up to so long after it; as usual counts the longest one of as long before.
AFTERMATH_S = 5.0


def _options(home: Path) -> dict[str, Any]:
    return {
        "start_us": int(time.time() * 1_000_000),
        "rate": RATE,
        "keys": KEYS,
        "window": WINDOW,
        "delay": DELAY,
        "shards": SHARDS,
        "out": str(home / "arrivals.jsonl"),
        "checkpoint": str(home / "checkpoint"),
    }


def _environment(options: dict[str, Any]) -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return {**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable, "HOLDFAST_BENCH": json.dumps(options)}


def arrivals(options: dict[str, Any]) -> list[dict[str, float]]:
    try:
        lines = Path(options["out"]).read_text().splitlines()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines if line.endswith("}")]


def pause(times: list[float], since: float, until: float) -> float:
    """The longest pause that ended after `since` and began before `until`."""
    return max((b - a for a, b in itertools.pairwise(times) if b >= since and a <= until), default=float("nan"))


def usual(options: dict[str, Any], at: float) -> float:
    """The longest pause of the calm before `at`."""
    return pause([a["at"] for a in arrivals(options) if a["at"] < at], at - AFTERMATH_S, at)


def _wait_for(
    options: dict[str, Any],
    since: float,
    count: int,
    limit_s: float,
    what: str,
    process: subprocess.Popen | None = None,
) -> None:
    """Until so many batches have arrived after `since`."""
    deadline = time.monotonic() + limit_s
    while sum(a["at"] > since for a in arrivals(options)) < count:
        if process is not None and process.poll() is not None:
            raise RuntimeError(f"{what}: it ended with exit code {process.returncode}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: no output within {limit_s:.0f} s")
        time.sleep(0.1)


# --- plain Structured Streaming ---------------------------------------------------------------------------------------


def _plain(kills: int, quiet_s: float, home: Path) -> list[dict[str, Any]]:
    options = _options(home)
    rows = []

    def start() -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-m", "bench.recovery.plain", json.dumps(options)],
            env=_environment(options),
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=(home / "plain.log").open("ab"),
            start_new_session=True,
        )

    process = start()
    try:
        _wait_for(options, 0.0, 20, FIRST_LIMIT_S, "plain Structured Streaming", process)
        for number in range(kills):
            time.sleep(quiet_s)
            at = time.time()
            calm = usual(options, at)
            os.killpg(process.pid, signal.SIGKILL)  # the driver and its JVM
            process.wait()
            process = start()
            _wait_for(options, at + 1.0, 5, RESUME_LIMIT_S, "plain Structured Streaming after a kill")
            gap = pause([a["at"] for a in arrivals(options)], at, at + AFTERMATH_S)
            print(f"    kill {number + 1} of plain Structured Streaming: {gap:.2f} s", flush=True)
            rows.append({"system": "plain Structured Streaming", "kill": number + 1, "of": "driver", "at": "sink",
                         "gap_s": round(gap, 3), "usual_s": round(calm, 3)})  # fmt: skip
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return rows


# --- Holdfast ------------------------------------------------------------------------------------------------------


def _holdfast(kills: int, quiet_s: float, home: Path, kind: str) -> list[dict[str, Any]]:
    """Kill nodes that run a Spark stage (with a warm standby elsewhere), or nodes that hold shards only (without)."""
    from holdfast.cli.start import RunOptions, start_run
    from holdfast.runtime.client.probe import Probe

    staged = kind == "a Spark stage"
    options = _options(home)
    os.environ.update(_environment(options))
    started = start_run(
        Path(__file__).parent / "query.py",
        RunOptions(
            nodes=4, directory=home / "run", restart_s=3.0, standby=staged, settings=(f'heartbeat = "{HEARTBEAT}"',)
        ),
    )
    rows = []
    try:
        _wait_for(options, 0.0, 20, FIRST_LIMIT_S, "Holdfast")
        probe = Probe(started.plan, "counts", started.run.endpoints, started.run.security)
        for number in range(kills):
            _wait_until_calm(started, quiet_s)
            victim = _victim(started, with_stage=staged, number=number)
            at = time.time()
            calm = {"stream": probe.gap(at - AFTERMATH_S, at), "sink": usual(options, at)}
            started.nodes.kill(victim)
            _wait_for(options, at + AFTERMATH_S, 5, RESUME_LIMIT_S, "Holdfast after a kill")
            times = [a["at"] for a in arrivals(options)]
            gaps = {"stream": probe.gap(at, at + AFTERMATH_S), "sink": pause(times, at, at + AFTERMATH_S)}
            for place, gap in gaps.items():
                rows.append({"system": "Holdfast", "kill": number + 1, "of": kind, "at": place,
                             "gap_s": round(gap, 3), "usual_s": round(calm[place], 3)})  # fmt: skip
            told = ", ".join(f"{gaps[p]:.2f} s at the {p} (before: {calm[p]:.2f} s)" for p in gaps)
            print(f"    kill {number + 1} of {victim} ({kind}): {told}", flush=True)
        probe.close()
    finally:
        started.stop()
    return rows


def _wait_until_calm(started, quiet_s: float) -> None:
    """All nodes are back, every shard has a backup, every stage a standby that is ready (if any); then a while more."""
    from holdfast.cli.watch import cluster_status

    deadline = time.monotonic() + CALM_LIMIT_S
    while reasons := cluster_status(started.run)["unprotected"]:
        if time.monotonic() > deadline:
            raise RuntimeError(f"not protected within {CALM_LIMIT_S:.0f} s: {'; '.join(reasons)}")
        time.sleep(0.3)
    time.sleep(quiet_s)


def _victim(started, *, with_stage: bool, number: int) -> str:
    """A node that runs a stage, or one that runs none but holds shards; the coordinator is among them now and then."""
    from holdfast.cli.watch import cluster_status

    places = cluster_status(started.run)["record"]["places"]
    staged = {p["primary"].partition("#")[0] for p in places.values() if p["stage"]}
    united = {p["primary"].partition("#")[0] for a, p in places.items() if "-" in a and "#" in p["primary"]}
    names = sorted(staged if with_stage else united - staged)
    return names[number % len(names)]


# --- the bench ------------------------------------------------------------------------------------------------------


def run(quick: bool) -> Report:
    report = Report("recovery", DESCRIPTION)
    kills, quiet_s = (2, 5.0) if quick else (5, 8.0)
    with scratch("recovery") as base:
        homes = {name: base / name for name in ("shards", "stage", "plain")}
        for home in homes.values():
            home.mkdir()
        rows = _holdfast(kills, quiet_s, homes["shards"], "shards only")
        rows += _plain(kills, quiet_s, homes["plain"])
        rows += _holdfast(min(kills, 3), quiet_s, homes["stage"], "a Spark stage")
    tell(report, rows)
    return report


def tell(report: Report, rows: list[dict[str, Any]]) -> None:
    """The claims, the note and the picture of what was measured."""
    report.data["gaps"] = rows

    def gaps(system: str, of: str, at: str) -> list[float]:
        return [r["gap_s"] for r in rows if (r["system"], r["of"], r["at"]) == (system, of, at)]

    plain = statistics.median(gaps("plain Structured Streaming", "driver", "sink"))
    stream = statistics.median(gaps("Holdfast", "shards only", "stream"))
    sink = statistics.median(gaps("Holdfast", "shards only", "sink"))
    staged = statistics.median(gaps("Holdfast", "a Spark stage", "sink"))
    stretch = statistics.median(
        r["gap_s"] - r["usual_s"] for r in rows if (r["of"], r["at"]) == ("shards only", "stream")
    )
    detection_s = 0.05  # a refused connection; five heartbeats of 100 ms for a machine that only froze
    goal = "issue 4, design §7"
    report.claim("gap on the stream, node with shards", goal, "<= 1/40 of plain", f"{plain / stream:.0f} times shorter",
                 stream * 40 <= plain)  # fmt: skip
    report.claim("gap at the sink, node with shards", goal, "<= 1/40 of plain", f"{plain / sink:.0f} times shorter",
                 sink * 40 <= plain)  # fmt: skip
    report.claim("gap on the stream beyond its usual pause", goal, "detection (0.05 s) + 0.1 s",
                 f"{stretch:.3f} s", stretch <= detection_s + 0.1)  # fmt: skip
    report.claim("gap at the sink, node with a Spark stage", "own", "<= 1/10 of plain",
                 f"{plain / staged:.0f} times shorter", staged * 10 <= plain)  # fmt: skip
    report.plot = lambda figure: _plot(figure, rows)
    report.notes.append(
        f"{RATE} rows/s, {KEYS} skewed keys, windows of {WINDOW}, watermark {DELAY}, 4 nodes, heartbeat {HEARTBEAT};"
        f" median gap: plain {plain:.2f} s, Holdfast {stream:.3f} s (stream), {sink:.3f} s (sink), {staged:.2f} s"
        " (sink, node with a stage)"
    )


def _plot(figure, rows: list[dict[str, Any]]) -> None:
    axes = figure.subplots()
    groups = list(dict.fromkeys((r["system"], r["of"], r["at"]) for r in rows))
    for i, group in enumerate(groups):
        values = [r["gap_s"] for r in rows if (r["system"], r["of"], r["at"]) == group]
        axes.scatter([i] * len(values), values, s=30)
    axes.set_xticks(range(len(groups)), [f"{s}\nkill: {o}\nat the {a}" for s, o, a in groups], fontsize=8)
    axes.set_yscale("log")
    axes.set_ylabel("output gap, seconds (log)")
    axes.set_title("kill -9: how long the output pauses")
    axes.grid(axis="y", alpha=0.3)

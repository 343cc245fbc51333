"""What protection costs, and how a windowed aggregate compares with Structured Streaming's own on the same two cores.

Throughput: a backlog of parquet files, one file per micro-batch, count and sum per key over tumbling windows, from
1,000 to 10,000,000 keys; rows per second and CPU seconds per 100,000 rows between the commit of an early batch and
that of the last one, over all processes of each system; Holdfast is through only when its shards have consumed all and
its sink has written what came of it. Protection off is a single node, on is three with a backup of
every shard. Delay: 20,000 rows a second by the wall clock (the source of bench/recovery), the time between the end of a
window and its arrival at the sink.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from bench import recovery
from bench.harness import Report, scratch
from bench.overhead.data import write_files

DESCRIPTION = "throughput, CPU and delay with protection off and on, against Structured Streaming's own aggregate"
ROOT = Path(__file__).resolve().parents[2]
SHARDS = 4
#: Keys, files, rows a file, the batch from which on it counts, and rounds. Batches before are warm-up: a JVM compiles
#: what it runs for some tens of seconds, and Holdfast has two (its sink's, too). Where the systems are close to each
#: other the noise of the machine decides a single round, so there are more, in turns, and the median counts.
SIZES = [
    (1_000, 80, 500_000, 30, 3),
    (100_000, 45, 500_000, 15, 1),
    (1_000_000, 18, 500_000, 4, 1),
    (10_000_000, 18, 500_000, 4, 1),
]
QUICK_SIZES = [(1_000, 12, 200_000, 4, 1)]
SYSTEMS = {"Holdfast, unprotected": 1, "Holdfast, protected": 3, "plain Structured Streaming": 0}
LIMIT_S = 900.0


class CpuMeter:
    """Watches a checkpoint's commits, and the CPU of all processes below (and of) some roots."""

    def __init__(self, commits: Path, first: int, last: int, roots: list[int]) -> None:
        self.first, self.final = commits / str(first), commits / str(last)
        self.batches = last - first
        self.roots = roots
        self.committed = threading.Event()
        self._cpu: dict[int, float] = {}
        #: (moment, CPU seconds so far)
        self._samples: list[tuple[float, float]] = []
        self._closed = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def _cpu_s(self) -> float:
        """All CPU seconds so far; a process that has ended keeps what it had."""
        for root in self.roots:
            try:
                family = [psutil.Process(root), *psutil.Process(root).children(recursive=True)]
            except psutil.NoSuchProcess:
                continue
            for process in family:
                try:
                    times = process.cpu_times()
                except psutil.NoSuchProcess:
                    continue
                self._cpu[process.pid] = times.user + times.system
        return sum(self._cpu.values())

    def _run(self) -> None:
        while not self._closed.wait(0.1):
            self._samples.append((time.time(), self._cpu_s()))
            if self.final.exists():
                self.committed.set()

    def wait(self, what: str) -> None:
        if not self.committed.wait(LIMIT_S):
            raise RuntimeError(f"{what}: not through within {LIMIT_S:.0f} s")

    def figures(self, rows_per_file: int, ended: float | None = None) -> dict[str, float]:
        """From the commit of an early batch to that of the last one, or to `ended` if that is later."""
        self._closed.set()
        rows = rows_per_file * self.batches
        span = (self.first.stat().st_mtime, max(self.final.stat().st_mtime, ended or 0.0))
        moments, cpu = zip(*self._samples, strict=True)
        used = np.interp(span, moments, cpu)
        return {
            "rows_per_s": round(rows / (span[1] - span[0])),
            "cpu_s_per_100k": round(float(used[1] - used[0]) / rows * 100_000, 3),
            "seconds": round(span[1] - span[0], 1),
        }


def _plain(options: dict[str, Any], home: Path, first: int, last: int, rows: int) -> dict[str, float]:
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.overhead.plain", json.dumps(options)],
        env=recovery._environment(options),
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=(home / "plain.log").open("ab"),
        start_new_session=True,
    )
    meter = CpuMeter(Path(options["checkpoint"]) / "commits", first, last, [process.pid])
    try:
        meter.wait("plain Structured Streaming")
        return meter.figures(rows)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _holdfast(options: dict[str, Any], home: Path, first: int, last: int, rows: int, nodes: int) -> dict[str, float]:
    from holdfast.cli.start import RunOptions, start_run

    os.environ.update(recovery._environment(options))
    settings = ('state_limit = "4 GB"',)
    started = start_run(
        Path(__file__).parent / "query.py",
        RunOptions(nodes=nodes, directory=home / "run", standby=False, master="local[2]", settings=settings),
    )
    try:
        (source,) = (s.id for s in started.plan.stages if s.kind == "source")
        (sink,) = (s.id for s in started.plan.stages if s.kind == "sink")
        pids = [process.pid for process in started.nodes.processes.values()]
        meter = CpuMeter(home / "run" / "checkpoints" / source / "commits", first, last, pids)
        meter.wait(f"Holdfast on {nodes} nodes")
        ended = _everything_is_through(started, sink)
        return meter.figures(rows, ended)
    finally:
        started.stop()


def _everything_is_through(started, sink: str) -> float:
    """When shards had consumed all they were handed, and the sink had written the last rows that came of it."""
    from holdfast.cli.watch import cluster_status

    consumed, deadline = 0.0, time.time() + LIMIT_S
    while time.time() < deadline:
        nodes = cluster_status(started.run)["nodes"].values()
        shards = [shard for node in nodes for shard in node["shards"].values() if shard["role"] == "primary"]
        if not consumed and not any(edge["waiting"] for shard in shards for edge in shard["inputs"].values()):
            consumed = time.time()
        queues = [queue for shard in shards for queue in shard["outputs"].values()]
        if consumed and all(ack >= queue["next"] for queue in queues for ack in queue["acks"].values()):
            break
        time.sleep(0.1)
    else:
        raise RuntimeError(f"what was handed over did not reach the sink within {LIMIT_S:.0f} s")
    written = [
        datetime.fromisoformat(event["time"]).timestamp()
        for file in Path(started.run.dir).glob("nodes/*/events*.jsonl")
        for event in map(json.loads, file.read_text().splitlines())
        if event["event"] == "stage-batch" and event["stage"] == sink and event["progress"]["numInputRows"]
    ]
    return max([consumed, *written])


def _throughput(keys: int, files: int, rows: int, first: int, rounds: int, scratch: Path) -> list[dict[str, Any]]:
    base = scratch / f"keys-{keys}"
    write_files(base / "input", files=files, rows=rows, keys=keys)
    options = {"input": str(base / "input"), "window": "10 seconds", "shards": SHARDS}
    found: dict[str, list[dict[str, float]]] = {system: [] for system in SYSTEMS}
    for number in range(rounds):
        for system, nodes in SYSTEMS.items():
            home = base / f"{number}-{system.replace(' ', '-').replace(',', '')}"
            home.mkdir()
            mine = {**options, "checkpoint": str(home / "checkpoint")}
            span = (first, files - 1, rows)
            measured = _holdfast(mine, home, *span, nodes) if nodes else _plain(mine, home, *span)
            found[system].append(measured)
            print(f"    {keys:>10,} keys  {system:<28} {measured}", flush=True)
    return [
        {
            "keys": keys,
            "system": system,
            **_median(of),
            "rounds": [o["rows_per_s"] for o in of],
            "cpu_rounds": [o["cpu_s_per_100k"] for o in of],
        }
        for system, of in found.items()
    ]


def _median(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}


def _delays(seconds: float, scratch: Path) -> list[dict[str, Any]]:
    """Time from the end of a window to its arrival at the sink, 20,000 rows a second."""
    from holdfast.cli.start import RunOptions, start_run

    found = []
    for system in ("Holdfast, protected", "plain Structured Streaming"):
        home = scratch / ("delay-" + system.split(" ")[0].strip(","))
        home.mkdir()
        options = recovery._options(home)
        os.environ.update(recovery._environment(options))
        if system.startswith("Holdfast"):
            file = Path(recovery.__file__).parent / "query.py"
            started = start_run(file, RunOptions(nodes=3, directory=home / "run", standby=False))
            end = started.stop
        else:
            process = subprocess.Popen(
                [sys.executable, "-m", "bench.recovery.plain", json.dumps(options)],
                env=recovery._environment(options), cwd=ROOT, stdout=subprocess.DEVNULL,
                stderr=(home / "plain.log").open("ab"), start_new_session=True,
            )  # fmt: skip
            end = lambda process=process: (os.killpg(process.pid, signal.SIGKILL), process.wait())  # noqa: E731
        try:
            recovery._wait_for(options, 0.0, 60, recovery.FIRST_LIMIT_S, system)
            began = time.time()
            time.sleep(seconds)
            waits = sorted(a["at"] - a["end"] for a in recovery.arrivals(options) if a["at"] > began)
        finally:
            end()
        found.append({"system": system, "batches": len(waits), "p50_s": round(statistics.median(waits), 3),
                      "p99_s": round(waits[int(len(waits) * 0.99)], 3)})  # fmt: skip
    return found


def run(quick: bool) -> Report:
    report = Report("overhead", DESCRIPTION)
    sizes = QUICK_SIZES if quick else SIZES
    with scratch("overhead") as base:
        rows = [row for size in sizes for row in _throughput(*size, base)]
        delays = _delays(15.0 if quick else 40.0, base)
    report.data = {"throughput": rows, "delay": delays}
    _claims(report, rows, delays)
    report.plot = lambda figure: _plot(figure, rows)
    report.notes.append("one file per micro-batch, windows of 10 s (ten files), local[2]; protected: 3 nodes")
    report.notes.append("medians of " + ", ".join(f"{size[-1]} at {size[0]:,} keys" for size in sizes) + " rounds")
    return report


def _claims(report: Report, rows: list[dict[str, Any]], delays: list[dict[str, Any]]) -> None:
    def of(keys: int, system: str) -> dict[str, Any]:
        return next(r for r in rows if (r["keys"], r["system"]) == (keys, system))

    for keys in sorted({r["keys"] for r in rows}):
        on, off = of(keys, "Holdfast, protected"), of(keys, "Holdfast, unprotected")
        plain = of(keys, "plain Structured Streaming")
        speed = on["rows_per_s"] / plain["rows_per_s"]
        report.claim(f"throughput over plain, {keys:,} keys", "design §7", ">= 1.5", f"{speed:.2f}", speed >= 1.5)
        cpu = on["cpu_s_per_100k"] / plain["cpu_s_per_100k"]
        report.claim(f"CPU per row over plain, {keys:,} keys", "design §7", "< 1", f"{cpu:.2f}", cpu < 1)
        cost = 1 - on["rows_per_s"] / off["rows_per_s"]
        report.claim(f"throughput lost to protection, {keys:,} keys", "hybrid-ha, design §7", "<= 3%",
                     f"{100 * cost:.0f}%", cost <= 0.03)  # fmt: skip
    ours, plains = delays
    report.claim("delay p50 over plain", "design §7", "<= 1", f"{ours['p50_s'] / plains['p50_s']:.2f}",
                 ours["p50_s"] <= plains["p50_s"])  # fmt: skip
    report.claim("delay p99 over plain", "design §7", "<= 1", f"{ours['p99_s'] / plains['p99_s']:.2f}",
                 ours["p99_s"] <= plains["p99_s"])  # fmt: skip


def _plot(figure, rows: list[dict[str, Any]]) -> None:
    left, right = figure.subplots(1, 2)
    for system in dict.fromkeys(r["system"] for r in rows):
        mine = [r for r in rows if r["system"] == system]
        keys = [r["keys"] for r in mine]
        left.plot(keys, [r["rows_per_s"] for r in mine], marker="o", label=system)
        right.plot(keys, [r["cpu_s_per_100k"] for r in mine], marker="o", label=system)
    for axes, label in ((left, "rows per second"), (right, "CPU seconds per 100,000 rows")):
        axes.set_xscale("log")
        axes.set_xlabel("keys")
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    left.legend(fontsize=8)

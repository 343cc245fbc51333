"""A pipeline of five stages under faults of its Spark side: JVMs that are killed, a query that hangs, one that fails on
its data again and again; then `finish`, and `verify` against Spark in batch.

While one query hangs or fails, the other four must go on: each makes several batches more, and none of them is started
again. A query fails until the schedule mends it (half a minute and at least three failures), a query that hangs is
drained away, left behind (`stage-stuck`) and hangs where it goes, until it is let go.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from bench import faults
from bench.faults import CALM_LIMIT_S, Fault, _wait, under_faults
from bench.harness import Report, machine
from holdfast.cli.start import LocalRun
from holdfast.cli.story import read_events
from holdfast.cli.watch import cluster_status
from holdfast.model.ids import name_of

DESCRIPTION = "five stages: kill -9 of JVMs and nodes, a query that hangs, one that fails on its data for long"
FILE = Path(__file__).with_name("five_stages.py")
TOUCHY = "touchy"
#: So long a query fails or hangs at least, and so many batches every other stage makes meanwhile.
FAIL_S, HANG_S, BATCHES = 30.0, 10.0, 3
FAILURES = 3


def _count(started: LocalRun, event: str, stage: str) -> int:
    return sum(e["event"] == event and e.get("stage") == stage for e in read_events(started.run.path))


def _others(started: LocalRun) -> list[str]:
    return [stage.id for stage in started.plan.stages if stage.id != TOUCHY]


def _switch(name: str) -> Path:
    return Path(os.environ["HOLDFAST_OUT"]) / name


class Bystanders:
    """The stages that have nothing to do with it: they go on, in the lives that they had."""

    def __init__(self, started: LocalRun) -> None:
        self._started = started
        self._lives = self._counts("stage-running")
        self._batches = self._counts("stage-batch")

    def _counts(self, event: str) -> dict[str, int]:
        return {stage: _count(self._started, event, stage) for stage in _others(self._started)}

    def wait(self) -> None:
        def go_on() -> bool:
            now = self._counts("stage-batch")
            return all(now[stage] >= before + BATCHES for stage, before in self._batches.items())

        _wait(go_on, CALM_LIMIT_S, "the other stages do not go on")

    def check_lives(self) -> None:
        lives = self._counts("stage-running")
        if lives != self._lives:
            raise RuntimeError(f"other stages were started again: {self._lives} -> {lives}")


def _fail(started: LocalRun, rng: random.Random) -> str:
    _wait(lambda: _count(started, "stage-batch", TOUCHY) > 0, CALM_LIMIT_S, "no batch of the third sink")
    others, before, began = Bystanders(started), _count(started, "stage-failed", TOUCHY), time.monotonic()
    _switch("fail").touch()
    try:
        _wait(lambda: _count(started, "stage-failed", TOUCHY) >= before + FAILURES, CALM_LIMIT_S, "it does not fail")
        time.sleep(max(0.0, FAIL_S - (time.monotonic() - began)))
        others.wait()
        others.check_lives()
    finally:
        _switch("fail").unlink()
    times = _count(started, "stage-failed", TOUCHY) - before
    return f"{TOUCHY} failed {times} times in {time.monotonic() - began:.0f} s, the others went on"


def _hang(started: LocalRun, rng: random.Random) -> str:
    _wait(lambda: _count(started, "stage-batch", TOUCHY) > 0, CALM_LIMIT_S, "no batch of the third sink")
    others, before = Bystanders(started), _count(started, "stage-stuck", TOUCHY)
    home = name_of(cluster_status(started.run)["record"]["places"][TOUCHY]["primary"])
    _switch("hang").touch()
    try:
        time.sleep(HANG_S)
        others.wait()
        others.check_lives()
        started.run.ask_all("drain", {"name": home})
        _wait(lambda: _count(started, "stage-stuck", TOUCHY) > before, CALM_LIMIT_S, "it is not found to be stuck")
        Bystanders(started).wait()
    finally:
        _switch("hang").unlink()
    started.nodes.kill(home)  # so that it comes back, and counts again
    return f"{TOUCHY} hung for {HANG_S:.0f} s and more, {home} was drained and killed, the others went on"


def _kill_jvm(started: LocalRun, rng: random.Random) -> str:
    """The JVM of a driver process of a node, whatever runs or stands by in it."""

    def drivers() -> list[tuple[str, psutil.Process, list[str]]]:
        found = []
        for name, told in sorted(cluster_status(started.run)["nodes"].items()):
            for pid in sorted({driver["pid"] for driver in told["drivers"].values() if driver["pid"]}):
                inside = [stage for stage, driver in told["drivers"].items() if driver["pid"] == pid]
                if psutil.pid_exists(pid) and any(told["drivers"][stage]["epoch"] for stage in inside):
                    jvms = [p for p in psutil.Process(pid).children(recursive=True) if p.name() == "java"]
                    found += [(name, jvm, inside) for jvm in jvms]
        return found

    _wait(lambda: bool(drivers()), CALM_LIMIT_S, "no JVM to kill")
    name, jvm, inside = rng.choice(drivers())
    jvm.kill()
    return f"kill -9 of {name}'s JVM (pid {jvm.pid}), in it {', '.join(inside)}"


FAULTS: dict[str, Fault] = {
    "JVM": _kill_jvm,
    "fails": _fail,
    "JVM and JVM": lambda started, rng: "; ".join(_kill_jvm(started, rng) for _ in range(2)),
    "hangs": _hang,
    "node": faults.FAULTS["node"],
    "sink JVM": faults.FAULTS["sink JVM"],
}
#: Each schedule does these, in an order of its own.
ROUNDS = (("JVM", "fails", "node"), ("hangs", "JVM and JVM", "sink JVM"))


def schedule(seed: int, scratch: Path) -> dict[str, Any]:
    rng = random.Random(f"stages {seed}")
    kinds = list(ROUNDS[seed % len(ROUNDS)])
    rng.shuffle(kinds)
    standby = seed // len(ROUNDS) % 2 == 0
    row = {"seed": seed, "example": "five_stages", "standby": standby, "faults": ", ".join(kinds)}
    return under_faults(row, FILE, [FAULTS[kind] for kind in kinds], rng, scratch / str(seed))


def run(quick: bool) -> Report:
    report = Report("faults/stages", DESCRIPTION)
    first = int(os.environ.get("HOLDFAST_SEED", "0"))
    count = int(os.environ.get("HOLDFAST_SEEDS", "2" if quick else "12"))
    scratch = Path(tempfile.mkdtemp(prefix="holdfast-faults-"))
    rows = []
    for seed in range(first, first + count):
        rows.append({**schedule(seed, scratch), "commit": machine()["commit"], "load": round(os.getloadavg()[0], 1)})
        print(f"    {rows[-1]}", flush=True)
    report.data["schedules"] = rows
    wrong = [row for row in rows if row["verdict"] != "equal"]
    report.claim("all three sinks equal Spark batch, row for row", "issue 14", "every schedule",
                 f"{len(rows) - len(wrong)} of {len(rows)}, {sum(row['rows'] for row in rows):,} result rows",
                 not wrong)  # fmt: skip
    kinds = {kind for row in rows if row["verdict"] == "equal" for kind in row["faults"].split(", ")}
    enough = len(kinds) == len(FAULTS) or count < len(ROUNDS)
    report.claim("kinds of faults", "issue 14", f"all {len(FAULTS)}", f"{len(kinds)}", enough)
    report.plot = _plot_of(rows)
    report.notes.append(
        f"runs that went wrong are kept under {scratch}" if wrong else f"{len(rows)} runs, 4 nodes, 5 stages each"
    )
    return report


def _plot_of(rows: list[dict[str, Any]]) -> Callable[[Any], None]:
    def plot(figure: Any) -> None:
        axes = figure.subplots()
        kinds = list(FAULTS)
        for row in rows:
            good = row["verdict"] == "equal"
            for kind in row["faults"].split(", "):
                color = "tab:green" if good else "tab:red"
                axes.scatter(row["seed"], kinds.index(kind), marker="o" if good else "x", c=color)
        axes.set_xticks([row["seed"] for row in rows], [f"{r['seed']}{' +' if r['standby'] else ''}" for r in rows])
        axes.set_yticks(range(len(kinds)), kinds)
        axes.set_title("five stages, faults by schedule; green: the sinks equal Spark batch; +: with standbys")
        axes.grid(alpha=0.3)

    return plot

"""A pipeline of five stages under faults of its Spark side: JVMs that are killed, a query that hangs, one that fails on
its data again and again; then `finish`, and `verify` against Spark in batch.

While one query hangs or fails, the other four must go on: each makes several batches more, and none of them is started
again. That is looked at when everything runs, and every standby is warm, since whoever was killed before comes back for
a minute. A stage that the record moves for balance meanwhile is told, and counts for nothing. A query fails until the
schedule mends it (half a minute and at least three failures). One that hangs is drained away, and hangs where it goes,
until it is let go. If it does in a worker, Spark should end it; in the function of its sink nothing can, and it is left
behind (`stage-stuck`).
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from bench import faults
from bench.faults import CALM_LIMIT_S, Fault, _wait, earlier, jvms_below, keep, kill_found, under_faults
from bench.harness import Report, machine
from holdfast.cli.start import LocalRun
from holdfast.cli.story import Event, read_events
from holdfast.cli.watch import cluster_status
from holdfast.errors import HoldfastError
from holdfast.model.ids import name_of

DESCRIPTION = "five stages: kill -9 of JVMs and nodes, a query that hangs, one that fails on its data for long"
FILE = Path(__file__).with_name("five_stages.py")
TOUCHY = "touchy"
#: So long a query fails or hangs at least, and so many batches every other stage makes meanwhile.
FAIL_S, HANG_S, BATCHES = 30.0, 10.0, 3
FAILURES = 3
#: Until everything runs and stands by warm after a kill, on a machine that is busy; and until a query that hangs runs
#: elsewhere: its standby may have to be waited for (`warm_wait_ns`), and it itself to end.
SETTLE_LIMIT_S, MOVE_LIMIT_S = 300.0, 240.0
#: Every schedule of a full run, as it ends; HOLDFAST_RESUME=1 goes on after the last one.
KEPT = Path("out/bench/faults.stages.jsonl")


def _told(started: LocalRun, event: str, stage: str) -> list[Event]:
    return [e for e in read_events(started.run.path) if e["event"] == event and e.get("stage") == stage]


def _count(started: LocalRun, event: str, stage: str) -> int:
    return len(_told(started, event, stage))


def _others(started: LocalRun) -> list[str]:
    return [stage.id for stage in started.plan.stages if stage.id != TOUCHY]


def _switch(name: str) -> Path:
    return Path(os.environ["HOLDFAST_OUT"]) / name


def _unsettled(started: LocalRun) -> list[str]:
    """Stages that have no batch through where the record wants them, or whose standby is not warm."""
    try:
        status = cluster_status(started.run)
    except HoldfastError as error:
        return [error.what]
    found = []
    for stage in (stage.id for stage in started.plan.stages):
        place = status["record"]["places"][stage]
        through = {(e["node"], e.get("epoch")) for e in _told(started, "stage-batch", stage)}
        if place["moving"] or (name_of(place["primary"] or ""), place["epoch"]) not in through:
            found.append(stage)
        home = status["nodes"].get(name_of(place["backup"] or ""), {})
        if place["backup"] and home.get("drivers", {}).get(stage, {}).get("warmth") != "warm":
            found.append(f"the standby of {stage}")
    return found


def _settle(started: LocalRun) -> None:
    deadline = time.monotonic() + SETTLE_LIMIT_S
    while waiting := _unsettled(started):
        if time.monotonic() > deadline:
            raise RuntimeError(f"not settled within {SETTLE_LIMIT_S:.0f} s: {', '.join(waiting)}")
        time.sleep(1.0)


class Bystanders:
    """The stages that have nothing to do with it: they go on, in the lives that they had."""

    def __init__(self, started: LocalRun) -> None:
        self._started = started
        self._began = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._lives = self._counts("stage-running")
        self._batches = self._counts("stage-batch")

    def _counts(self, event: str) -> dict[str, int]:
        return {stage: _count(self._started, event, stage) for stage in _others(self._started)}

    def wait(self) -> None:
        def go_on() -> bool:
            now = self._counts("stage-batch")
            return all(now[stage] >= before + BATCHES for stage, before in self._batches.items())

        _wait(go_on, CALM_LIMIT_S, "the other stages do not go on")

    def check_lives(self) -> str:
        """Which of them were moved for balance meanwhile."""
        lives = self._counts("stage-running")
        again = [stage for stage, before in self._lives.items() if lives[stage] != before]
        since = [e for e in read_events(self._started.run.path) if e["time"] >= self._began]
        moves = [e["text"] for e in since if e["event"] == "balance"]
        moved = [stage for stage in again if any(text.startswith(f"The stage {stage} moves") for text in moves)]
        if disturbed := [stage for stage in again if stage not in moved]:
            story = [
                f"{e['time'][11:23]} {e['node']}: {e['text']}"
                for e in since
                if e.get("stage") in disturbed and e["event"] not in ("stage-batch", "stage-late")
            ]
            raise RuntimeError(f"other stages were started again: {self._lives} -> {lives}; " + " ".join(story))
        return "".join(f", {stage} was moved for balance" for stage in moved)


def _fail(started: LocalRun, rng: random.Random) -> str:
    _settle(started)
    others, before, began = Bystanders(started), _count(started, "stage-failed", TOUCHY), time.monotonic()
    _switch("fail").touch()
    try:
        _wait(lambda: _count(started, "stage-failed", TOUCHY) >= before + FAILURES, CALM_LIMIT_S, "it does not fail")
        time.sleep(max(0.0, FAIL_S - (time.monotonic() - began)))
        others.wait()
        but = others.check_lives()
    finally:
        _switch("fail").unlink()
    times = _count(started, "stage-failed", TOUCHY) - before
    return f"{TOUCHY} failed {times} times in {time.monotonic() - began:.0f} s, the others went on{but}"


def _hang(where: str) -> Fault:
    """`where`: in a "worker", or in the function of its "sink"."""

    def fault(started: LocalRun, rng: random.Random) -> str:
        _settle(started)
        others, before = Bystanders(started), _count(started, "stage-stuck", TOUCHY)
        home = name_of(cluster_status(started.run)["record"]["places"][TOUCHY]["primary"])
        _switch(f"hang-{where}").touch()
        try:
            time.sleep(HANG_S)
            others.wait()
            but = others.check_lives()
            lives = _count(started, "stage-running", TOUCHY)
            started.run.ask_all("drain", {"name": home})
            if where == "sink":
                _wait(lambda: _count(started, "stage-stuck", TOUCHY) > before, MOVE_LIMIT_S, "it is not left behind")
            _wait(lambda: _count(started, "stage-running", TOUCHY) > lives, MOVE_LIMIT_S, "it does not run elsewhere")
            Bystanders(started).wait()
        finally:
            _switch(f"hang-{where}").unlink()
        stuck = "left behind" if _count(started, "stage-stuck", TOUCHY) > before else "ended"
        started.nodes.kill(home)  # so that it comes back, and counts again
        return f"{TOUCHY} hung in its {where}, {home} was drained and killed, it was {stuck}, the others went on{but}"

    return fault


def _kill_jvm(started: LocalRun, rng: random.Random) -> str:
    """The JVM of a driver process of a node, whatever runs or stands by in it."""
    chosen = ("", [""])

    def find() -> psutil.Process | None:
        nonlocal chosen
        found: list[tuple[str, list[str], psutil.Process]] = []
        for name, told in sorted(cluster_status(started.run)["nodes"].items()):
            for pid in sorted({driver["pid"] for driver in told["drivers"].values() if driver["pid"]}):
                inside = [stage for stage, driver in told["drivers"].items() if driver["pid"] == pid]
                if any(told["drivers"][stage]["epoch"] for stage in inside):
                    found += [(name, inside, jvm) for jvm in jvms_below(pid)]
        if not found:
            return None
        name, inside, jvm = rng.choice(found)
        chosen = (name, inside)
        return jvm

    jvm = kill_found(find, "JVM")
    return f"kill -9 of {chosen[0]}'s JVM (pid {jvm.pid}), in it {', '.join(chosen[1])}"


FAULTS: dict[str, Fault] = {
    "JVM": _kill_jvm,
    "fails": _fail,
    "JVM and JVM": lambda started, rng: "; ".join(_kill_jvm(started, rng) for _ in range(2)),
    "hangs": _hang("sink"),
    "worker hangs": _hang("worker"),
    "node": faults.FAULTS["node"],
    "sink JVM": faults.FAULTS["sink JVM"],
}
#: Each schedule does these, in an order of its own.
ROUNDS = (
    ("JVM", "fails", "node"),
    ("hangs", "JVM and JVM", "sink JVM"),
    ("JVM and JVM", "fails", "node"),
    ("worker hangs", "JVM", "sink JVM"),
)


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
    seeds = range(first, first + count)
    rows = [] if quick else earlier(KEPT, seeds)
    for seed in sorted(set(seeds) - {row["seed"] for row in rows}):
        rows.append({**schedule(seed, scratch), "commit": machine()["commit"], "load": round(os.getloadavg()[0], 1)})
        print(f"    {rows[-1]}", flush=True)
        if not quick:
            keep(KEPT, rows[-1])
    rows.sort(key=lambda row: row["seed"])
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

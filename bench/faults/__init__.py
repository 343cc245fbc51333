"""Real processes, real kills: every kind of process, every example, at random moments; then the audit.

One schedule per seed: an example (they take turns), a few faults of random kinds at random moments, `finish`, and
`verify` against plain Spark in batch, row for row. A schedule waits between two faults until everything has a backup
again, because the mode promises to survive one failure at a time; two nodes that die one after the other, and a node
that dies in the middle of a drain, are kinds of their own.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from bench.harness import Report, machine
from holdfast.cli.control import finish_run
from holdfast.cli.start import LocalRun, RunOptions, start_run
from holdfast.cli.verify import verify_run
from holdfast.cli.watch import cluster_status
from holdfast.errors import HoldfastError
from holdfast.model.ids import name_of

DESCRIPTION = "kill -9 and SIGSTOP of every kind of process, over all examples: sinks against Spark batch"
ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ("netmon", "nexmark_q5", "nexmark_q7", "nexmark_q8", "dns_tls", "taxi")
FAULTS_PER_SEED = 3
#: Slow enough that rows still flow when the last fault strikes, also where the data is finite.
PACE = {"HOLDFAST_FILE_ROWS": "400", "HOLDFAST_RATE": "2000", "HOLDFAST_BATCH_MS": "300"}
START_LIMIT_S = 180.0
#: Every schedule of a full run, as it ends; HOLDFAST_RESUME=1 goes on after the last one.
KEPT = Path("out/bench/faults.jsonl")
CALM_LIMIT_S = 120.0


# --- who is where -----------------------------------------------------------------------------------------------------


def _record(started: LocalRun) -> dict[str, Any]:
    return cluster_status(started.run)["record"]


def _is_calm(started: LocalRun, nodes: int) -> bool:
    try:
        record = _record(started)
    except HoldfastError:
        return False
    places = record["places"].values()
    protected = all(p["primary"] and not p["joining"] for p in places)
    return len(record["members"]) >= nodes and protected and all(p["backup"] for p in places if not p["stage"])


def _wait(condition: Callable[[], bool], limit_s: float, what: str) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: not within {limit_s:.0f} s")
        time.sleep(0.2)


def jvms_below(pid: int) -> list[psutil.Process]:
    """Those of a driver process that live. It may end at any moment, and they with it."""
    try:
        below = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    found = []
    for process in below:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.name() == "java" and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def kill_found(find: Callable[[], psutil.Process | None], what: str) -> psutil.Process:
    """Kill what is found, as soon as something is that still lives."""
    deadline = time.monotonic() + CALM_LIMIT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(psutil.NoSuchProcess):  # between a look and the kill it has ended by itself
            process = find()
            if process is not None:
                process.kill()
                return process
        time.sleep(0.2)
    raise RuntimeError(f"no {what} to kill: not within {CALM_LIMIT_S:.0f} s")


def _stage_process(started: LocalRun, kind: str, *, jvm: bool) -> psutil.Process | None:
    """The child process (or its JVM) of a stage of this kind, on the node that the record names."""
    status = cluster_status(started.run)
    for stage in (s.id for s in started.plan.stages if s.kind == kind):
        home = status["nodes"].get(name_of(status["record"]["places"][stage]["primary"] or ""), {})
        driver = home.get("drivers", {}).get(stage)
        if driver is None or not psutil.pid_exists(driver["pid"]):
            continue
        return next(iter(jvms_below(driver["pid"])), None) if jvm else psutil.Process(driver["pid"])
    return None


# --- faults ---------------------------------------------------------------------------------------------------------

#: Does it, and says what it did.
Fault = Callable[[LocalRun, random.Random], str]


def _kill_node(started: LocalRun, rng: random.Random) -> str:
    name = rng.choice(sorted(started.nodes.alive()))
    started.nodes.kill(name)
    return f"kill -9 {name}"


def _stop_node(started: LocalRun, rng: random.Random) -> str:
    name = rng.choice(sorted(started.nodes.alive()))
    pid = started.nodes.kill(name, sign=signal.SIGSTOP)
    time.sleep(5.0)
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        raise RuntimeError(f"{name} (pid {pid}) was stopped, and has gone before SIGCONT") from None
    return f"SIGSTOP {name} for 5 s"


def _kill_stage(kind: str, *, jvm: bool) -> Fault:
    what = f"{'JVM' if jvm else 'child'} of a {kind} stage"

    def fault(started: LocalRun, rng: random.Random) -> str:
        process = kill_found(lambda: _stage_process(started, kind, jvm=jvm), what)
        return f"kill -9 {what} (pid {process.pid})"

    return fault


def _two_nodes(started: LocalRun, rng: random.Random) -> str:
    """The second dies when the first is out and everything is protected again, before the first is back."""
    first, second = rng.sample(sorted(started.nodes.alive()), 2)
    started.nodes.retired.add(first)
    started.nodes.kill(first)
    _wait(lambda: first not in _record(started)["members"], CALM_LIMIT_S, f"{first} is not removed")
    _wait(lambda: _is_calm(started, len(started.nodes.names) - 1), CALM_LIMIT_S, f"not protected without {first}")
    started.nodes.kill(second)
    started.nodes.retired.discard(first)
    return f"kill -9 {first}, then {second}"


def _kill_while_draining(started: LocalRun, rng: random.Random) -> str:
    name = rng.choice(sorted(started.nodes.alive()))
    started.run.ask_all("drain", {"name": name})
    time.sleep(rng.uniform(0.0, 0.5))
    started.nodes.kill(name)
    return f"kill -9 {name} during its drain"


FAULTS: dict[str, Fault] = {
    "node": _kill_node,
    "freeze": _stop_node,
    "stage child": _kill_stage("source", jvm=False),
    "stage JVM": _kill_stage("source", jvm=True),
    "sink child": _kill_stage("sink", jvm=False),
    "sink JVM": _kill_stage("sink", jvm=True),
    "two nodes": _two_nodes,
    "drain": _kill_while_draining,
}


# --- one schedule ---------------------------------------------------------------------------------------------------


def schedule(seed: int, scratch: Path) -> dict[str, Any]:
    """Run one example under the faults of one seed, then verify."""
    rng = random.Random(f"faults {seed}")
    example = EXAMPLES[seed % len(EXAMPLES)]
    kinds = [list(FAULTS)[(seed * FAULTS_PER_SEED + i) % len(FAULTS)] for i in range(FAULTS_PER_SEED)]
    rng.shuffle(kinds)
    #: As by default, or one process less for every stage: takes turns over the rounds of examples.
    standby = seed // len(EXAMPLES) % 2 == 1
    row = {"seed": seed, "example": example, "standby": standby, "faults": ", ".join(kinds)}
    return under_faults(row, _file(example), [FAULTS[kind] for kind in kinds], rng, scratch / f"{seed}-{example}")


def under_faults(
    told: dict[str, Any], file: Path, faults: list[Fault], rng: random.Random, home: Path
) -> dict[str, Any]:
    """Run a pipeline, do it these things one after the other, then verify; `told` and what came of it."""
    home.mkdir()
    os.environ["HOLDFAST_OUT"] = str(home / "out")
    os.environ.update(PACE)
    began = time.monotonic()
    done: list[str] = []
    row: dict[str, Any] = {**told, "done": done, "verdict": "", "rows": 0}
    try:
        started = start_run(file, RunOptions(nodes=4, directory=home / "run", standby=told["standby"]))
        try:
            _wait(lambda: _flows(started), START_LIMIT_S, "no rows flow")
            for fault in faults:
                time.sleep(rng.uniform(0.5, 4.0))
                _wait(lambda: _is_calm(started, 4), CALM_LIMIT_S, "not calm before the next fault")
                done.append(fault(started, rng))
            _wait(lambda: _is_calm(started, 3), CALM_LIMIT_S, "not calm before the end")
            finish_run(started.run, limit_s=300.0)
        finally:
            started.stop()
        verdict = verify_run(started.run)
        row["verdict"] = "equal" if verdict["holds"] else verdict["text"]
        row["rows"] = verdict.get("rows_out", 0)
    except Exception as error:
        row["verdict"] = f"{type(error).__name__}: {error}"
        traceback.print_exc()
    row["seconds"] = round(time.monotonic() - began)
    return row


def _file(example: str) -> Path:
    """The example, or what stands here in its place because its own results are too few to show a lost row."""
    closer = Path(__file__).parent / f"{example}.py"
    return closer if closer.exists() else ROOT / "examples" / f"{example}.py"


def _flows(started: LocalRun) -> bool:
    """Some shard has put something out."""
    try:
        nodes = cluster_status(started.run)["nodes"]
    except HoldfastError:
        return False
    return any(shard.get("rows_out") for answer in nodes.values() for shard in answer["shards"].values())


def run(quick: bool) -> Report:
    report = Report("faults", DESCRIPTION)
    first = int(os.environ.get("HOLDFAST_SEED", "0"))
    seeds = range(first, first + (2 if quick else int(os.environ.get("HOLDFAST_SEEDS", "24"))))
    rows = [] if quick else earlier(KEPT, seeds)
    scratch = Path(tempfile.mkdtemp(prefix="holdfast-faults-"))
    for seed in sorted(set(seeds) - {row["seed"] for row in rows}):
        rows.append({**schedule(seed, scratch), "commit": machine()["commit"]})
        print(f"    {rows[-1]}", flush=True)
        if not quick:
            keep(KEPT, rows[-1])
    rows.sort(key=lambda row: row["seed"])
    report.data["schedules"] = rows
    wrong = [row for row in rows if row["verdict"] != "equal"]
    total = sum(row["rows"] for row in rows)
    report.claim("sinks equal Spark batch, row for row", "issue 4", "every schedule",
                 f"{len(rows) - len(wrong)} of {len(rows)}, {total:,} result rows", not wrong)  # fmt: skip
    kinds = {kind for row in rows if row["verdict"] == "equal" for kind in row["faults"].split(", ")}
    report.claim(
        "kinds of faults", "issue 4", f"all {len(FAULTS)}", f"{len(kinds)}", quick or len(kinds) == len(FAULTS)
    )
    report.plot = lambda figure: _plot(figure, rows)
    report.notes.append(
        f"runs that went wrong are kept under {scratch}" if wrong else f"{len(rows)} runs, 4 nodes each"
    )
    return report


def earlier(kept: Path, seeds: range) -> list[dict[str, Any]]:
    """Schedules that ran before, if they shall count too: a campaign takes long, and may be gone on with."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    if os.environ.get("HOLDFAST_RESUME") != "1" or not kept.exists():
        kept.write_text("")
    known = {row["seed"]: row for row in map(json.loads, kept.read_text().splitlines())}
    return [known[seed] for seed in seeds if seed in known]


def keep(kept: Path, row: dict[str, Any]) -> None:
    with kept.open("a") as file:
        file.write(json.dumps(row) + "\n")


def _plot(figure, rows: list[dict[str, Any]]) -> None:
    axes = figure.subplots()
    kinds = list(FAULTS)
    for row in rows:
        good = row["verdict"] == "equal"
        for kind in row["faults"].split(", "):
            axes.scatter(
                row["seed"], kinds.index(kind), marker="o" if good else "x", c="tab:green" if good else "tab:red"
            )
    names = [f"{row['example']}{' +' if row['standby'] else ''}" for row in rows]
    axes.set_xticks([row["seed"] for row in rows], names, rotation=90, fontsize=7)
    axes.set_yticks(range(len(kinds)), kinds)
    axes.set_title("faults by schedule; green: the sinks equal Spark batch; +: with standbys", fontsize=10)
    axes.grid(alpha=0.3)

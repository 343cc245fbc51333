"""kill -9 of every process of a run at once, at chosen moments; the run goes on from its store, with its disks or
without them.

One schedule per seed: a pipeline (the examples and `ordered.py` take turns), its state checkpointed in a store in a
folder every two seconds, everything killed twice, `finish`, and `verify` against plain Spark in batch, row for row.
After one kill the directory of the run is there as it was (journals, ledgers: `holdfast run DIRECTORY`), after the next
it is gone (`--resume`), and then Spark cuts its input into another number of partitions. What goes by the order of
arrival is compared by `by_arrival.py`.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from bench.faults import EXAMPLES, PACE, _file, _flows, _wait
from bench.faults.moments import MOMENTS, Places
from bench.harness import Report, machine
from holdfast.cli.control import finish_run
from holdfast.cli.start import LocalRun, RunOptions, go_on, resume, start_run
from holdfast.cli.story import read_events
from holdfast.cli.verify import verify_run

DESCRIPTION = "every process killed at once, with or without all disks, then gone on with: sinks against Spark batch"
PIPELINES = (*EXAMPLES, "ordered")
CRASHES = 2
NODES = 3
#: Seconds to wait for a run that starts or goes on, also on a machine that has much else to do.
START_LIMIT_S = 600.0
#: Partitions of the input, by which Spark orders the rows of a batch: other ones after every loss of the disks.
PARTITIONS = (2, 3, 1, 4)
#: Every schedule of a full run, as it ends.
KEPT = Path("out/bench/restarts.jsonl")


def crash_all(started: LocalRun) -> None:
    """Nodes, drivers, JVMs, Python workers; the bench itself stands for `holdfast run`, which only lets go."""
    _kill_9(_pids(started))
    _kill_9([p.pid for p in psutil.process_iter() if _is_of(p, started.run.path)])  # whatever has just been started
    started.stop()


def _pids(started: LocalRun) -> list[int]:
    found = [process.pid for process in started.nodes.processes.values()]
    for pid in list(found):
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [child.pid for child in psutil.Process(pid).children(recursive=True)]
    return found


def _kill_9(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 9)


def _is_of(process: psutil.Process, directory: Path) -> bool:
    """Is it a process of this run? Only those have its directory among their arguments."""
    try:
        return process.pid != os.getpid() and any(str(directory) in word for word in process.cmdline())
    except psutil.Error:
        return False


def _restored_s(started: LocalRun, since: float) -> float:
    """How long the nodes took, from their start, until every shard had its state again."""
    shards = {shard.id for shard in started.plan.topology.shards}

    def missing() -> set[str]:
        told = [e for e in read_events(started.run.path) if e["event"] == "restored"]
        new = [e["text"] for e in told if _seconds(e) >= since]
        return {shard for shard in shards if not any(f" {shard} " in text for text in new)}

    _wait(lambda: not missing(), START_LIMIT_S, "not every shard was restored")
    return max(_seconds(e) for e in read_events(started.run.path) if e["event"] == "restored") - since


def _seconds(event: dict[str, Any]) -> float:
    return datetime.fromisoformat(event["time"]).timestamp()


def _partitions(number: int) -> tuple[str, ...]:
    count = PARTITIONS[number % len(PARTITIONS)]
    return f"spark.default.parallelism={count}", f"spark.sql.files.minPartitionNum={count}"


def _again(home: Path, number: int, *, has_disks: bool) -> LocalRun:
    """The run goes on, from its directory or from its store alone."""
    if has_disks:
        return go_on(home / "run")
    shutil.rmtree(home / "run")
    return resume(home / "run", f"file://{home / 'store'}", RunOptions(conf=_partitions(number)))


def _plan_of(seed: int, rng: random.Random) -> list[tuple[str, bool]]:
    """At which moment everything is killed, and whether the disks stay; over the seeds all moments come up."""
    moments = list(MOMENTS)
    first = rng.random() < 0.5
    return [(moments[(seed * CRASHES + i) % len(moments)], (i % 2 == 0) == first) for i in range(CRASHES)]


def schedule(seed: int, scratch: Path) -> dict[str, Any]:
    rng = random.Random(f"restarts {seed}")
    name = PIPELINES[seed % len(PIPELINES)]
    home = scratch / f"{seed}-{name}"
    home.mkdir()
    os.environ["HOLDFAST_OUT"] = str(home / "out")
    os.environ.update(PACE)
    began = time.monotonic()
    row: dict[str, Any] = {"seed": seed, "pipeline": name, "crashes": [], "restored_s": [], "verdict": "", "rows": 0}
    options = RunOptions(
        nodes=NODES, directory=home / "run", standby=False, store=f"file://{home / 'store'}", conf=_partitions(0),
        settings=('checkpoint_every = "2 s"',),
    )  # fmt: skip
    started: LocalRun | None = None
    try:
        started = start_run(_file(name), options)
        for number, (moment, has_disks) in enumerate(_plan_of(seed, rng), start=1):
            _wait(lambda started=started: _flows(started), START_LIMIT_S, "no rows flow")
            MOMENTS[moment](Places(home / "run", home / "store", home / "out"), rng)
            crash_all(started)
            row["crashes"].append(f"{moment}, {'with' if has_disks else 'without'} disks")
            since = time.time()
            started = _again(home, number, has_disks=has_disks)
            row["restored_s"].append(round(_restored_s(started, since), 1))
        finish_run(started.run, limit_s=300.0)
        started.stop()
        row["verdict"], row["rows"] = _judge(started, name, home)
    except Exception as error:
        row["verdict"] = f"{type(error).__name__}: {error}"
        traceback.print_exc()
        if started is not None:
            started.stop()
    row["seconds"] = round(time.monotonic() - began)
    return row


def _judge(started: LocalRun, name: str, home: Path) -> tuple[str, int]:
    """The audit, and of what it cannot compute our own."""
    verdict = verify_run(started.run)
    rows = verdict.get("rows_out", 0)
    if name != "ordered":
        return "equal" if verdict["holds"] else verdict["text"], rows
    from bench.faults.by_arrival import wrong

    left = {sink["sink"] for sink in verdict["sinks"] if sink["not_compared"]}
    equal = verdict["text"].count("equal, row for row")
    if left != {"picked", "ran"} or equal != 2:
        return verdict["text"], rows
    found = wrong(home / "out", next(stage["rows"] for stage in verdict["stages"] if stage["stage"] == "rows"))
    return "; ".join(found[:5]) or "equal", rows


def run(quick: bool) -> Report:
    report = Report("faults/restarts", DESCRIPTION)
    first = int(os.environ.get("HOLDFAST_SEED", "0"))
    count = int(os.environ.get("HOLDFAST_SEEDS", "1" if quick else "14"))
    scratch = Path(tempfile.mkdtemp(prefix="holdfast-restarts-"))
    rows = []
    for seed in range(first, first + count):
        rows.append({**schedule(seed, scratch), "commit": machine()["commit"], "load": round(os.getloadavg()[0], 1)})
        print(f"    {rows[-1]}", flush=True)
        if not quick:
            KEPT.parent.mkdir(parents=True, exist_ok=True)
            with KEPT.open("a") as kept:
                kept.write(json.dumps(rows[-1]) + "\n")
    report.data["schedules"] = rows
    wrong = [row for row in rows if row["verdict"] != "equal"]
    report.claim("sinks equal Spark batch, row for row", "issue 15", "every schedule",
                 f"{len(rows) - len(wrong)} of {len(rows)}, {sum(row['rows'] for row in rows):,} result rows",
                 not wrong)  # fmt: skip
    met = {crash.rpartition(", ")[0] for row in rows if row["verdict"] == "equal" for crash in row["crashes"]}
    report.claim("moments", "issue 15", f"all {len(MOMENTS)}", f"{len(met)}", quick or len(met) == len(MOMENTS))
    report.plot = _plot_of(rows)
    report.notes.append(
        f"runs that went wrong are kept under {scratch}" if wrong else f"{CRASHES} crashes each, {NODES} nodes"
    )
    return report


def _plot_of(rows: list[dict[str, Any]]) -> Callable[[Any], None]:
    def plot(figure: Any) -> None:
        axes = figure.subplots()
        for row in rows:
            color = "tab:green" if row["verdict"] == "equal" else "tab:red"
            axes.scatter([row["seed"]] * len(row["restored_s"]), row["restored_s"], c=color)
        axes.set_xticks([row["seed"] for row in rows], [row["pipeline"] for row in rows], rotation=90)
        axes.set_ylabel("seconds from the start of the nodes until every shard had its state")
        axes.set_ylim(bottom=0)
        axes.set_title("everything killed at once; green: the sinks equal Spark batch")
        axes.grid(alpha=0.3)

    return plot

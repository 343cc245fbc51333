"""kill -9 of every process of a run at once, at random moments; `holdfast run DIRECTORY` goes on from the store.

One schedule per seed: an example (they take turns), its state checkpointed in a store in a folder every two seconds,
everything killed twice, `finish`, and `verify` against plain Spark in batch, row for row. Journals, ledgers and Spark's
checkpoints stay where they were: "with their disks".
"""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from bench.faults import EXAMPLES, PACE, START_LIMIT_S, _file, _flows, _wait
from bench.harness import Report, machine
from holdfast.cli.control import finish_run
from holdfast.cli.start import LocalRun, RunOptions, go_on, start_run
from holdfast.cli.story import read_events
from holdfast.cli.verify import verify_run

DESCRIPTION = "every process killed at once, then gone on with from the store: sinks against Spark batch"
CRASHES = 2
NODES = 3


def crash_all(started: LocalRun) -> None:
    """Nodes, drivers, JVMs, Python workers; the bench itself stands for `holdfast run`, which only lets go."""
    doomed = [process.pid for process in started.nodes.processes.values()]
    for pid in list(doomed):
        with contextlib.suppress(psutil.NoSuchProcess):
            doomed += [child.pid for child in psutil.Process(pid).children(recursive=True)]
    for pid in doomed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 9)
    started.stop()


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


def schedule(seed: int, scratch: Path) -> dict[str, Any]:
    rng = random.Random(f"restarts {seed}")
    example = EXAMPLES[seed % len(EXAMPLES)]
    home = scratch / f"{seed}-{example}"
    home.mkdir()
    os.environ["HOLDFAST_OUT"] = str(home / "out")
    os.environ.update(PACE)
    began = time.monotonic()
    row: dict[str, Any] = {"seed": seed, "example": example, "after_s": [], "restored_s": [], "verdict": "", "rows": 0}
    options = RunOptions(
        nodes=NODES, directory=home / "run", standby=False, store=f"file://{home / 'store'}",
        settings=('checkpoint_every = "2 s"',),
    )  # fmt: skip
    started: LocalRun | None = None
    try:
        started = start_run(_file(example), options)
        for _ in range(CRASHES):
            _wait(lambda started=started: _flows(started), START_LIMIT_S, "no rows flow")
            row["after_s"].append(round(rng.uniform(0.0, 8.0), 1))
            time.sleep(row["after_s"][-1])
            crash_all(started)
            since = time.time()
            started = go_on(home / "run")
            row["restored_s"].append(round(_restored_s(started, since), 1))
        finish_run(started.run, limit_s=300.0)
        started.stop()
        verdict = verify_run(started.run)
        row["verdict"] = "equal" if verdict["holds"] else verdict["text"]
        row["rows"] = verdict.get("rows_out", 0)
    except Exception as error:
        row["verdict"] = f"{type(error).__name__}: {error}"
        traceback.print_exc()
        if started is not None:
            started.stop()
    row["seconds"] = round(time.monotonic() - began)
    return row


def run(quick: bool) -> Report:
    report = Report("faults/restarts", DESCRIPTION)
    first = int(os.environ.get("HOLDFAST_SEED", "0"))
    count = int(os.environ.get("HOLDFAST_SEEDS", "1" if quick else "12"))
    scratch = Path(tempfile.mkdtemp(prefix="holdfast-restarts-"))
    rows = []
    for seed in range(first, first + count):
        rows.append({**schedule(seed, scratch), "commit": machine()["commit"], "load": round(os.getloadavg()[0], 1)})
        print(f"    {rows[-1]}", flush=True)
    report.data["schedules"] = rows
    wrong = [row for row in rows if row["verdict"] != "equal"]
    report.claim("sinks equal Spark batch, row for row", "issue 15", "every schedule",
                 f"{len(rows) - len(wrong)} of {len(rows)}, {sum(row['rows'] for row in rows):,} result rows",
                 not wrong)  # fmt: skip
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
        axes.set_xticks([row["seed"] for row in rows], [row["example"] for row in rows], rotation=90)
        axes.set_ylabel("seconds from the start of the nodes until every shard had its state")
        axes.set_ylim(bottom=0)
        axes.set_title("everything killed at once; green: the sinks equal Spark batch")
        axes.grid(alpha=0.3)

    return plot

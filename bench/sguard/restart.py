"""Everything is killed, and goes on from its checkpoint: Holdfast from its store, Structured Streaming from RocksDB.

Both read the same Parquet files, one in a batch, into a window of 24 hours with one row a key, and hold so many
megabytes of it. When all is in checkpoints, every process is killed. A small file comes; the clock runs from the start
of the processes until the batch with it counts, which needs the whole state. Of Holdfast also the shards alone: claim,
read, maps and log, of the slowest (`restored` and `replayed` in its events).

HOLDFAST_STATE_MB="100" chooses other sizes.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.faults import _wait
from bench.faults.restarts import crash_all
from bench.harness import Report, scratch
from holdfast.cli.start import LocalRun, RunOptions, go_on, start_run
from holdfast.cli.story import read_events

DESCRIPTION = "restart of one shard and of a whole pipeline, against Structured Streaming with RocksDB"
SIZES, QUICK_SIZES = (100, 1_000), (10,)
RUNS, QUICK_RUNS = 3, 1
#: Bytes of one key in a shard's pages, about.
KEY_BYTES = 68
FILES = 8
SHARDS, NODES = 4, 2
FASTER = 3.0
LIMIT_S = 1_800.0
QUERY = Path(__file__).with_name("restart_query.py")


def run(quick: bool) -> Report:
    report = Report("sguard/restart", DESCRIPTION)
    asked = os.environ.get("HOLDFAST_STATE_MB", "").split()
    sizes = [int(size) for size in asked] or list(QUICK_SIZES if quick else SIZES)
    rows = []
    with scratch("sguard-restart") as base:
        for size in sizes:
            rows.append(_size(base / str(size), size, QUICK_RUNS if quick else RUNS))
            print(f"    {rows[-1]}", flush=True)
    report.data["restart: seconds, medians"] = rows
    for row in rows:
        for what in ("shard", "pipeline"):
            ratio = row["plain s"] / row[f"{what} s"]
            report.claim(f"{row['state MB']} MB: recovery of {'one shard' if what == 'shard' else 'the pipeline'}",
                         "issue 15", f"at least {FASTER:.0f} times faster than plain Spark",
                         f"{ratio:.1f} times ({row[f'{what} s']:.2f} s, {row['plain s']:.2f} s)",
                         ratio >= FASTER)  # fmt: skip
    report.notes += [
        "a shard is timed from the claim until it has taken the batches after its checkpoint; the rest are processes",
        "plain Spark is tuned as in bench/recovery/plain.py: changelog checkpoints, maintenance every 10 s",
    ]
    report.plot = lambda figure: _plot(figure, rows)
    return report


# --- input


def _write(folder: Path, number: int, first: int, last: int) -> None:
    keys = np.arange(first, last)
    ts = pa.array(np.full(len(keys), 1_700_000_000_000_000 + number)).cast(pa.timestamp("us", tz="UTC"))
    table = pa.table({"ts": ts, "key": pa.array(keys), "value": pa.array(keys % 1000)})
    beside = folder / f".{number}.tmp"
    pq.write_table(table, beside)
    beside.replace(folder / f"{number:04}.parquet")


def _fill(folder: Path, megabytes: int) -> None:
    folder.mkdir(parents=True)
    keys = megabytes * 1_000_000 // KEY_BYTES
    for number in range(FILES):
        _write(folder, number, keys * number // FILES, keys * (number + 1) // FILES)


def _size(home: Path, megabytes: int, runs: int) -> dict[str, Any]:
    _fill(home / "in", megabytes)
    ours = _holdfast(home, runs)
    plain = _plain(home, runs)
    return {
        "state MB": megabytes,
        **ours,
        "plain s": statistics.median(plain),
        "RocksDB MB": _megabytes(home / "plain"),
    }


def _megabytes(folder: Path) -> float:
    return round(sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6, 1)


# --- Holdfast


def _events(started: LocalRun, kind: str, since: float) -> list[dict[str, Any]]:
    found = (event for event in read_events(started.run.path) if event["event"] == kind)
    return [event for event in found if datetime.fromisoformat(event["time"]).timestamp() >= since]


def _holdfast(home: Path, runs: int) -> dict[str, Any]:
    os.environ["HOLDFAST_BENCH"] = json.dumps({"in": str(home / "in"), "out": str(home / "out"), "shards": SHARDS})
    options = RunOptions(
        nodes=NODES, directory=home / "run", standby=False, store=f"file://{home / 'store'}",
        settings=('checkpoint_every = "5 s"', 'state_limit = "4 GB"'),
    )  # fmt: skip
    started = start_run(QUERY, options)
    checkpoint = home / "run" / "checkpoints" / "held_in"
    pipelines, shards, state = [], [], 0
    try:
        _wait(lambda: _committed(checkpoint) >= FILES - 1, LIMIT_S, "not all files were read")
        for number in range(runs):
            since = time.time()
            _write(home / "in", FILES + 2 * number, 0, 1_000)  # so that every shard has something to checkpoint
            _wait(
                lambda started=started, since=since: _stored(started, since),
                LIMIT_S,
                "not every shard has a checkpoint",
            )
            crash_all(started)
            _write(home / "in", FILES + 2 * number + 1, 0, 1_000)
            again = time.time()
            started = go_on(home / "run")
            pipelines.append(_committed_at(checkpoint, FILES + 2 * number + 1) - again)
            _wait(lambda started=started, again=again: len(_restored(started, again)) == SHARDS, LIMIT_S, "shards lack")
            told = _restored(started, again)
            shards.append(max(one["claim_s"] + one["read_s"] + one["maps_s"] + one["log_s"] + one["step_s"]
                              for one in told.values()))  # fmt: skip
            state = sum(one["state_bytes"] for one in told.values())
    finally:
        started.stop()
    return {"pages MB": round(state / 1e6, 1), "shard s": statistics.median(shards),
            "pipeline s": statistics.median(pipelines)}  # fmt: skip


def _stored(started: LocalRun, since: float) -> bool:
    return len({event["shard"] for event in _events(started, "checkpoint", since)}) == SHARDS


def _restored(started: LocalRun, since: float) -> dict[str, dict[str, Any]]:
    """The phases of every shard that is back; those that had to take batches from the log, with that."""
    told = _events(started, "restored", since) + _events(started, "replayed", since)
    return {event["shard"]: event for event in told if "claim_s" in event}


# --- plain Spark


def _plain(home: Path, runs: int) -> list[float]:
    """It gets the same files; those that came between the kills of the other arm are there already."""
    out, checkpoint, source = home / "plain-out", home / "plain", home / "plain-in"
    _fill(source, _megabytes_of(home))
    options = json.dumps({"in": str(source), "out": str(out), "checkpoint": str(checkpoint)})
    command = [sys.executable, "-m", "bench.sguard.restart_plain", options]
    found = []
    process = subprocess.Popen(command)
    try:
        _wait(lambda: _committed(checkpoint) >= FILES - 1, LIMIT_S, "not all files were read")
        for number in range(runs):
            time.sleep(15.0)  # maintenance every 10 s: a snapshot of the state, and not only its changelog
            process.kill()
            process.wait(30)
            _write(source, FILES + number, 0, 1_000)
            again = time.time()
            process = subprocess.Popen(command)
            found.append(_committed_at(checkpoint, FILES + number) - again)
    finally:
        process.kill()
        process.wait(30)
    return found


def _megabytes_of(home: Path) -> int:
    return int(home.name)


def _committed(checkpoint: Path) -> int:
    folder = checkpoint / "commits"
    names = [path.name for path in folder.glob("*")] if folder.exists() else []
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def _committed_at(checkpoint: Path, batch: int) -> float:
    """When Spark has noted that this batch, which is of one file, is over."""
    file = checkpoint / "commits" / str(batch)
    _wait(file.exists, LIMIT_S, f"batch {batch} does not count")
    return file.stat().st_mtime


def _plot(figure: Any, rows: list[dict[str, Any]]) -> None:
    axes = figure.subplots()
    for i, arm in enumerate(("plain s", "pipeline s", "shard s")):
        axes.bar(np.arange(len(rows)) + (i - 1) * 0.25, [row[arm] for row in rows], 0.24, label=arm.removesuffix(" s"))
    axes.set_xticks(range(len(rows)), [f"{row['state MB']} MB" for row in rows])
    axes.set(yscale="log", ylabel="seconds")
    axes.set_title("Everything killed: until the first batch counts again")
    axes.legend()
    axes.grid(alpha=0.3, axis="y")

"""Preparing a checkpoint against serialising the state: sguard figure 6."""

from __future__ import annotations

import pickle
import statistics
import time
from typing import Any

import pyarrow as pa

from bench.harness import Report, best_of
from bench.state.upserts import LAYOUT, fill
from holdfast.state import HashMap, PagePool

#: A Python dict is pickled only up to here: beyond it takes minutes and says nothing new.
PICKLE_MB_MAX = 64


def state_of(megabytes: int, page_bytes: int) -> HashMap:
    """A map whose pages take about this much memory."""
    pool = PagePool(page_bytes=page_bytes, limit_bytes=max(64, 3 * megabytes) << 20)
    map_ = HashMap(pool, 0, LAYOUT)
    fill(map_, int(megabytes * 1_000_000 / 34))
    return map_


def serialise(map_: HashMap) -> int:
    """The state as Arrow IPC in a buffer: the fastest serialisation that another program could read."""
    rows = map_.slots.gather(map_.slots.rids(), 1, 2)
    batch = pa.RecordBatch.from_arrays([pa.array(rows[:, 0]), pa.array(rows[:, 1])], names=["key", "count"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().size


def _timed(body: Any) -> float:
    started = time.perf_counter()
    body()
    return time.perf_counter() - started


def _prepare(map_: HashMap) -> float:
    """Median time that the owner stands still for a snapshot."""
    times = []
    for _ in range(15):
        started = time.perf_counter()
        snapshot = map_.pool.snapshot()
        times.append(time.perf_counter() - started)
        snapshot.close()
    return statistics.median(times)


def run(quick: bool) -> Report:
    report = Report("state/prepare", "")
    rows: list[dict[str, Any]] = []
    for megabytes in (1, 16, 64) if quick else (1, 4, 16, 64, 256, 1024):
        row: dict[str, Any] = {"state MB": megabytes}
        for name, page_bytes in (("8 KiB", 8192), ("64 KiB", 65536)):
            map_ = state_of(megabytes, page_bytes)
            row[f"snapshot {name} us"] = _prepare(map_) * 1e6
            if page_bytes == 65536:
                row["serialise us"] = best_of(3, lambda m=map_: _timed(lambda: serialise(m))) * 1e6
                used = map_.pool.stats().pages * map_.pool.page_words
                row["memcpy us"] = best_of(3, lambda m=map_, n=used: _timed(m.pool.words[:n].copy)) * 1e6
                if megabytes <= PICKLE_MB_MAX:
                    table = map_.slots.gather(map_.slots.rids(), 1, 2)
                    plain = dict(zip(table[:, 0].tolist(), table[:, 1].tolist(), strict=True))
                    row["pickled dict us"] = _timed(lambda p=plain: pickle.dumps(p, 5)) * 1e6
            del map_
        row["serialise / snapshot"] = row["serialise us"] / row["snapshot 64 KiB us"]
        rows.append(row)
    report.data["prepare"] = rows
    for wanted, label, source in ((100, "two orders", "sguard figure 6"), (1000, "three orders", "goal")):
        from_mb = min((r["state MB"] for r in rows if r["serialise / snapshot"] >= wanted), default=None)
        best = max(r["serialise / snapshot"] for r in rows)
        report.claim(
            f"serialising / preparing a checkpoint: {label} of magnitude",
            source,
            f"at least {wanted} at the largest state",
            f"{best:,.0f} at best; reached from {from_mb} MB on" if from_mb else f"{best:,.0f} at best",
            rows[-1]["serialise / snapshot"] >= wanted,
        )
    small = rows[0]["serialise / snapshot"]
    report.notes.append(
        f"At 1 MB a snapshot is {small:.0f} times cheaper than serialising: both are mostly the cost of a Python call."
    )
    return report


def plot(axes: Any, report: Report) -> None:
    rows = report.data["prepare"]
    sizes = [r["state MB"] for r in rows]
    for name, style in (
        ("pickled dict us", ":"),
        ("serialise us", "-"),
        ("memcpy us", "--"),
        ("snapshot 8 KiB us", "-"),
        ("snapshot 64 KiB us", "-"),
    ):
        known = [(s, r[name]) for s, r in zip(sizes, rows, strict=True) if name in r]
        axes.plot([k[0] for k in known], [k[1] for k in known], style, marker="o", label=name.removesuffix(" us"))
    axes.set(xscale="log", yscale="log", xlabel="state (MB)", ylabel="time the operator waits (µs)")
    axes.set_title("Preparing a checkpoint (sguard fig. 6)")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)

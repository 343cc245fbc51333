"""Memory: what a state of S bytes of live records takes, and what a checkpoint under writes adds."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.harness import Report
from bench.state.upserts import BATCH, LAYOUT, keys_of
from holdfast.state import HashMap, PagePool

_IDENTITY = np.zeros(1, np.int64)


def run(quick: bool) -> Report:
    report = Report("state/memory", "")
    largest = 400_000 if quick else 4_000_000
    rows: list[dict[str, Any]] = []
    for page_bytes in (8192, 65536):
        pool = PagePool(page_bytes=page_bytes, limit_bytes=1 << 30)
        map_ = HashMap(pool, 0, LAYOUT)
        for start in range(0, largest, BATCH):
            map_.upsert(keys_of(np.arange(start, min(start + BATCH, largest))), _IDENTITY)
            if start >= 200_000:
                live = len(map_) * map_.slots.record_bytes
                rows.append(
                    {"page KiB": page_bytes // 1024, "records": len(map_), "bytes / live": pool.stats().bytes / live}
                )
        before = pool.stats().pages
        snapshot = pool.snapshot()
        rng = np.random.default_rng(1)
        for _ in range(max(20, 3 * before // BATCH)):
            map_.upsert(keys_of(rng.integers(0, largest, BATCH)), _IDENTITY)
        after = pool.stats()
        snapshot.close()
        report.claim(
            f"pages while a checkpoint is held and all keys are written / before, {page_bytes // 1024} KiB pages",
            "issue: at most doubles the pages it touches",
            "at most 2.0",
            f"{after.pages_peak / before:.2f} ({after.pages_cloned} pages cloned)",
            after.pages_peak <= 2 * before and after.pages_cloned > 0,
        )
    worst = max(rows, key=lambda r: r["bytes / live"])
    report.claim(
        f"memory / bytes of live records, worst of {len(rows)} sizes from 200,000 records of 24 bytes on",
        "goal",
        "at most 1.6",
        f"{worst['bytes / live']:.2f} at {worst['records']:,} records, {worst['page KiB']} KiB pages",
        worst["bytes / live"] <= 1.6,
    )
    report.data["memory"] = rows[:: max(1, len(rows) // 60)]
    return report


def plot(axes: Any, report: Report) -> None:
    rows = report.data["memory"]
    for kib in (8, 64):
        mine = [r for r in rows if r["page KiB"] == kib]
        axes.plot([r["records"] for r in mine], [r["bytes / live"] for r in mine], marker=".", label=f"{kib} KiB pages")
    axes.axhline(1.6, color="grey", lw=0.8)
    axes.set(xlabel="records of 24 bytes", ylabel="memory / bytes of live records", ylim=(1, 1.8))
    axes.set_title("Memory of a map")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)

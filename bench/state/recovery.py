"""Recovery of the page table, and of everything beside it: sguard figure 9."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness import Report
from bench.state.prepare import state_of
from bench.state.upserts import LAYOUT, keys_of
from holdfast.state import Checkpoint, HashMap, PagePool, restore, write


def _phases(path: Path, page_bytes: int, megabytes: int) -> dict[str, float]:
    """Milliseconds of each phase of a restore: read and verify, page tables, what is beside the pages."""
    pool = PagePool(page_bytes=page_bytes, limit_bytes=max(64, 3 * megabytes) << 20)
    checkpoint = Checkpoint.open(path)
    wanted = set(checkpoint.offsets())
    for s in checkpoint.manifest.sets:
        pool.create(s.id, s.kind)
    t0 = time.perf_counter()
    names, pages = checkpoint.read_pages(pool, wanted)
    which = np.array([set_id for set_id, _ in names], np.int64)
    lps, phys = np.array([lp for _, lp in names], np.int64), np.array(pages, np.int64)
    t1 = time.perf_counter()
    pool.adopt(sorted(pool.sets), which, lps, phys)
    for page_set in pool.sets.values():
        page_set.count_pages()
    t2 = time.perf_counter()
    map_ = HashMap(pool, 0, LAYOUT)
    t3 = time.perf_counter()
    checkpoint.close()
    found = map_.find(keys_of(np.arange(1000)))
    assert (found >= 0).all()
    return {"read ms": (t1 - t0) * 1e3, "page table ms": (t2 - t1) * 1e3, "structures ms": (t3 - t2) * 1e3}


def _lazy(path: Path, page_bytes: int, megabytes: int) -> float:
    """Milliseconds until a lazily restored map has answered its first thousand look-ups."""
    keys = keys_of(np.random.default_rng(3).integers(0, 1000, 1000))
    started = time.perf_counter()
    pool = PagePool(page_bytes=page_bytes, limit_bytes=max(64, 3 * megabytes) << 20)
    checkpoint = Checkpoint.open(path)
    restore([checkpoint], pool, lazy=True)
    HashMap(pool, 0, LAYOUT).find(keys)
    elapsed = (time.perf_counter() - started) * 1e3
    checkpoint.close()
    return elapsed


def run(quick: bool) -> Report:
    report = Report("state/recovery", "")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for megabytes in (64,) if quick else (64, 128, 256, 512):
            for page_bytes in (8192, 65536):
                map_ = state_of(megabytes, page_bytes)
                path = Path(folder) / "checkpoint"
                with path.open("wb") as out:
                    write(map_.pool.snapshot(), out)
                del map_
                runs = [_phases(path, page_bytes, megabytes) for _ in range(3)]
                row = {k: min(r[k] for r in runs) for k in runs[0]}
                lazy = min(_lazy(path, page_bytes, megabytes) for _ in range(3))
                rows.append({"state MB": megabytes, "page KiB": page_bytes // 1024} | row | {"lazy first ms": lazy})
    report.data["recovery"] = rows
    largest = [r for r in rows if r["state MB"] == rows[-1]["state MB"]]
    worst = max(r["page table ms"] for r in largest)
    report.claim(
        f"page table of {rows[-1]['state MB']} MB rebuilt, 8 and 64 KiB pages",
        "sguard figure 9",
        "below 60 ms",
        f"{worst:.1f} ms",
        worst < 60,
    )
    beside = max(r["structures ms"] / r["read ms"] for r in largest)
    report.claim(
        "rebuilding what is beside the pages / reading them",
        "sguard §6.1.4 (about as long as the page table)",
        "below 0.5",
        f"{beside:.2f}",
        beside < 0.5,
    )
    return report


def plot(axes: Any, report: Report) -> None:
    rows = report.data["recovery"]
    for kib in (8, 64):
        mine = [r for r in rows if r["page KiB"] == kib]
        sizes = [r["state MB"] for r in mine]
        axes.plot(sizes, [r["page table ms"] for r in mine], marker="o", label=f"page table, {kib} KiB pages")
        axes.plot(sizes, [r["structures ms"] for r in mine], "--", marker="s", label=f"structures, {kib} KiB pages")
    axes.axhline(60, color="grey", lw=0.8)
    axes.annotate("paper: below 60 ms at 512 MB", (sizes[0], 60), fontsize=8, va="bottom")
    axes.set(xlabel="state (MB)", ylabel="ms", yscale="log")
    axes.set_title("Recovery after the pages are read (sguard fig. 9)")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)

"""Pages against plain arrays, and upserts a second: sguard tables 5 and 6."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np

from bench.harness import Report
from bench.state.flat import FlatMap
from holdfast.operators.merge import merge_count
from holdfast.state import HashMap, Keys, MapLayout, PagePool, make_keys
from holdfast.state.keys import PLAIN

LAYOUT = MapLayout((PLAIN,), 1)
RECORD_BYTES = 8 * (1 + LAYOUT.key_words + LAYOUT.value_words)
BATCH = 16384
_IDENTITY = np.zeros(1, np.int64)


def keys_of(values: np.ndarray) -> Keys:
    return make_keys(values.reshape(-1, 1), np.zeros(len(values), np.int64), LAYOUT.kinds)


def _drive(upsert: Any, batches: list[np.ndarray], ones: np.ndarray) -> float:
    """Seconds for count(*) by key over these batches: hash, find or insert, add."""
    started = time.perf_counter()
    for values in batches:
        keys = keys_of(values)
        to = upsert(keys, _IDENTITY)
        merge_count(0, 0, to + 16, ones, 0, 0, 0)
    return time.perf_counter() - started


def _upsert(map_: HashMap, keys: Keys, identity: np.ndarray) -> np.ndarray:
    return map_.upsert(keys, identity)[0]


def fill(map_: HashMap, groups: int) -> None:
    for start in range(0, groups, BATCH):
        map_.upsert(keys_of(np.arange(start, min(groups, start + BATCH))), _IDENTITY)


def run(quick: bool) -> Report:
    report = Report("state/upserts", "")
    rng = np.random.default_rng(1)
    ones = np.ones((BATCH, 1), np.int64)
    rows: list[dict[str, Any]] = []
    for megabytes in (1, 10, 100):
        groups = megabytes * 1_000_000 // RECORD_BYTES
        batches = [rng.integers(0, groups, BATCH) for _ in range(20 if quick else 100)]
        flat = FlatMap(groups + 1, 1, 1)
        for start in range(0, groups, BATCH):
            flat.upsert(keys_of(np.arange(start, min(groups, start + BATCH))), _IDENTITY)
        contenders = {"plain arrays": flat.upsert}
        for name, page_bytes in (("8 KiB pages", 8192), ("64 KiB pages", 65536)):
            map_ = HashMap(PagePool(page_bytes=page_bytes, limit_bytes=1 << 30), 0, LAYOUT)
            fill(map_, groups)
            contenders[name] = partial(_upsert, map_)
        # interleaved, so that a busy neighbour disturbs all alike
        best: dict[str, float] = {}
        for _ in range(3 if quick else 7):
            for name, upsert in contenders.items():
                best[name] = min(best.get(name, 1e9), _drive(upsert, batches, ones))
        total = BATCH * len(batches)
        rows.append(
            {"state MB": megabytes}
            | {f"{name} M/s": total / seconds / 1e6 for name, seconds in best.items()}
            | {f"{name} / plain": best[name] / best["plain arrays"] for name in ("8 KiB pages", "64 KiB pages")}
        )
    report.data["upserts"] = rows
    worst = max(r["64 KiB pages / plain"] for r in rows)
    report.claim(
        "time per row on 64 KiB pages / same kernel on plain arrays, worst of 1, 10, 100 MB",
        "sguard tables 5-6",
        "at most 1.03",
        f"{worst:.3f}",
        worst <= 1.03,
    )
    rate = rows[-1]["64 KiB pages M/s"]
    report.claim(
        "count(*) upserts a second on one core, 100 MB map", "design §5", "10 M/s", f"{rate:.1f} M/s", rate >= 10
    )
    return report


def plot(axes: Any, report: Report) -> None:
    rows = report.data["upserts"]
    sizes = [r["state MB"] for r in rows]
    for name in ("plain arrays", "8 KiB pages", "64 KiB pages"):
        axes.plot(sizes, [r[f"{name} M/s"] for r in rows], marker="o", label=name)
    axes.axhline(10, color="grey", lw=0.8)
    axes.set(xscale="log", xlabel="live records (MB)", ylabel="million upserts a second, one core", ylim=(0, None))
    axes.set_title("Pages against plain arrays (sguard tables 5-6)")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)

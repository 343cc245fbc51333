"""One tuple in each entry of the log, or many (cec §II: a stream event), and a log that is long before the extent."""

from __future__ import annotations

from typing import Any

from bench.cec.feed import Purchases, average, crash, part, run_to, start
from bench.harness import Report, scratch
from holdfast.core.eventual import Targets


def run(quick: bool) -> Report:
    report = part("events", plot)
    items = 2_000 if quick else 20_000
    sizes = (1, 1_000) if quick else (1, 10, 100, 1_000, 10_000)
    table = report.data["tuples in an entry (cec section II)"] = [_measure(items, size) for size in sizes]
    few, many = table[0], table[-1]
    told = f"{few['load CPU s']:.2f} s with {few['tuples in an entry']:.1f}, {many['load CPU s']:.2f} s with "
    told += f"{many['tuples in an entry']:.0f} tuples in an entry"
    what = "the same windows load faster from entries of many tuples"
    report.claim(what, "cec section II", "as the paper expects", told, many["load CPU s"] < few["load CPU s"])
    long = report.data["a log that is long before the extent"] = [_long(20 if quick else 1_000)]
    told = f"{long[0]['log read MB']:.1f} of {long[0]['log MB']:.0f} MB are read"
    report.claim("no more than the extent is read", "cec section II", "< 10% of the log", told, long[0]["share"] < 0.1)
    return report


def _long(megabytes: int) -> dict[str, Any]:
    """Nothing is dropped from the log; windows are checked, so that the extent stays short."""
    items = 1_000 if megabytes < 100 else 20_000
    given = Purchases(items=items, rows=1 << 40, different=100)
    with scratch("cec") as path:
        live = start(path, 10, Targets(2 * items, None))
        while live.log.bytes < megabytes * 1e6:
            for _ in run_to(live, given, live.steps + 20, keep=True):
                pass
        done = crash(path, average(10), given)
        found = done.found
        return {
            "log MB": live.log.bytes / 1e6,
            "log read MB": found.bytes_read / 1e6,
            "share": found.bytes_read / live.log.bytes,
            "extent": found.tuples,
            "load CPU s": (found.read_ns + found.load_ns) / 1e9,
            "recovery wall s": done.wall_s,
        }


def _measure(items: int, batch: int) -> dict[str, Any]:
    """Every item once, in steps of so many rows: as many footprints, in more or fewer entries."""
    given = Purchases(items=items, rows=2 * items, batch=batch, different=2 * items // batch)
    with scratch("cec") as path:
        live = start(path, 1000)
        for _ in run_to(live, given, given.steps):
            pass
        done = crash(path, average(1000), given)
        found = done.found
        return {
            "rows in a step": batch,
            "tuples in an entry": found.tuples / max(1, given.steps),
            "open windows": live.extent.windows,
            "extent": live.extent.tuples,
            "load CPU s": (found.read_ns + found.load_ns) / 1e9,
            "log read MB": found.bytes_read / 1e6,
        }


def plot(axes: Any, report: Report) -> None:
    rows = report.data["tuples in an entry (cec section II)"]
    axes.plot([str(one["rows in a step"]) for one in rows], [one["load CPU s"] for one in rows], "o-")
    axes.set_yscale("log")
    axes.set_title("CPU s to load the same windows, by rows in a step")

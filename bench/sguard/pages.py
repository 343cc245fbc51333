"""sguard §6.1 on our pages: tables 5 to 7 and figures 6 to 9, each beside the paper's own figures.

The measurements are those of `bench state` (upserts, prepare, latency, recovery); here they stand beside what the paper
has, so that shapes can be compared. The paper's seconds are of a machine of 2008 and of C++: ratios are what counts.
"""

from __future__ import annotations

from typing import Any

from bench.harness import Report
from bench.state import latency, prepare, recovery, upserts
from holdfast.operators import warm_up

DESCRIPTION = "tables 5 to 7, figures 6 to 9: what pages cost an operator, a checkpoint and a recovery"
#: Table 6: microseconds a row of the aggregate, by MB of state: without pages, with 8 KB, with 64 KB.
TABLE_6 = {1: (18.82, 21.25, 19.97), 10: (24.93, 24.60, 23.18), 100: (47.73, 31.54, 29.78)}
#: Table 5: the same of the join, by KB of window. Ours finds its pairs by a hash map, whose rows are those of table 6.
TABLE_5 = {256: (592.1, 605.0, 604.8), 512: (1144.0, 1175.0, 1179.0), 1024: (2109.0, 2158.0, 2161.0)}
#: Table 7: mean latency in ms by number of partitions.
TABLE_7 = {
    "none": {1: 21.6, 4: 21.8, 64: 22.7},
    "pages": {1: 202.0, 4: 22.2, 64: 22.8},
    "sync": {1: 617.0, 4: 157.0, 64: 30.2},
    "async": {1: 302.0, 4: 100.0, 64: 26.6},
}


def run(quick: bool) -> Report:
    report = Report("sguard/pages", DESCRIPTION)
    warm_up()
    for part in (upserts, prepare, latency, recovery):
        print(f"  {part.__name__.removeprefix('bench.')} ...", flush=True)
        report.add(part.run(quick))
    report.data["tables 5 and 6: time a row with pages / without"] = [*_table_5(), *_table_6(report.data["upserts"])]
    report.data["table 7: mean latency with checkpoints / without"] = _table_7(report.data["latency"])
    report.notes += [
        "table 5: the paper's join scans a window; ours looks keys up in the map that table 6 measures",
        "table 7: the paper's virtual machine is left out; `fork` stands for it: a copy of the process by the kernel",
    ]
    report.plot = lambda figure: _plot(figure, report)
    return report


def _table_5() -> list[dict[str, Any]]:
    return [
        {"state": f"join, {kb} KB", "paper, 8 KB pages": small / plain, "paper, 64 KB pages": large / plain}
        for kb, (plain, small, large) in TABLE_5.items()
    ]


def _table_6(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for row in rows:
        plain, small, large = TABLE_6[row["state MB"]]
        found.append({
            "state": f"aggregate, {row['state MB']} MB", "paper, 8 KB pages": small / plain,
            "paper, 64 KB pages": large / plain, "ours, 8 KiB": row["8 KiB pages / plain"],
            "ours, 64 KiB": row["64 KiB pages / plain"],
        })  # fmt: skip
    return found


def _table_7(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    mine = {(row["partitions"], row["method"]): row["mean ms"] for row in rows}
    found = []
    for count in sorted({row["partitions"] for row in rows}):
        row: dict[str, Any] = {"partitions": count}
        for method in ("pages", "sync", "async"):
            row[f"paper, {method}"] = TABLE_7[method][count] / TABLE_7["none"][count]
            row[f"ours, {method}"] = mine[count, method] / mine[count, "none"]
        found.append(row)
    return found


def _plot(figure: Any, report: Report) -> None:
    axes = figure.subplots(2, 2).ravel()
    for part, place in zip((upserts, prepare, latency, recovery), axes, strict=True):
        part.plot(place, report)
        place.title.set_fontsize(9)

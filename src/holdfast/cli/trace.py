"""`holdfast trace`: where a row's milliseconds go, as the nodes have measured it since they came up."""

from __future__ import annotations

from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from holdfast.errors import PeerError
from holdfast.model.ids import asset_id, operator_of
from holdfast.model.latency import PARTS, Histogram

from .runs import JsonOption, RunArgument, find_run, say
from .tables import table_console

#: Parts that shards tell, one histogram each: a table has one line for an operator.
OF_SHARDS = ("inbox", "step", "stream")


def trace(run: RunArgument = None, as_json: JsonOption = False) -> None:
    """Where a row's milliseconds go: from its source to its sink, part by part (docs/latency.md).

    Measured all the time. With --json also by shard, with the histograms.

    Examples:  holdfast trace
               holdfast trace holdfast-run/netmon --json
    """
    found = find_run(run)
    told = found.ask_all("trace")
    if not told:
        raise PeerError(f"no node of {found.pipeline!r} answers", hint="`holdfast events` shows what happened last.")
    parts = merged(told)
    if as_json:
        say({"pipeline": found.pipeline, "nodes": sorted(told), "parts": {p: _each(of) for p, of in parts.items()}})
    else:
        table_console().print(trace_view(found.pipeline, parts))


def merged(told: dict[str, dict[str, Any]]) -> dict[str, dict[str, Histogram]]:
    """Of all nodes, in the order in which a row meets the parts."""
    found: dict[str, dict[str, Histogram]] = {part: {} for part in PARTS}
    for answer in told.values():
        for part, each in answer.items():
            for of, histogram in each.items():
                found.setdefault(part, {}).setdefault(of, Histogram()).merge(Histogram.of(histogram))
    return {part: dict(sorted(each.items())) for part, each in found.items() if each}


def by_operator(part: str, each: dict[str, Histogram]) -> dict[str, Histogram]:
    found: dict[str, Histogram] = {}
    for of, histogram in each.items():
        name = operator_of(asset_id(of)) if part in OF_SHARDS else of
        found.setdefault(name, Histogram()).merge(histogram)
    return found


def trace_view(pipeline: str, parts: dict[str, dict[str, Histogram]]) -> Group:
    table = Table(title=f"{pipeline}: where a row's time goes")
    for i, column in enumerate(("part", "of", "times", "p50", "p99", "mean")):
        table.add_column(column, justify="left" if i < 2 else "right")
    for part, each in parts.items():
        for of, histogram in by_operator(part, each).items():
            times = (histogram.quantile(0.5), histogram.quantile(0.99), histogram.mean_s)
            table.add_row(part, of, f"{histogram.count:,}", *map(milliseconds, times))
    lines = [Text(f"{part}: {text}") for part, text in PARTS.items() if part in parts]
    nothing = [Text("Nothing has been measured yet.", style="yellow")] if not parts else []
    return Group(table, *lines, *nothing)


def milliseconds(value: float | None) -> str:
    if value is None:
        return "-"
    ms = 1e3 * value
    return f"{ms:.2f} ms" if ms < 10 else f"{ms:,.0f} ms"


def _each(each: dict[str, Histogram]) -> dict[str, Any]:
    return {
        of: {
            "count": histogram.count,
            "p50_ms": _rounded(histogram.quantile(0.5)),
            "p99_ms": _rounded(histogram.quantile(0.99)),
            "mean_ms": _rounded(histogram.mean_s),
            "at_most": dict(histogram.cumulative()),
        }
        for of, histogram in each.items()
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(1e3 * value, 3)

"""`holdfast status --stalls`: how often nodes had no CPU, and for how long (hybrid-ha figures 2 and 3)."""

from __future__ import annotations

from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from holdfast.pipeline import durations

#: Of all the edges, those that a table has room for.
SHOWN_S = (1, 5, 10, 30, 60)
WHAT = {"node": "the node", "machine": "its machine"}


def stalls_view(pipeline: str, told: dict[str, dict[str, Any]]) -> Group:
    """What the nodes say: a line for each of them and each of the two causes."""
    table = Table(title=f"{pipeline}: stalls")
    names = ("node", "who had no CPU", "watched", "stalls", "of the time", "mean", "longest", "every")
    for column in (*names, *(f"<= {edge} s" for edge in SHOWN_S)):
        table.add_column(column, justify="left" if column in names[:2] else "right")
    lines = []
    for name, found in sorted(told.items()):
        if not found:
            lines.append(Text(f"{name} has not come up yet", style="yellow"))
            continue
        for cause, what in WHAT.items():
            table.add_row(name, what, *_cells(found[cause]))
        lines.append(Text(_beside(name, found)))
    return Group(table, *lines)


def _cells(found: dict[str, Any]) -> list[str]:
    lengths, between = found["lengths"], found["between"]
    now = ", now" if found["stalled_now"] else ""
    cells = [durations.about(int(found["watched_s"] * 1e6)), f"{found['stalls']:,}{now}", f"{found['share']:.1%}"]
    cells += [seconds(lengths["mean_s"]), seconds(lengths["longest_s"] or None), seconds(between["mean_s"])]
    return cells + [part(lengths, edge) for edge in SHOWN_S]


def part(spread: dict[str, Any], edge_s: float) -> str:
    """Which part of the lengths is at most that."""
    total = spread["at_most"][-1]
    return f"{spread['at_most'][spread['edges_s'].index(edge_s)] / total:.0%}" if total else "-"


def seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f} s" if value < 100 else f"{value:,.0f} s"


def _beside(name: str, found: dict[str, Any]) -> str:
    """What explains it, and what looking costs."""
    text = (
        f"{name}: its loop waited for a CPU {found['run_queue_share']:.2%} of the time; {found['steal_share']:.2%} of "
        f"its machine went to others on its hardware; looking costs {found['own_share']:.3%} of a core"
    )
    if bench := found.get("benchmark"):
        slow = ", slow now" if bench["slow"] else ""
        text += f"; benchmark {bench['benchmark_ms']:.2f} ms, run {bench['runs']:,} times{slow}"
    return text

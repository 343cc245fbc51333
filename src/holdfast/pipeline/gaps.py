"""Gaps that the sinks of a run have come past: what `verify` must not expect, and what a person should know.

A gap is a stretch of event time of one edge. A window that overlaps one may be missing; what is there is right.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from holdfast.model.parts import GAPS, GapFound
from holdfast.model.plan import FOREVER_US, NEVER_US, to_micros

#: What a result must have to tell its windows.
WINDOW = ("window_start", "window_end")


def gaps_of(run_dir: Path, sink: str) -> list[GapFound]:
    """The gaps of one sink, by edge and position."""
    files = sorted((run_dir / GAPS / sink).glob("*.json"))
    found = [msgspec.json.decode(path.read_bytes(), type=GapFound) for path in files]
    return sorted(found, key=lambda gap: (gap.edge, gap.position))


def all_gaps(run_dir: Path) -> list[GapFound]:
    """Of every sink of a run."""
    return [gap for sink in sorted((run_dir / GAPS).glob("*")) for gap in gaps_of(run_dir, sink.name)]


def overlaps(gaps: list[GapFound]) -> str:
    """An SQL condition: does a row's window overlap one of these?"""
    start, end = WINDOW
    each = []
    for gap in gaps:
        low, high = to_micros(gap.start), to_micros(gap.to)
        after = "true" if low <= NEVER_US else f"unix_micros({end}) > {low}L"
        before = "true" if high >= FOREVER_US else f"unix_micros({start}) < {high}L"
        each.append(f"({after} and {before})")
    return " or ".join(each) or "false"

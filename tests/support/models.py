"""What the operators compute, in plain Python and all at once: no state, no panes, no captures."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import NamedTuple

from support.batches import tidy


class Row(NamedTuple):
    """A row of the streams that property tests use: event time, keys, values."""

    ts: int
    k: str | None
    f: float | None
    v: int | None
    s: str | None


def canonical(row: Row) -> tuple:
    """The group of a row: NaN equals NaN, -0.0 equals 0.0, null equals null."""
    return row.k, None if row.f is None else tidy(row.f)


def key_order(key: tuple) -> tuple:
    """Nulls first, NaN last, strings by their bytes."""
    k, f = key
    return (
        (k is not None, (k or "").encode()),
        (f is not None, f == "NaN", 0.0 if f is None or f == "NaN" else f),
    )


def summary(group: list[Row]) -> tuple:
    """count(*), count(v), sum(v), avg(v), min(s), max(s), first(s), last(s) of rows in the order of arrival."""
    numbers = [r.v for r in group if r.v is not None]
    words = [r.s for r in group if r.s is not None]
    return (
        len(group),
        len(numbers),
        sum(numbers) if numbers else None,
        math.fsum(numbers) / len(numbers) if numbers else None,
        min(words, key=str.encode) if words else None,
        max(words, key=str.encode) if words else None,
        group[0].s,
        group[-1].s,
    )


def windows(rows: list[Row], size: int, step: int) -> list[tuple]:
    """Results of time windows in the order of (end, key)."""
    groups: dict[tuple, list[Row]] = defaultdict(list)
    for row in rows:
        first = (row.ts - size) // step + 1
        for w in range(first, row.ts // step + 1):
            groups[w * step, canonical(row)].append(row)
    order = sorted(groups, key=lambda g: (g[0], key_order(g[1])))
    return [(start, start + size, *key, *summary(groups[start, key])) for start, key in order]


def count_windows(rows: list[Row], size: int, step: int) -> list[tuple]:
    """Results of count windows in the order of the rows that complete them."""
    seen: dict[tuple, list[Row]] = defaultdict(list)
    out = []
    for row in rows:
        group = seen[canonical(row)]
        group.append(row)
        start = len(group) - size
        if start >= 0 and start % step == 0:
            out.append((start, start + size, *canonical(row), *summary(group[start:])))
    return out


def joined(left: list[Row], right: list[Row], after: int, before: int) -> list[tuple]:
    """A left outer join on (k, f), right.ts - left.ts in [after, before] and left.v <= right.v, as a sorted list."""
    out = []
    for a in left:
        found = False
        for b in right:
            fits = None not in (a.k, a.f, b.k, b.f) and canonical(a) == canonical(b) and after <= b.ts - a.ts <= before
            if fits and a.v is not None and b.v is not None and a.v <= b.v:
                found = True
                out.append((*plain(a), *plain(b)))
        if not found:
            out.append((*plain(a), *[None] * len(a)))
    return sorted(out, key=repr)


def plain(row: Row) -> tuple:
    return tuple(tidy(x) for x in row)

"""Two DataFrames as multisets of rows: what is missing, doubled, wrong or not expected, with examples.

Rows are equal when all columns are, null being equal to null; floats and doubles may differ by FLOAT_TOLERANCE of their
size, since sums come about in another order. Rows that agree in everything but values that were computed (aggregates)
are one wrong row, not one missing and one too many.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from holdfast.errors import InputError
from holdfast.operators.columns import quoted
from holdfast.pipeline.frames import types_of
from holdfast.pipeline.graph import Frame

#: Doubles are equal within this part of their size, or this far apart near zero.
FLOAT_TOLERANCE = 1e-6
FLOAT_SLACK = 1e-9
#: Rows that differ and are looked at one by one; beyond that, only counted.
DIFFERENCES_MAX = 10_000
EXAMPLES_MAX = 5


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    kind: str  # "missing" | "doubled" | "wrong" | "unexpected"
    #: The row as it should be; of an unexpected one, as it is.
    row: dict[str, str]
    #: What the sink has instead, if the row is there with another value.
    found: dict[str, str] = {}
    times: int = 1

    def __str__(self) -> str:
        row = ", ".join(f"{k}={v}" for k, v in self.row.items())
        more = f" x{self.times}" if self.times > 1 else ""
        if self.kind == "wrong":
            apart = ", ".join(f"{k} is {v}" for k, v in self.found.items())
            return f"wrong: {row}; in the sink {apart}"
        return f"{self.kind}{more}: {row}"


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    rows_expected: int = 0
    rows_found: int = 0
    missing: int = 0
    doubled: int = 0
    wrong: int = 0
    unexpected: int = 0
    #: There are more differences than were looked at: the numbers are the least.
    more: bool = False
    examples: tuple[Difference, ...] = ()

    @property
    def same(self) -> bool:
        return not (self.missing or self.doubled or self.wrong or self.unexpected or self.more)


def compare(expected: Frame, found: Frame, sink: str, values: set[str]) -> Comparison:
    """Compare what a sink should hold with what it holds. `values`: columns that were computed, not grouped by."""
    columns = list(expected.columns)
    if sorted(columns) != sorted(found.columns):
        raise InputError(
            f"{sink}: the sink has other columns",
            detail=f"It has {', '.join(found.columns)}; the pipeline gives {', '.join(columns)}.",
        )
    types = types_of(expected)
    floats = [c for c in columns if types[c] in ("float", "double")]
    plain = [c for c in columns if c not in floats]
    counts, rows, more = _differences(expected, found, plain, floats, types)
    return _classify(counts, rows, more, [c for c in columns if c not in values], columns)


def _differences(
    expected: Frame, found: Frame, plain: list[str], floats: list[str], types: dict[str, str]
) -> tuple[tuple[int, int], list[tuple[dict[str, Any], int]], bool]:
    """((rows expected, rows found), [(row, expected - found)], is there more?)

    Rows are grouped by equal plain columns; the floats of a group are compared side by side.
    """
    spark = expected.sparkSession
    grouped = ", ".join(_comparable(c, types[c]) for c in plain)
    values = ", ".join(f"double({quoted(c)})" for c in floats)
    lists = f"array({values})" if floats else "array(0D)"
    sides = " union all ".join(
        f"select {side} as __side, {lists} as __floats{', ' + grouped if plain else ''} from {{{name}}}"
        for side, name in ((1, "expected"), (0, "found"))
    )
    names = ", ".join(quoted(c) for c in plain)
    # NaN is Spark's greatest number and equal to itself, and infinities swallow any difference: both must be the same
    near = (
        "case when x is null or y is null or isnan(x) or isnan(y) or abs(x) = double('inf') or abs(y) = double('inf') "
        f"then x <=> y else abs(x - y) <= {FLOAT_SLACK}D + {FLOAT_TOLERANCE}D * greatest(abs(x), abs(y)) end"
    )
    same = f"forall(zip_with(__e, __f, (p, q) -> forall(zip_with(p, q, (x, y) -> {near}), b -> b)), b -> b)"
    groups = spark.sql(
        f"select *, size(__e) as __n_e, size(__f) as __n_f, "
        f"coalesce(size(__e) = size(__f) and {same}, false) as __same "
        f"from (select {names + ', ' if plain else ''}"
        f"sort_array(collect_list(__floats) filter (where __side = 1)) as __e, "
        f"sort_array(collect_list(__floats) filter (where __side = 0)) as __f "
        f"from ({sides}) {'group by ' + names if plain else ''})",
        expected=expected,
        found=found,
    ).persist()
    try:
        totals = groups.selectExpr("coalesce(sum(__n_e), 0L)", "coalesce(sum(__n_f), 0L)").collect()[0]
        apart = groups.where("not __same").limit(DIFFERENCES_MAX).collect()
    finally:
        groups.unpersist()
    rows: list[tuple[dict[str, Any], int]] = []
    for group in apart:
        key = {c: group[c] for c in plain}
        rows += [({**key, **dict(zip(floats, f, strict=False))}, n) for f, n in _balance(group["__e"], group["__f"])]
    return (totals[0], totals[1]), rows, len(apart) >= DIFFERENCES_MAX


def less(rows: Frame, others: Frame) -> Frame:
    """The rows without these others, each taken away once: as `exceptAll`, which takes nothing with maps in it.

    Others are few as a rule: only rows that equal one of them are counted, and the rest is not even sorted."""
    odd = [c for c, type_ in types_of(rows).items() if "map<" in type_ or "variant" in type_]
    if not odd:
        same = " and ".join(f"r.{quoted(c)} <=> o.{quoted(c)}" for c in rows.columns)
        sides = {
            kind: rows.sparkSession.sql(
                f"select r.* from {{rows}} r left {kind} join {{others}} o on {same}", rows=rows, others=others
            )
            for kind in ("semi", "anti")
        }
        return sides["anti"].unionAll(sides["semi"].exceptAll(others))
    names = ", ".join(map(quoted, rows.columns))
    texts = [f"to_json({quoted(c)}) as __text_{i}" for i, c in enumerate(odd)]
    sides = " union all ".join(
        f"select {side} as __side, {names}, {', '.join(texts)} from {{{name}}}"
        for side, name in ((1, "rows"), (-1, "others"))
    )
    plain = [quoted(c) for c in rows.columns if c not in odd]
    kept = [f"first({quoted(c)}) as {quoted(c)}" for c in odd]  # those of a group have one text
    groups = (
        f"select {', '.join(plain + kept)}, int(sum(__side)) as __left from ({sides}) "
        f"group by {', '.join(plain + [f'__text_{i}' for i in range(len(odd))])}"
    )
    query = f"select {names} from ({groups}) lateral view explode(array_repeat(0, __left)) as __each"
    return rows.sparkSession.sql(query, rows=rows, others=others)


def _comparable(column: str, type_: str) -> str:
    """Maps and the like cannot be grouped by: their text can."""
    if type_.startswith(("map", "variant", "struct", "array")):
        return f"to_json({quoted(column)}) as {quoted(column)}"
    return quoted(column)


def _balance(expected: list[list[float]], found: list[list[float]]) -> list[tuple[list[float], int]]:
    """Of the rows of one group: each that has no partner, +1 for one that is missing, -1 for one too many."""
    rest = list(found)
    out: list[tuple[list[float], int]] = []
    for row in expected:
        partner = next((r for r in rest if _near(row, r)), None)
        if partner is None:
            out.append((row, 1))
        else:
            rest.remove(partner)
    return out + [(row, -2 if any(_near(row, e) for e in expected) else -1) for row in rest]


def _near(a: list[float], b: list[float]) -> bool:
    return all(_near_value(x, y) for x, y in zip(a, b, strict=True))


def _near_value(x: float | None, y: float | None) -> bool:
    if x is None or y is None or x != x or y != y:
        return x is y or (x is not None and y is not None and x != x and y != y)
    if math.isinf(x) or math.isinf(y):
        return x == y
    return abs(x - y) <= FLOAT_SLACK + FLOAT_TOLERANCE * max(abs(x), abs(y))


def _classify(
    counts: tuple[int, int],
    rows: list[tuple[dict[str, Any], int]],
    more: bool,
    identity: list[str],
    columns: list[str],
) -> Comparison:
    """Name each difference. -2 stands for a row that is there, and should be, but fewer times."""
    missing: dict[tuple, list[dict[str, Any]]] = {}
    unexpected: list[dict[str, Any]] = []
    doubled: list[dict[str, Any]] = []
    for row, balance in rows:
        if balance > 0:
            missing.setdefault(tuple(repr(row[c]) for c in identity), []).append(row)
        else:
            (doubled if balance == -2 else unexpected).append(row)
    wrong: list[tuple[dict[str, Any], dict[str, Any]]] = []
    strange: list[dict[str, Any]] = []
    for row in unexpected:
        partners = missing.get(tuple(repr(row[c]) for c in identity))
        if partners and len(identity) < len(columns):
            wrong.append((partners.pop(), row))
        else:
            strange.append(row)
    lost = [row for left in missing.values() for row in left]
    examples = [Difference(kind="wrong", row=_text(a), found=_apart(a, b)) for a, b in wrong[:EXAMPLES_MAX]]
    for kind, found in (("missing", lost), ("doubled", doubled), ("unexpected", strange)):
        examples += [Difference(kind=kind, row=_text(row)) for row in found[:EXAMPLES_MAX]]
    return Comparison(
        rows_expected=counts[0],
        rows_found=counts[1],
        missing=len(lost),
        doubled=len(doubled),
        wrong=len(wrong),
        unexpected=len(strange),
        more=more,
        examples=tuple(examples),
    )


def _text(row: dict[str, Any]) -> dict[str, str]:
    return {k: str(v) for k, v in row.items()}


def _apart(a: dict[str, Any], b: dict[str, Any]) -> dict[str, str]:
    """Values of `b` that differ; a sum of doubles that came about in another order does not."""
    return {k: str(b[k]) for k in a if not (_near_value(a[k], b[k]) if isinstance(a[k], float) else a[k] == b[k])}

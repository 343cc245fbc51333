"""Rows with every type and every nasty value, from a seed."""

from __future__ import annotations

import datetime
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa

from support.batches import TIME

NAN, INF = float("nan"), float("inf")

#: Column -> (type, values to draw from). A few values only, so that keys repeat; None is drawn too.
COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i8": (pa.int8(), [-128, -1, 0, 1, 127]),
    "i16": (pa.int16(), [-(2**15), -1, 0, 2**15 - 1]),
    "i32": (pa.int32(), [-(2**31), -7, 0, 7, 2**31 - 1]),
    "i64": (pa.int64(), [-(2**40), -1, 0, 3, 2**40, 123_456_789_012]),
    "f32": (pa.float32(), [0.0, -0.0, NAN, INF, -INF, 1.5, -2.25, 1e30]),
    "f64": (pa.float64(), [0.0, -0.0, NAN, INF, -INF, 0.1, -1e-300, 1e15]),
    "short": (pa.string(), ["", "a", "b", "ab", "a" * 15, "Ж", "日本", "\u0000"]),
    "long": (pa.string(), ["", "x" * 16, "x" * 15 + "y", "x" * 40, "é" * 30, "x" * 300, "ß" * 7 + "z"]),
    "bin": (pa.binary(), [b"", b"\x00", b"\x00\x00", b"\xff" * 15, b"\xff" * 16, bytes(range(200))]),
    "flag": (pa.bool_(), [True, False]),
    "when": (
        TIME,
        [
            datetime.datetime(1, 1, 1, tzinfo=datetime.UTC),
            datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=datetime.UTC),
            datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC),
            datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=datetime.UTC),
        ],
    ),
    "day": (pa.date32(), [datetime.date(1, 1, 1), datetime.date(1969, 12, 31), datetime.date(9999, 12, 31)]),
    "money": (pa.decimal128(10, 2), [Decimal("-99999999.99"), Decimal("0.00"), Decimal("0.01"), Decimal("12.34")]),
    "exact": (
        pa.decimal128(38, 18),
        [Decimal("-1234567890123.123456789012345678"), Decimal("0.000000000000000001"), Decimal(0), Decimal(3)],
    ),
}
NUMBERS = ["i8", "i16", "i32", "i64", "f32", "f64", "money", "exact"]


def mixed_rows(n: int, seed: int, *, first_us: int = -30_000_000, span_us: int = 60_000_000) -> pa.Table:
    """`ts_us` (some null), `seq`, all of COLUMNS as keys, and again, named v_…, as values."""
    rng = random.Random(seed)
    times = [None if rng.random() < 0.02 else first_us + rng.randrange(span_us) for _ in range(n)]
    columns: dict[str, pa.Array] = {"ts_us": pa.array(times, pa.int64()), "seq": pa.array(range(n), pa.int64())}
    for prefix in ("", "v_"):
        for name, (type_, values) in COLUMNS.items():
            drawn = [None if rng.random() < 0.1 else rng.choice(values) for _ in range(n)]
            columns[prefix + name] = pa.array(drawn, type_)
    return pa.table(columns)

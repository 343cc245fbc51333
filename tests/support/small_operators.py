"""Small operators that several tests attack."""

from __future__ import annotations

import pyarrow as pa

from holdfast.operators import Agg, Join, StateConfig, Window, WindowAggregate, Within
from support.batches import SECOND, TIME

SLIDING = Window(10 * SECOND, SECOND)
TUMBLING = Window(10 * SECOND, 10 * SECOND)
NUMBERS = pa.schema([("ts", TIME), ("k", pa.int64()), ("v", pa.int64())])
WORDS = pa.schema([("ts", TIME), ("k", pa.string()), ("s", pa.string())])
SMALL = StateConfig(page_bytes=8192, limit_bytes=64 * 8192)


def aggregate(schema=NUMBERS, window=TUMBLING, by=("k",), overflow="error", config=None, **aggs):
    return WindowAggregate(
        "w",
        schema,
        event_time="ts",
        window=window,
        by=list(by),
        aggs=aggs or {"n": Agg("count")},
        overflow=overflow,
        config=config,
    )


def join(window=None, how="inner", config=None):
    left = pa.schema([("a", TIME), ("x", pa.int64()), ("u", pa.int64())])
    right = pa.schema([("b", TIME), ("y", pa.int64()), ("v", pa.int64())])
    return Join(
        "j", left, right, times=("a", "b"), on=[("x", "y")], window=window or Within(0, 10), how=how, config=config
    )

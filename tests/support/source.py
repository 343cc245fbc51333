"""A replayable source without Spark: row i is a function of i, and appears at a time that is a function of i."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from support.plans import ROWS

KEYS = 50
#: Event time moves with real time: row i is at i / rate seconds, give or take some disorder.
DISORDER_US = 15_000


#: Two values of this size in one window are more than a bigint can hold.
HUGE = 1 << 62


def rows(start: int, end: int, rate: int, keys: int = KEYS, huge: int = -1) -> pa.RecordBatch:
    """Rows [start, end). `huge`: the key whose values are HUGE."""
    number = np.arange(start, end, dtype=np.int64)
    mixed = (number * 2654435761) % 4294967296
    times = number * 1_000_000 // rate + mixed % DISORDER_US
    key = (mixed >> 7) % keys
    return pa.RecordBatch.from_arrays(
        [
            pa.array(times, pa.int64()).view(ROWS.field("ts").type),
            pa.array(key, pa.int64()),
            pa.array(np.where(key == huge, HUGE, mixed % 1000), pa.int64()),
        ],
        schema=ROWS,
    )

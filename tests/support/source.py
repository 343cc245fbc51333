"""A replayable source without Spark: row i is a function of i, and appears at a time that is a function of i."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from support.plans import ROWS

KEYS = 50
#: Event time moves with real time: row i is at i / rate seconds, give or take some disorder.
DISORDER_US = 15_000


def rows(start: int, end: int, rate: int, keys: int = KEYS) -> pa.RecordBatch:
    number = np.arange(start, end, dtype=np.int64)
    mixed = (number * 2654435761) % 4294967296
    times = number * 1_000_000 // rate + mixed % DISORDER_US
    return pa.RecordBatch.from_arrays(
        [
            pa.array(times, pa.int64()).view(ROWS.field("ts").type),
            pa.array((mixed >> 7) % keys, pa.int64()),
            pa.array(mixed % 1000, pa.int64()),
        ],
        schema=ROWS,
    )

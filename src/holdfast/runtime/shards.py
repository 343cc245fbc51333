"""Cut rows by key: the same key goes to the same shard, whoever cuts, today and after a restart.

The hash is the state engine's own, over canonical words (-0.0 is 0.0, every NaN the same), so that stages and shards
agree, and so do both inputs of a join as long as their keys have the same types.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from holdfast.errors import ConfigError
from holdfast.operators.columns import column_of, pack_keys, shards_of


def shard_numbers(batch: pa.RecordBatch, by: tuple[str, ...], shards: int) -> np.ndarray:
    """The shard of each row."""
    columns = [column_of(batch.schema, name, "shards") for name in by]
    kinds = tuple(kind for column in columns for kind in column.kinds)
    return shards_of(pack_keys(batch, columns, None, kinds)[0], shards)


def cut(batch: pa.RecordBatch, by: tuple[str, ...], shards: int) -> list[pa.RecordBatch]:
    """One batch per shard, rows in the order in which they came."""
    if shards < 1:
        raise ConfigError("an operator needs at least one shard", detail=f"shards={shards}")
    if shards == 1:
        return [batch]
    if not batch.num_rows:
        return [batch] * shards
    if not by:  # no key: one group, which lives in the first shard
        return [batch, *[batch.slice(0, 0)] * (shards - 1)]
    number = shard_numbers(batch, by, shards)
    order = np.argsort(number, kind="stable")
    ends = np.searchsorted(number[order], np.arange(1, shards + 1))
    taken = batch.take(pa.array(order))
    starts = np.concatenate(([0], ends[:-1]))
    return [taken.slice(int(a), int(b - a)) for a, b in zip(starts, ends, strict=True)]

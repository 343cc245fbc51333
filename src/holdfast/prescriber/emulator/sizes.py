"""Checkpoint sizes over time, from really running a grouped count over a real stream of events (paper §6.2).

The query is the paper's: count by (user mod k) over a trailing window, k setting how much state there is. It runs
through the state engine, and at each checkpoint the bytes of all its state are counted. `SizeSource` is the whole
interface: anything that gives the sizes and the input rate will do. Only `read_with_spark` knows Spark, and only when
called; the state engine, too, is imported only when it is used.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.errors import ConfigError

ROW_BYTES = 8  # a timestamp, beside the user's name
#: How often the sliding window moves within its length.
PANES = 6


@dataclass(frozen=True)
class CheckpointSizes:
    """Sizes of consecutive checkpoints in bytes, and the input rate in bytes per second that they belong to."""

    sizes: np.ndarray
    input_rate: float

    @property
    def transfer_s(self) -> float:
        """Mean S_T."""
        return float(self.sizes.mean() / self.input_rate)

    @property
    def spread(self) -> float:
        """Half-width of the uniform distribution with the same σ, as a share of the mean."""
        return min(0.99, float(np.sqrt(3.0) * self.sizes.std() / self.sizes.mean()))

    def as_transfers(self, mean: float) -> np.ndarray:
        """The sizes as times with the given mean: what the emulator takes."""
        return self.sizes * (mean / float(self.sizes.mean()))


#: groups -> sizes over time. The grouped count below is one.
SizeSource = Callable[[int], CheckpointSizes]


@dataclass(frozen=True)
class Events:
    """Users as numbers, times in seconds (sorted), and the bytes of all rows together."""

    users: np.ndarray
    times: np.ndarray
    row_bytes: float


def _events(users: list[str], times_us: np.ndarray, what: str) -> Events:
    if len(users) < 2:
        raise ConfigError(f"{what} holds fewer than two events")
    order = np.argsort(times_us, kind="stable")
    codes = np.array([zlib.crc32(str(user).encode()) for user in users], dtype=np.int64)[order]
    row_bytes = float(np.mean([len(str(user).encode()) for user in users])) + ROW_BYTES
    return Events(codes, times_us[order] / 1e6, row_bytes)


def read_with_arrow(path: str | Path, user: str = "user_id", time: str = "ts_us") -> Events:
    """Any Parquet file with a user and a time in microseconds."""
    try:
        table = pq.read_table(path, columns=[user, time])
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(f"cannot read {path}: {str(error).splitlines()[0]}") from None
    return _events(table[user].to_pylist(), table[time].to_numpy().astype(np.float64), str(path))


def read_with_spark(path: str | Path, user: str = "user_id", time: str = "ts_us", master: str = "local[1]") -> Events:
    """The same through Spark, which reads whatever Spark reads as Parquet."""
    from holdfast.jvm import borrowed

    with borrowed("holdfast-sizes", master) as spark:
        rows = spark.read.parquet(str(path)).select(user, time).toArrow()
    return _events(rows[user].to_pylist(), rows[time].to_numpy().astype(np.float64), str(path))


def grouped_count_sizes(events: Events, groups: int, *, window_s: float = 3600.0, points: int = 192) -> CheckpointSizes:
    """Run count by (user mod groups) over a sliding window; the bytes of all its state at each of `points` moments."""
    from holdfast.operators import START, Agg, Window, WindowAggregate

    if groups < 1:
        raise ConfigError(f"groups must be at least 1, not {groups}")
    step_us = max(1, int(window_s * 1e6) // PANES)
    schema = pa.schema([("ts", pa.timestamp("us", tz="UTC")), ("key", pa.int64())])
    operator = WindowAggregate(
        "sizes",
        schema,
        event_time="ts",
        window=Window(PANES * step_us, step_us),
        by=["key"],
        aggs={"events": Agg("count")},
    )
    keys = events.users % groups
    times_us = np.round(events.times * 1e6).astype(np.int64)
    first, last = int(times_us[0]), int(times_us[-1])
    moments = np.linspace(first + min(int(window_s * 1e6), (last - first) // 2), last, points).astype(np.int64)
    sizes, done = [], 0
    for moment, end in zip(moments, np.searchsorted(times_us, moments, side="right"), strict=True):
        arrays = [pa.array(times_us[done:end]).view(schema.field("ts").type), pa.array(keys[done:end])]
        operator.process(pa.RecordBatch.from_arrays(arrays, schema=schema))
        operator.on_watermark(int(moment))
        operator.skip()
        sizes.append(len(operator.chunk(START, 1 << 62)[0].to_bytes()))
        done = int(end)
    rate = len(keys) * events.row_bytes / max((last - first) / 1e6, 1e-9)
    return CheckpointSizes(np.array(sizes, dtype=np.float64), rate)

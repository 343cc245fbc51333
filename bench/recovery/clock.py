"""A source that makes rows by the wall clock: row n belongs to the moment start + n / rate, and can be made again.

Both systems read it, so both see the same rows at the same rate, and whoever was away finds the backlog waiting.
Keys are skewed (a third of the rows in 1% of the keys); every value is a hash of the row's number.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

SCHEMA = "ts timestamp, src long, bytes long"
#: Fewer rows are one task's: starting a second costs more than it saves.
TASK_ROWS_MIN = 50_000
_ARROW = pa.schema([("ts", pa.timestamp("us", tz="UTC")), ("src", pa.int64()), ("bytes", pa.int64())])


def rows(first: int, last: int, *, start_us: int, rate: int, keys: int) -> pa.RecordBatch:
    """Rows first..last-1."""
    number = np.arange(first, last, dtype=np.uint64)
    mixed = (number + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(31)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(29)
    uniform = (mixed >> np.uint64(11)).astype(np.float64) / float(1 << 53)
    source = (keys * uniform**4).astype(np.int64)
    micros = start_us + (number.astype(np.int64) * 1_000_000) // rate
    size = (mixed & np.uint64(1023)).astype(np.int64) + 40
    return pa.RecordBatch.from_arrays([pa.array(micros).view(_ARROW.field(0).type), source, size], schema=_ARROW)


class ClockSource(DataSource):
    """`format("clock")`: options start_us, rate (rows a second), keys; pause: while this file exists, no row comes."""

    @classmethod
    def name(cls) -> str:
        return "clock"

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema) -> ClockReader:
        return ClockReader(self.options)


class Span(InputPartition):
    def __init__(self, first: int, last: int) -> None:
        self.first = first
        self.last = last


class ClockReader(DataSourceStreamReader):
    def __init__(self, options) -> None:
        self.start_us = int(options["start_us"])
        self.rate = int(options["rate"])
        self.keys = int(options["keys"])
        #: Rows of one batch at most: a backlog is worked off in pieces.
        self.most = int(options.get("most", 10 * self.rate))
        self.pause = options.get("pause", "")

    def initialOffset(self) -> dict:
        return {"row": 0}

    def latestOffset(self, start: dict, limit) -> dict:
        if self.pause and os.path.exists(self.pause):
            return start
        passed_us = int(time.time() * 1_000_000) - self.start_us
        now = max(0, passed_us * self.rate // 1_000_000)
        return {"row": max(start["row"], min(now, start["row"] + self.most))}

    def partitions(self, start: dict, end: dict) -> list[Span]:
        if end["row"] - start["row"] < TASK_ROWS_MIN:
            return [Span(start["row"], end["row"])]
        middle = (start["row"] + end["row"]) // 2
        return [Span(start["row"], middle), Span(middle, end["row"])]

    def read(self, partition: Span) -> Iterator[pa.RecordBatch]:
        yield rows(partition.first, partition.last, start_us=self.start_us, rate=self.rate, keys=self.keys)

    def commit(self, end: dict) -> None:
        del end

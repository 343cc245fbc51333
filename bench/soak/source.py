"""The rows of the soak: those of bench/recovery by the wall clock, a few of them late, and an end.

The stream goes on until a file says how many rows there are in all: how long a start takes is not known before. Row n
is a function of n, so the stream and the batch that `verify` reads are the same rows. One in LATE_EVERY carries a time
LATE_US before its turn: most of those are late, and the files of late rows have something to hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from bench.recovery.clock import SCHEMA, ClockReader, Span, rows

LATE_EVERY, LATE_US = 10_000, 20_000_000
#: Rows of one task of the batch.
TASK_ROWS = 1_000_000


def soaked(first: int, last: int, *, start_us: int, rate: int, keys: int) -> pa.RecordBatch:
    """Rows first..last-1."""
    made = rows(first, last, start_us=start_us, rate=rate, keys=keys)
    micros = made.column(0).cast(pa.int64()).to_numpy().copy()
    micros[-first % LATE_EVERY :: LATE_EVERY] -= LATE_US
    return made.set_column(0, made.schema.field(0), pa.array(micros).view(made.schema.field(0).type))


class SoakSource(DataSource):
    """`format("soak")`: options start_us, rate (rows a second), keys, end (the file with the number of rows)."""

    @classmethod
    def name(cls) -> str:
        return "soak"

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema) -> SoakStream:
        return SoakStream(self.options)

    def reader(self, schema) -> SoakBatch:
        return SoakBatch(self.options)


class SoakStream(ClockReader):
    def __init__(self, options) -> None:
        super().__init__(options)
        self.end = Path(options["end"])

    def latestOffset(self, start: dict, limit) -> dict:
        row = super().latestOffset(start, limit)["row"]
        return {"row": min(row, int(self.end.read_text())) if self.end.exists() else row}

    def read(self, partition: Span) -> Iterator[pa.RecordBatch]:
        yield soaked(partition.first, partition.last, start_us=self.start_us, rate=self.rate, keys=self.keys)


class SoakBatch(DataSourceReader):
    """All rows at once."""

    def __init__(self, options) -> None:
        self.numbers = {name: int(options[name]) for name in ("start_us", "rate", "keys")}
        self.total = int(Path(options["end"]).read_text())

    def partitions(self) -> list[InputPartition]:
        return [Span(first, min(first + TASK_ROWS, self.total)) for first in range(0, self.total, TASK_ROWS)]

    def read(self, partition: Span) -> Iterator[pa.RecordBatch]:  # pyright: ignore[reportIncompatibleMethodOverride]
        yield soaked(partition.first, partition.last, **self.numbers)

"""Small Arrow batches, and rows that can be compared."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from holdfast.operators import END, FOREVER, START, Chunk, Join, StatefulOperator, WindowAggregate
from holdfast.state import checkpoint
from holdfast.state.checkpoint import Checkpoint

TIME = pa.timestamp("us", tz="UTC")
SECOND = 1_000_000


def batch(schema: pa.Schema, *columns: Sequence[Any]) -> pa.RecordBatch:
    """A batch from columns of Python values, in the order of the schema."""
    arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def tidy(value: Any) -> Any:
    """NaN as a word, so that it equals itself, and -0.0 as 0.0."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value


def rows(table: pa.Table | pa.RecordBatch) -> list[tuple]:
    """Rows as tuples in the order in which they came; times as microseconds, which know no year 9999."""
    columns = []
    for name in table.schema.names:
        column = table.column(name)
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.int64())
        columns.append([tidy(v) for v in column.to_pylist()])
    return list(zip(*columns, strict=True)) if columns else []


def saved(operator: StatefulOperator) -> bytes:
    """A full paged checkpoint of an operator, as bytes."""
    out = io.BytesIO()
    snapshot, meta = operator.snapshot()
    checkpoint.write(snapshot, out, meta)
    return out.getvalue()


def copy_into(operator: StatefulOperator, fresh: StatefulOperator, *, lazy: bool = False) -> StatefulOperator:
    """`fresh` becomes what `operator` is, by way of a paged checkpoint."""
    fresh.restore([Checkpoint.of_bytes(saved(operator))], lazy=lazy)
    return fresh


def brought_up(primary: StatefulOperator, image: StatefulOperator, bytes_max: int = 1 << 20) -> StatefulOperator:
    """`image` becomes an image of `primary` as it is now, by chunks of so many bytes, all of one moment."""
    primary.skip()
    cursor = START
    while True:
        chunk, cursor = primary.chunk(cursor, bytes_max)
        image.paste_chunk(Chunk.from_bytes(chunk.to_bytes()))
        if cursor == END:
            return image


def finish(operator: StatefulOperator) -> list[tuple]:
    """What an operator still has to say."""
    if isinstance(operator, WindowAggregate):
        return rows(operator.on_watermark(FOREVER))
    assert isinstance(operator, Join)
    return rows(operator.on_watermark(0, FOREVER)) + rows(operator.on_watermark(1, FOREVER))

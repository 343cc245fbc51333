"""Dead letters of a real shard: rows of any schema as text, each with what it was and why it was set aside.

They travel and are kept as Arrow rows of one schema, whatever they were, so that a block can hold results and input
rows together. In the files (`runtime/disk/letters.py`) each is a line of JSON.
"""

from __future__ import annotations

import json
from datetime import date, datetime
from typing import Any

import pyarrow as pa

from holdfast.runtime.net.rows import ArrowRows

SCHEMA = pa.schema([("what", pa.string()), ("reason", pa.string()), ("row", pa.string())])
RESULT, INPUT = "result", "input row"


class Letters:
    """What one step has set aside so far."""

    def __init__(self) -> None:
        self._what: list[str] = []
        self._reasons: list[str] = []
        self._rows: list[str] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, what: str, table: pa.Table, reasons: list[str]) -> None:
        self._what += [what] * table.num_rows
        self._reasons += reasons
        self._rows += as_json(table)

    def rows(self) -> Any:
        """As an operator hands them over."""
        if not self._rows:
            return ()
        return ArrowRows([pa.record_batch([self._what, self._reasons, self._rows], schema=SCHEMA)])


def as_json(table: pa.Table) -> list[str]:
    """Each row as an object. Nothing of it is lost: numbers are exact, bytes are hexadecimal, and times that no
    calendar has are microseconds since 1970."""
    columns = [_values(column) for column in table.columns]
    names = table.column_names
    return [json.dumps(dict(zip(names, row, strict=True)), default=_plain) for row in zip(*columns, strict=True)]


def _values(column: pa.ChunkedArray) -> list[Any]:
    try:
        return column.to_pylist()
    except (ValueError, OverflowError):
        return column.cast(pa.int64()).to_pylist()


def _plain(value: Any) -> str:
    if isinstance(value, datetime | date):
        return value.isoformat()
    return value.hex() if isinstance(value, bytes) else str(value)


def first_reason(rows: Any) -> str:
    """Why the first of these was set aside."""
    return rows.batches[0].column("reason")[0].as_py() if isinstance(rows, ArrowRows) and len(rows) else ""

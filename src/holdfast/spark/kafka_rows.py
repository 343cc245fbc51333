"""Rows as the records of a topic: keys and values of a whole table by Arrow's kernels, no Python for each row.

JSON is written so that Spark's `from_json`, with the schema of the results, gives the same rows back: times as ISO 8601
with microseconds, in UTC where they have a zone; what is not a number as "NaN", "Infinity", "-Infinity"; nulls as null.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.compute

from holdfast.pipeline.kafka import Columns, KafkaTarget

#: Its functions are made when it is imported: no checker of types can see them.
pc: Any = pyarrow.compute
_CONTROLS = [chr(code) for code in range(32)]


def records_of(target: KafkaTarget, table: pa.Table) -> tuple[list[bytes | None], list[bytes | None]]:
    """Keys and values."""
    columns: Columns = target.in_json(table.schema.names) or target.value
    keys = _bytes(table, target.key) if target.key is not None else [None] * table.num_rows
    return keys, _bytes(table, columns)


def _bytes(table: pa.Table, columns: Columns) -> list[bytes | None]:
    if isinstance(columns, str):
        found = as_text(table[columns])
    else:
        found = as_json(table, columns or ())
    return found.cast(pa.binary()).to_pylist()


def as_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """One column as it is; what is neither text nor bytes as JSON has it, without quotes."""
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        return column
    return _plain(column)


def as_json(table: pa.Table, columns: tuple[str, ...]) -> pa.ChunkedArray:
    """An object for each row."""
    if not table.num_rows:
        return pa.chunked_array([], pa.string())
    parts: list[pa.ChunkedArray | pa.Scalar] = []
    for number, name in enumerate(columns):
        before = "," if number else "{"
        parts.append(pa.scalar(f"{before}{json.dumps(name, ensure_ascii=False)}:"))
        parts.append(pc.fill_null(_member(table[name]), "null"))
    return pc.binary_join_element_wise(*parts, pa.scalar("}"), pa.scalar(""))


def _member(column: pa.ChunkedArray) -> pa.ChunkedArray:
    type_ = column.type
    if pa.types.is_string(type_):
        return _quoted(_escaped(column))
    if pa.types.is_temporal(type_):
        return _quoted(_plain(column))
    if pa.types.is_floating(type_):
        return pc.if_else(pc.is_finite(column), _plain(column), _quoted(_plain(column)))
    return _plain(column)


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    text = pc.cast(column, pa.string())
    if pa.types.is_timestamp(column.type):
        return pc.replace_substring(text, " ", "T", max_replacements=1)
    if pa.types.is_floating(column.type) and not pc.all(pc.is_finite(column), min_count=0).as_py():
        text = pc.if_else(pc.is_nan(column), "NaN", text)
        endless = pc.is_inf(column)
        text = pc.if_else(pc.and_(endless, pc.greater(column, 0)), "Infinity", text)
        text = pc.if_else(pc.and_(endless, pc.less(column, 0)), "-Infinity", text)
    return text


def _quoted(text: pa.ChunkedArray) -> pa.ChunkedArray:
    quote = pa.scalar('"')
    return pc.binary_join_element_wise(quote, text, quote, pa.scalar(""))


def _escaped(text: pa.ChunkedArray) -> pa.ChunkedArray:
    text = pc.replace_substring(text, "\\", "\\\\")
    text = pc.replace_substring(text, '"', '\\"')
    if pc.any(pc.match_substring_regex(text, "[\\x00-\\x1f]"), min_count=0).as_py():
        for control in _CONTROLS:
            text = pc.replace_substring(text, control, json.dumps(control)[1:-1])
    return text

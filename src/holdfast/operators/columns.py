"""Arrow columns as words of a record, and back.

Every type takes whole 64-bit words, the same in a batch, in the state, in a capture and on disk:

    boolean, integers, date, timestamp    1 word, signed
    float, double                         1 word, the bits of a double
    decimal                               2 words, two's complement, low word first
    string, binary                        2 words (see `state/heap.py`)

Null is a bit elsewhere; the words of a null are zero. Keys are made canonical the way Spark's GROUP BY and join do it:
-0.0 becomes 0.0 and every NaN the same NaN, so that equal keys are equal words.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit
from numpy.typing import NDArray

from holdfast.errors import ConfigError, InputError
from holdfast.state import hashmap
from holdfast.state.heap import LONG_BYTES_MAX, SHORT_BYTES_MAX, pack_value, value_copy_out, value_length
from holdfast.state.keys import PLAIN, VAR0, VAR1, Keys, make_keys

#: A map has null bits for so many columns, and the pane takes one.
KEY_COLUMNS_MAX = hashmap.KEY_COLUMNS_MAX - 1


@dataclass(frozen=True)
class Column:
    """A column of a stream: its name and type, and how it is held."""

    name: str
    type: pa.DataType

    @property
    def is_var(self) -> bool:
        t = self.type
        return (
            pa.types.is_string(t) or pa.types.is_binary(t) or pa.types.is_large_string(t) or pa.types.is_large_binary(t)
        )

    @property
    def is_large(self) -> bool:
        return pa.types.is_large_string(self.type) or pa.types.is_large_binary(self.type)

    @property
    def is_decimal(self) -> bool:
        return pa.types.is_decimal128(self.type)

    @property
    def is_float(self) -> bool:
        return pa.types.is_float32(self.type) or pa.types.is_float64(self.type)

    @property
    def is_integral(self) -> bool:
        return pa.types.is_signed_integer(self.type)

    @property
    def kinds(self) -> tuple[int, ...]:
        if self.is_var:
            return (VAR0, VAR1)
        return (PLAIN, PLAIN) if self.is_decimal else (PLAIN,)

    @property
    def words(self) -> int:
        return len(self.kinds)


def column_of(schema: pa.Schema, name: str, operator: str) -> Column:
    """The column of this name, if the state can hold it."""
    if name not in schema.names:
        raise ConfigError(
            f"{operator}: no column named {name!r}",
            detail=f"The input has {', '.join(schema.names)}.",
            hint="Names are case-sensitive.",
        )
    column = Column(name, schema.field(name).type)
    t = column.type
    held = (
        column.is_var
        or column.is_decimal
        or column.is_float
        or column.is_integral
        or pa.types.is_boolean(t)
        or pa.types.is_date32(t)
        or (pa.types.is_timestamp(t) and t.unit == "us")
    )
    if not held:
        raise ConfigError(
            f"{operator}: column {name!r} has a type that state cannot hold",
            detail=f"It is {t}.",
            hint="Cast it to boolean, an integer, float, double, decimal, date, timestamp (us), string or binary.",
        )
    return column


def quoted(name: str) -> str:
    """A column's name in Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def check_schema(batch: pa.RecordBatch, columns: list[Column], operator: str) -> None:
    """A batch must have the columns that were promised, with their types."""
    if not isinstance(batch, pa.RecordBatch):
        raise InputError(
            f"{operator}: the input is not a record batch",
            detail=f"It is a {type(batch).__name__}.",
            hint="Give an operator the batches of a table one by one: table.combine_chunks().to_batches().",
        )
    for column in columns:
        index = batch.schema.get_field_index(column.name)
        found = batch.schema.field(index).type if index >= 0 else None
        if found != column.type:
            raise InputError(
                f"{operator}: the input's schema has changed",
                detail=f"Column {column.name!r} should be {column.type}, is {found or 'missing'}.",
                hint="The batch was refused whole. Deploy a pipeline with the new schema.",
            )


def valid_of(array: pa.Array) -> NDArray[np.bool_]:
    if array.null_count == 0:
        return np.ones(len(array), np.bool_)
    return array.is_valid().to_numpy(zero_copy_only=False)


def encode(array: pa.Array, column: Column, *, key: bool = False) -> NDArray[np.int64]:
    """The words of a column, (rows, words); long strings refer to the array's own buffer, which must stay alive."""
    if column.is_var:
        return _encode_var(array, column)
    if column.is_decimal:
        buffer = array.buffers()[1]
        words = np.frombuffer(buffer, np.int64).reshape(-1, 2)[array.offset : array.offset + len(array)]
        return np.where(valid_of(array)[:, None], words, 0) if array.null_count else words.copy()
    if column.is_float:
        filled = array.fill_null(0.0) if array.null_count else array
        values = filled.to_numpy(zero_copy_only=False).astype(np.float64)
        if key:
            values = values + 0.0  # -0.0 + 0.0 is 0.0
            values[np.isnan(values)] = np.nan
        return values.view(np.int64).reshape(-1, 1)
    if pa.types.is_timestamp(column.type):
        array = array.view(pa.int64())
    elif pa.types.is_date32(column.type):
        array = array.view(pa.int32())
    filled = array.fill_null(False if pa.types.is_boolean(array.type) else 0) if array.null_count else array
    return filled.to_numpy(zero_copy_only=False).astype(np.int64).reshape(-1, 1)


def _encode_var(array: pa.Array, column: Column) -> NDArray[np.int64]:
    n = len(array)
    words = np.zeros((n, 2), np.int64)
    if n == 0 or array.null_count == n:
        return words
    buffers = array.buffers()
    offsets = np.frombuffer(buffers[1], np.int64 if column.is_large else np.int32)[array.offset : array.offset + n + 1]
    longest = int((offsets[1:] - offsets[:-1]).max())
    if longest > LONG_BYTES_MAX:
        row = int((offsets[1:] - offsets[:-1]).argmax())
        raise InputError(
            f"column {column.name!r} has a value that is too long for state",
            detail=f"Row {row} of the batch has {longest} bytes; the limit is {LONG_BYTES_MAX}.",
            hint="Shorten it in the stage, for example with substring() or sha2().",
        )
    data = buffers[2].address if buffers[2] is not None else 0
    _pack_column(offsets, data, valid_of(array), words)
    return words


@njit(cache=True, nogil=True)
def _pack_column(offsets, data, valid, out):
    base = out.ctypes.data
    for i in range(len(valid)):
        if valid[i]:
            pack_value(data + offsets[i], np.int64(offsets[i + 1] - offsets[i]), base + 16 * i)


def long_bytes(words: NDArray[np.int64]) -> int:
    """Bytes of the long values among the two words of a variable-length column."""
    first = words[:, 0]
    return int(((first >> 8) & 0xFFFFFF)[(first & 0xFF) > SHORT_BYTES_MAX].sum())


def pack_keys(
    batch: pa.RecordBatch, columns: list[Column], first: NDArray[np.int64] | None, kinds: tuple[int, ...]
) -> tuple[Keys, list[pa.Array]]:
    """Keys of a batch; `first` is a leading plain word (the pane). Also the arrays they refer to."""
    n = batch.num_rows
    words = np.empty((n, len(kinds)), np.int64)
    nulls = np.zeros(n, np.int64)
    at = 0
    if first is not None:
        words[:, 0] = first
        at = 1
    arrays = []
    for i, column in enumerate(columns):
        array = batch.column(column.name)
        arrays.append(array)
        words[:, at : at + column.words] = encode(array, column, key=True)
        if array.null_count:
            nulls |= (~valid_of(array)).astype(np.int64) << i
        at += column.words
    return make_keys(words, nulls, kinds, arrays), arrays


def shards_of(keys: Keys, shards: int) -> NDArray[np.int64]:
    """The shard of each key: the same whoever cuts, rows in a stage or the state at an upgrade."""
    # the upper half: maps take their buckets from the lower bits, and a shard should fill all of its own
    return ((keys.hashes >> np.uint64(32)) % np.uint64(shards)).astype(np.int64)


@njit(cache=True, nogil=True)
def _lengths(words, offsets):
    for i in range(len(words)):
        offsets[i + 1] = offsets[i] + value_length(words[i, 0])


@njit(cache=True, nogil=True)
def _copy_out(pool, heap, words, offsets, out):
    base = out.ctypes.data
    for i in range(len(words)):
        value_copy_out(pool, heap, words[i, 0], words[i, 1], base + offsets[i])


def decode(
    words: NDArray[np.int64], null: NDArray[np.bool_] | None, column: Column, pool: int = 0, heap: int = 0
) -> pa.Array:
    """A column from its words; long strings are read from the heap (or from their addresses: heap 0)."""
    n = len(words)
    mask = pa.array(~null).buffers()[1] if null is not None and null.any() else None
    nulls = int(null.sum()) if null is not None else 0
    if column.is_var:
        offsets = np.zeros(n + 1, np.int64)
        _lengths(words, offsets)
        data = np.empty(max(1, int(offsets[-1])), np.uint8)
        _copy_out(pool, heap, words, offsets, data)
        starts = offsets if column.is_large else offsets.astype(np.int32)
        return pa.Array.from_buffers(column.type, n, [mask, pa.py_buffer(starts), pa.py_buffer(data)], nulls)
    if column.is_decimal:
        flat = np.ascontiguousarray(words)
        return pa.Array.from_buffers(column.type, n, [mask, pa.py_buffer(flat)], nulls)
    plain = np.ascontiguousarray(words[:, 0])
    if column.is_float:
        floats = plain.view(np.float64)
        if pa.types.is_float32(column.type):
            floats = floats.astype(np.float32)
        return pa.Array.from_buffers(column.type, n, [mask, pa.py_buffer(floats)], nulls)
    if pa.types.is_boolean(column.type):
        bits = pa.array(plain.astype(np.bool_)).buffers()[1]
        return pa.Array.from_buffers(column.type, n, [mask, bits], nulls)
    narrow = plain.astype(np.dtype(f"i{column.type.bit_width // 8}"))
    return pa.Array.from_buffers(column.type, n, [mask, pa.py_buffer(narrow)], nulls)


def order_of(leading: list[NDArray[np.int64]], columns: list[Column], arrays: list[pa.Array]) -> NDArray[np.int64]:
    """Row numbers in the order of (leading words, key columns): nulls first, NaN last, strings by their bytes."""
    keys: list[NDArray] = list(leading)
    for column, array in zip(columns, arrays, strict=True):
        if array.null_count:
            keys.append(valid_of(array))
        if column.is_var:
            ranks = pc.rank(array, sort_keys="ascending", tiebreaker="dense")  # pyright: ignore[reportAttributeAccessIssue]
            keys.append(ranks.to_numpy().astype(np.int64))
        elif column.is_decimal:
            words = encode(array, column)
            keys += [words[:, 1], words[:, 0].view(np.uint64)]
        elif column.is_float:
            words = encode(array, column, key=True)[:, 0]
            keys.append(np.where(words < 0, words ^ np.int64(0x7FFFFFFFFFFFFFFF), words))
        else:
            keys.append(encode(array, column)[:, 0])
    varying = [k for k in keys if len(k) and k.min() != k.max()]
    if len(varying) == 1:
        return np.argsort(varying[0], kind="stable")
    if not varying:
        return np.arange(len(keys[0]) if keys else 0)
    return np.lexsort(varying[::-1])

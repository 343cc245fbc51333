"""What an operator holds, as Arrow: the state as a person or another program reads it, without closing a window.

    time windows    pane_start, pane_end (timestamps), key, value, overflow          a row for every key and pane
    count windows   pane_start, pane_end (numbers of rows), key, rows, value, overflow        the same
    joins           side, key, matched, value                                         a row for every row that waits

`key` and `value` are structs. The value of a pane has the aggregates as they would come out if a window were that pane
alone; panes are what the state has, and a sliding window is the merge of several (`aggregate.py`). A result that does
not fit its type is null, and `overflow` says which one; where an operator wraps around, its value here does as well.

A key of a count window whose rows have all come out has no pane, only a count: its pane and value are null. A row that
waits in a join has the columns of its own side; the others are null. `matched` is known of the left rows of an outer
join only: nobody else needs it.

Nothing is changed, no row is looked at in Python, and a batch is bounded in bytes, however long a text may be.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from holdfast.operators.aggregate import TIME, WindowAggregate
from holdfast.operators.aggregates import Overflow
from holdfast.operators.aside import WRAP
from holdfast.operators.columns import Column, decode
from holdfast.operators.count_window import CountWindowAggregate
from holdfast.operators.join import LEFT, Join
from holdfast.operators.join_rows import MATCHED, NULLS
from holdfast.operators.program import Program
from holdfast.state.hashmap import HashMap
from holdfast.state.heap import extract_long, point_to
from holdfast.state.keys import Keys, make_keys
from holdfast.state.scan import records_from
from holdfast.state.slots import SlotStore

#: What one batch is made from; a single record may be larger.
BATCH_BYTES = 4 << 20
SIDES = ("left", "right")
_LOW4 = 0xFFFFFFFF

Operator = WindowAggregate | CountWindowAggregate | Join


def contents_schema(op: Operator) -> pa.Schema:
    match op:
        case Join():
            shown = [("side", pa.string()), ("key", _struct(list(_join_keys(op)))), ("matched", pa.bool_())]
            return pa.schema([*shown, ("value", _struct([c for side in op.sides for c in side.columns]))])
        case WindowAggregate():
            at, counted = TIME, []
        case CountWindowAggregate():
            at, counted = pa.int64(), [("rows", pa.int64())]
        case _:
            assert_never(op)
    pane = [("pane_start", at), ("pane_end", at), ("key", _struct(op.keys)), *counted]
    return pa.schema([*pane, ("value", _struct(op.program.results())), ("overflow", pa.string())])


def contents(op: Operator, bytes_max: int = BATCH_BYTES) -> Iterator[pa.RecordBatch]:
    """Everything that it holds now, in no order; it must not change meanwhile."""
    match op:
        case Join():
            yield from _waiting(op, bytes_max)
        case WindowAggregate():
            yield from _panes_of_time(op, bytes_max)
        case CountWindowAggregate():
            yield from _panes_of_rows(op, bytes_max)
            yield from _keys_without_panes(op, bytes_max)
        case _:
            assert_never(op)


def _records(slots: SlotStore, bytes_max: int) -> Iterator[NDArray[np.int64]]:
    """All words of all records, some at a time."""
    start = 0
    while start >= 0:
        rids, start, _ = records_from(slots, start, bytes_max, at_least=1)
        if len(rids):
            yield slots.gather(rids, 0, slots.record_words)


# --- structs


def _struct(columns: list[Column]) -> pa.StructType:
    return pa.struct([pa.field(c.name, c.type) for c in columns])


def _structs(arrays: list[pa.Array], type_: pa.StructType, rows: int) -> pa.Array:
    if not arrays:  # an operator without a key: Arrow could not tell how many there are
        return pa.Array.from_buffers(type_, rows, [None])
    return pa.StructArray.from_arrays(arrays, fields=list(type_))


def _keys(words: NDArray[np.int64], at: int, columns: list[Column], slots: SlotStore) -> list[pa.Array]:
    """Key columns of records, whose words begin at `at`."""
    out = []
    for i, column in enumerate(columns):
        null = (words[:, 0] >> i) & 1 != 0
        out.append(decode(words[:, at : at + column.words], null, column, slots.pool.at, slots.heap.at))
        at += column.words
    return out


# --- aggregates


def _values(
    program: Program, words: NDArray[np.int64], overflow: str, slots: SlotStore
) -> tuple[list[pa.Array], pa.Array]:
    """Results of states, and which one does not fit."""
    arrays, over = program.finish(words, slots.pool.at, slots.heap.at)
    if overflow == WRAP or not over:
        return arrays, pa.nulls(len(words), pa.string())
    return _without(program.names, arrays, over)


def _without(
    names: list[str], arrays: list[pa.Array], overflows: list[tuple[str, Overflow]]
) -> tuple[list[pa.Array], pa.Array]:
    """Null in place of what does not fit: the words of such a sum have lost digits, or are of another number."""
    arrays = list(arrays)
    texts = np.full(len(arrays[0]), None, object)
    for name, (where, type_) in reversed(overflows):  # the first that does not fit is told
        i = names.index(name)
        arrays[i] = pc.if_else(pa.array(where), pa.scalar(None, arrays[i].type), arrays[i])  # pyright: ignore[reportAttributeAccessIssue]
        texts[where] = f"{name} does not fit {type_}"
    return arrays, pa.array(texts, pa.string())


def _panes_of_time(op: WindowAggregate, bytes_max: int) -> Iterator[pa.RecordBatch]:
    schema, slots, pane = contents_schema(op), op.state.map.slots, op.window.pane_us
    for words in _records(slots, bytes_max):
        n = len(words)
        times = [pa.array((words[:, 1] + end) * pane, pa.int64()).view(TIME) for end in (0, 1)]
        key = _structs(_keys(words, 2, op.keys, slots), schema.field("key").type, n)
        results, over = _values(op.program, _states(words, op.state.map), op.overflow, slots)
        value = _structs(results, schema.field("value").type, n)
        yield pa.RecordBatch.from_arrays([*times, key, value, over], schema=schema)


def _states(words: NDArray[np.int64], map_: HashMap) -> NDArray[np.int64]:
    return np.ascontiguousarray(words[:, 1 + map_.layout.key_words :])


def _panes_of_rows(op: CountWindowAggregate, bytes_max: int) -> Iterator[pa.RecordBatch]:
    schema, slots = contents_schema(op), op.panes.slots
    kinds = op.counts.layout.kinds
    for words in _records(slots, bytes_max):
        n = len(words)
        ends = [pa.array((words[:, 1] + end) * op.window.pane) for end in (0, 1)]
        key = _structs(_keys(words, 2, op.keys, slots), schema.field("key").type, n)
        results, over = _values(op.program, _states(words, op.panes), op.overflow, slots)
        value = _structs(results, schema.field("value").type, n)
        found = op.counts.find(_packed(words, 2, kinds, slots))
        rows = op.counts.slots.gather(found, 1 + len(kinds), 1)[:, 0]
        yield pa.RecordBatch.from_arrays([*ends, key, pa.array(rows), value, over], schema=schema)


def _keys_without_panes(op: CountWindowAggregate, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """The pane of its last row is the last one of a key that goes."""
    schema, slots = contents_schema(op), op.counts.slots
    kinds = op.counts.layout.kinds
    for words in _records(slots, bytes_max):
        rows = words[:, 1 + len(kinds)]
        keys = _packed(words, 1, kinds, slots)
        pane_words = np.column_stack([(rows - 1) // op.window.pane, keys.words])
        found = op.panes.find(make_keys(pane_words, keys.nulls, op.panes.layout.kinds, keys.owner))
        words, rows = words[found < 0], rows[found < 0]
        n = len(words)
        if not n:
            continue
        key = _structs(_keys(words, 1, op.keys, slots), schema.field("key").type, n)
        nulls = {name: pa.nulls(n, schema.field(name).type) for name in schema.names}
        columns = {**nulls, "key": key, "rows": pa.array(rows)}
        yield pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _packed(words: NDArray[np.int64], at: int, kinds: tuple[int, ...], slots: SlotStore) -> Keys:
    """Keys of records, to look them up in another map: their long values are copied, as those of a batch."""
    words = words.copy()
    blob = extract_long(slots.pool.at, slots.heap.at, words, slots.var_at)
    point_to(words, slots.var_at, blob)
    return make_keys(words[:, at : at + len(kinds)], words[:, 0] & _LOW4, kinds, blob)


# --- joins


def _join_keys(op: Join) -> dict[Column, tuple[str, str]]:
    """Columns of the key -> what they are called on either side. A column of the left side may be compared with
    several of the right one: then the further ones have the name that they have there."""
    found: dict[Column, tuple[str, str]] = {}
    for left, right in zip(*(side.keys for side in op.sides), strict=True):
        found.setdefault(left if left not in found else right, (left.name, right.name))
    return found


def _waiting(op: Join, bytes_max: int) -> Iterator[pa.RecordBatch]:
    schema = contents_schema(op)
    type_, pairs = schema.field("value").type, _join_keys(op).values()
    for which, side in enumerate(op.sides):
        for words in _records(side.rows, bytes_max):
            n = len(words)
            arrays = side.decode(words, op.pool.at, side.rows.heap.at)
            held = {column.name: array for column, array in zip(side.columns, arrays, strict=True)}
            key = _structs([held[pair[which]] for pair in pairs], schema.field("key").type, n)
            matched = pa.nulls(n, pa.bool_())
            if op.outer and which == LEFT:
                matched = pa.array(words[:, NULLS] & MATCHED != 0)
            columns = [held[f.name] if f.name in held else pa.nulls(n, f.type) for f in type_]
            name = pa.repeat(pa.scalar(SIDES[which]), n)
            yield pa.RecordBatch.from_arrays([name, key, matched, _structs(columns, type_, n)], schema=schema)

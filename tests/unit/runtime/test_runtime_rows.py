"""Rows as the core hands them around, and how keys are cut into shards."""

from __future__ import annotations

import math
from functools import reduce
from operator import add

import pyarrow as pa
import pytest

from holdfast.errors import ConfigError, InputError
from holdfast.runtime.net.rows import ArrowRows, batches_of
from holdfast.runtime.shards import cut


def rows(*values: int) -> ArrowRows:
    return ArrowRows([pa.record_batch({"a": pa.array(values, pa.int64())})])


def test_rows_are_put_together_with_plus_and_the_empty_tuple_is_none():
    both = reduce(add, [rows(1, 2), (), rows(3), ()], ())
    assert len(both) == 3
    assert both.table()["a"].to_pylist() == [1, 2, 3]
    assert batches_of(()) == ()


def test_rows_of_two_schemas_are_refused():
    with pytest.raises(InputError, match="two schemas"):
        rows(1) + ArrowRows([pa.record_batch({"b": [1]})])


def test_empty_rows_keep_their_schema():
    empty = ArrowRows([], pa.schema([("a", pa.int64())]))
    assert len(empty) == 0
    assert ArrowRows.from_ipc(empty.to_ipc()).schema == empty.schema
    assert len(empty + rows(1)) == 1


def test_spilled_rows_come_back_when_looked_at():
    one = rows(1, 2, 3)
    raw = one.to_ipc().to_pybytes()
    spilled = one.on_disk(lambda: raw)
    assert (spilled.nbytes, len(spilled), spilled.schema) == (0, 3, one.schema)
    assert spilled.table()["a"].to_pylist() == [1, 2, 3]
    assert (spilled + rows(4)).table()["a"].to_pylist() == [1, 2, 3, 4]
    assert spilled.nbytes == 0
    assert one.nbytes > 0


def test_damaged_rows_are_an_input_error():
    raw = rows(1, 2, 3).to_ipc().to_pybytes()
    for bad in (raw[:20], b"", b"x" * 100):
        with pytest.raises(InputError, match="cannot be read"):
            ArrowRows.from_ipc(bad)


def test_a_key_goes_to_one_shard_in_the_order_of_its_rows():
    batch = pa.record_batch({"k": [f"key {i % 17}" for i in range(200)], "i": list(range(200))})
    parts = cut(batch, ("k",), 5)
    assert sum(p.num_rows for p in parts) == 200
    seen: dict[str, int] = {}
    for number, part in enumerate(parts):
        assert part.column("i").to_pylist() == sorted(part.column("i").to_pylist())
        for key in part.column("k").to_pylist():
            assert seen.setdefault(key, number) == number


def test_keys_that_are_equal_in_sql_are_equal_here():
    batch = pa.record_batch({"k": pa.array([0.0, -0.0, math.nan, -math.nan, None, None])})
    parts = cut(batch, ("k",), 64)
    assert sorted(p.num_rows for p in parts if p.num_rows) in ([2, 2, 2], [2, 4], [6])


def test_a_slice_is_cut_like_a_copy():
    batch = pa.record_batch({"k": [f"k{i}" for i in range(50)]})
    whole = [p.column("k").to_pylist() for p in cut(batch.slice(10, 20), ("k",), 4)]
    copy = pa.record_batch({"k": [f"k{i}" for i in range(10, 30)]})
    assert whole == [p.column("k").to_pylist() for p in cut(copy, ("k",), 4)]


def test_no_key_means_one_shard_and_no_shard_is_an_error():
    batch = pa.record_batch({"a": [1, 2]})
    assert [p.num_rows for p in cut(batch, (), 3)] == [2, 0, 0]
    with pytest.raises(ConfigError):
        cut(batch, ("a",), 0)


def test_a_part_of_rows_is_those_rows_and_the_whole_is_the_same_object():
    rows = ArrowRows([pa.record_batch({"a": [1, 2]}), pa.record_batch({"a": [3, 4, 5]})])
    assert rows[1:4].table().to_pydict() == {"a": [2, 3, 4]}
    assert rows[0:9] is rows
    assert len(ArrowRows.from_ipc(rows[1:4].to_ipc())) == 3

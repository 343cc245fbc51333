"""The ordered map: entries in key order, whatever the order in which they came and went."""

from __future__ import annotations

import numpy as np
import pytest
from state_tools import INT, TEXT, check_pool, int_keys, keys_of, load_pool, save, small_pool

from holdfast.errors import MemoryLimitError
from holdfast.state.ordered import OrderedMap


def _values(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64).reshape(-1, 1)


def _items(o: OrderedMap) -> list[tuple[int, int]]:
    return [(int(k), int(v)) for k, v in o.entries()]


def test_entries_come_out_in_key_order():
    o = OrderedMap(small_pool(256), 1, INT)
    numbers = np.random.default_rng(3).permutation(np.arange(-5000, 5000))
    o.put(int_keys(numbers), numbers.reshape(-1, 1) * 2)
    assert _items(o) == [(i, 2 * i) for i in range(-5000, 5000)]
    assert o.rank(int_keys([17])) == 5017
    values, found = o.get(int_keys([-5000, 4999, 5000]))
    assert found.tolist() == [True, True, False]
    assert values[:2, 0].tolist() == [-10_000, 9998]
    check_pool(o.pool)


def test_ascending_keys_fill_leaves_to_the_brim():
    o = OrderedMap(small_pool(256), 1, INT)
    o.put(int_keys(range(2520)), _values(*range(2520)))
    assert len(o.leaves) == 10  # 252 entries each


def test_dropping_more_than_there_is_drops_all():
    o = OrderedMap(small_pool(), 1, INT)
    o.drop_first(3)
    o.put(int_keys([1, 2, 3]), _values(1, 2, 3))
    o.drop_first(-1)
    assert len(o) == 3
    o.drop_first(5)
    assert (len(o), len(o.leaves)) == (0, 0)
    o.put(int_keys([7]), _values(8))
    assert _items(o) == [(7, 8)]
    check_pool(o.pool)


def test_a_short_key_whose_last_bytes_look_like_an_error_code_is_a_key():
    o = OrderedMap(small_pool(), 1, TEXT)
    key = b"0123456" + np.int64(-2).tobytes()
    o.put(keys_of([(key,)], TEXT.kinds), _values(5))
    values, found = o.get(keys_of([(key,)], TEXT.kinds))
    assert (found[0], values[0, 0]) == (True, 5)


@pytest.mark.parametrize("lazy", [False, True])
def test_a_restored_map_has_its_leaves_in_order(lazy):
    o = OrderedMap(small_pool(256), 1, TEXT)
    rng = np.random.default_rng(5)
    rows = [(f"{i:0{rng.integers(4, 60)}}",) for i in rng.permutation(3000)]
    o.put(keys_of(rows, TEXT.kinds), _values(*range(3000)))
    o.remove(keys_of(rows[::2], TEXT.kinds))
    back = OrderedMap(load_pool(save(o.pool.snapshot()), lazy=lazy), 1, TEXT)
    _, found = back.get(keys_of(rows, TEXT.kinds))
    assert found.tolist() == [i % 2 == 1 for i in range(3000)]
    assert len(back) == 1500
    back.clear()
    assert (len(back.leaves), len(back.heap_pages)) == (0, 0)
    check_pool(back.pool)


def test_an_entry_that_finds_no_memory_for_its_key_leaves_nothing():
    o = OrderedMap(small_pool(6), 1, TEXT)
    with pytest.raises(MemoryLimitError):
        o.put(keys_of([("x" * 30_000,)], TEXT.kinds), _values(1))
    assert (len(o), len(o.leaves), len(o.heap_pages)) == (0, 0, 0)
    check_pool(o.pool)
    o.put(keys_of([("x" * 10_000,)], TEXT.kinds), _values(1))
    assert len(o) == 1

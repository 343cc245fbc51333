"""Variable-length values: bytes in, the same bytes out, and memory back when they die."""

from __future__ import annotations

import numpy as np
import pytest
from state_tools import TEXT, check_pool, contents, keys_of, load_pool, put, remove, save, small_pool, value_bytes

from holdfast.state.hashmap import HashMap
from holdfast.state.heap import (
    KIND_HEAP,
    LONG_BYTES_MAX,
    Heap,
    compare_values,
    heap_free,
    heap_put,
    is_long,
    own_value,
    pack_value,
    same_value,
    value_length,
)
from holdfast.state.intrinsics import address
from holdfast.state.pagetable import N

_LENGTHS = [0, 1, 6, 7, 8, 9, 14, 15, 16, 17, 24, 31, 32, 33, 4031, 4032, 4033, 8063, 8064, 8065, 20_000]


def _heap(pages: int = 64, page_bytes: int = 4096) -> Heap:
    return Heap(small_pool(pages, page_bytes).create(7, KIND_HEAP))


def _pack(raw: bytes) -> tuple[int, int, np.ndarray]:
    data = np.frombuffer(raw + b"\xee", np.uint8)  # a byte that must not leak into the value
    words = np.zeros(2, np.int64)
    pack_value(address(data), len(raw), address(words))
    return int(words[0]), int(words[1]), data


def _content(n: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed + n).integers(0, 256, n, np.uint8).tobytes()


@pytest.mark.parametrize("n", _LENGTHS)
def test_a_value_comes_out_as_it_went_in(n):
    heap, raw = _heap(), _content(n)
    w0, w1, data = _pack(raw)
    assert is_long(w0) == (n > 15)
    assert value_length(w0) == n
    if is_long(w0):
        w1 = heap_put(heap.pages.pool.at, heap.at, address(data), n)
    assert value_bytes(heap.pages.pool, heap.at, w0, w1) == raw


def test_the_longest_value_and_the_limit_are_where_the_format_says():
    heap = _heap(pages=5000)
    raw = bytes(LONG_BYTES_MAX)
    w0, _, data = _pack(raw)
    assert value_length(w0) == LONG_BYTES_MAX
    place = heap_put(heap.pages.pool.at, heap.at, address(data), LONG_BYTES_MAX)
    assert value_bytes(heap.pages.pool, heap.at, w0, place) == raw
    heap_free(heap.pages.pool.at, heap.at, place, LONG_BYTES_MAX)
    assert len(heap.pages) == 0


def test_values_that_differ_in_the_last_byte_differ():
    pool = _heap().pages.pool
    for n in _LENGTHS[1:]:
        raw = _content(n)
        a, b = _pack(raw), _pack(raw[:-1] + bytes([raw[-1] ^ 1]))
        assert same_value(pool.at, 0, a[0], a[1], 0, a[0], a[1])
        assert not same_value(pool.at, 0, a[0], a[1], 0, b[0], b[1])


def test_values_with_equal_length_and_hash_are_still_compared_byte_by_byte():
    heap = _heap()
    pool = heap.pages.pool
    for n in (16, 100, 9000):
        a, b = _content(n, 1), bytearray(_content(n, 1))
        b[-1] ^= 0x80
        w0, _, a_data = _pack(a)
        b_data = np.frombuffer(bytes(b), np.uint8)
        place = heap_put(pool.at, heap.at, address(a_data), n)
        assert same_value(pool.at, heap.at, w0, place, 0, w0, address(a_data))
        assert not same_value(pool.at, heap.at, w0, place, 0, w0, address(b_data)), "same word 0, other content"


def test_values_are_ordered_as_their_bytes_are():
    heap = _heap(pages=400)
    pool = heap.pages.pool
    raws = [b"", b"\0", b"\0\0", b"a", b"a\0", b"\xff", b"a" * 15, b"a" * 16, b"a" * 17, b"b" * 15, b"\x80" * 8]
    raws += [_content(n) for n in (5, 15, 16, 40, 5000)] + [b"a" * 9000, b"a" * 8999 + b"b", b"a" * 9001]
    packed = []
    for raw in raws:
        w0, w1, data = _pack(raw)
        place = heap_put(pool.at, heap.at, address(data), len(raw)) if is_long(w0) else w1
        packed.append((w0, w1, place, data))
    for a, x in zip(raws, packed, strict=True):
        for b, y in zip(raws, packed, strict=True):
            want = (a > b) - (a < b)
            assert np.sign(compare_values(pool.at, heap.at, x[0], x[2], 0, y[0], y[1])) == want, (a[:20], b[:20])
            assert np.sign(compare_values(pool.at, 0, x[0], x[1], heap.at, y[0], y[2])) == want, (a[:20], b[:20])


def test_a_copy_of_a_value_of_a_batch_is_equal():
    heap = _heap()
    pool = heap.pages.pool
    for n in (3, 16, 5000):
        raw = _content(n)
        w0, w1, data = _pack(raw)
        assert value_bytes(pool, heap.at, w0, own_value(pool.at, heap.at, w0, w1)) == raw
        assert value_bytes(pool, 0, w0, w1) == raw
        assert data[n] == 0xEE


def test_freeing_the_last_value_of_a_page_releases_it():
    heap = _heap()
    data = np.frombuffer(_content(1000), np.uint8)
    places = [heap_put(heap.pages.pool.at, heap.at, address(data), 1000) for _ in range(20)]
    assert len(heap.pages) == 5
    for place in places[:16]:
        heap_free(heap.pages.pool.at, heap.at, place, 1000)
    assert len(heap.pages) == 1
    check_pool(heap.pages.pool)


def test_putting_and_freeing_for_ever_needs_no_new_page_numbers():
    heap = _heap(pages=16)
    pool = heap.pages.pool
    data = np.frombuffer(_content(20_000), np.uint8)
    for i in range(200):
        n = (20_000, 9000, 100, 4032)[i % 4]
        place = heap_put(pool.at, heap.at, address(data), n)
        assert place >= 0
        w0, _, keep = _pack(data[:n].tobytes())
        assert value_bytes(pool, heap.at, w0, place) == keep[:n].tobytes()
        heap_free(pool.at, heap.at, place, n)
    assert heap.pages.block[N] <= pool.pages_max, "a logical number outside the page table"
    assert len(heap.pages) <= 1
    check_pool(pool)


def test_a_long_value_fits_among_scattered_free_numbers():
    heap = _heap(pages=16)
    pool = heap.pages.pool
    data = np.frombuffer(_content(20_000), np.uint8)
    small = [heap_put(pool.at, heap.at, address(data), 4000) for _ in range(15)]
    for place in small[::2]:
        heap_free(pool.at, heap.at, place, 4000)
    assert heap_put(pool.at, heap.at, address(data), 20_000) >= 0


def test_a_long_value_that_does_not_fit_leaves_nothing_behind():
    heap = _heap(pages=8)
    pool = heap.pages.pool
    data = np.frombuffer(_content(40_000), np.uint8)
    assert heap_put(pool.at, heap.at, address(data), 40_000) == -2
    assert len(heap.pages) == 0
    check_pool(pool)
    assert heap_put(pool.at, heap.at, address(data), 30_000) >= 0


@pytest.mark.parametrize("lazy", [False, True])
def test_a_restore_counts_what_is_alive_and_lets_go_of_the_rest(lazy):
    m = HashMap(small_pool(128), 1, TEXT)
    rows = [(f"{i:050}",) for i in range(400)] + [("x" * 9000,)]
    put(m, keys_of(rows, TEXT.kinds), list(range(401)))
    remove(m, keys_of(rows[:200], TEXT.kinds))
    pages = len(m.slots.heap_pages)
    pool = load_pool(save(m.pool.snapshot()), lazy=lazy)
    back = HashMap(pool, 1, TEXT)
    assert contents(back) == contents(m)
    assert len(back.slots.heap_pages) == pages
    remove(back, keys_of(rows, TEXT.kinds))
    assert len(back.slots.heap_pages) == 0
    check_pool(pool)


@pytest.mark.parametrize("lazy", [False, True])
def test_a_heap_page_on_which_nothing_lives_does_not_survive_a_restore(lazy):
    # the page being filled is kept while it is current, also when all its values are gone
    m = HashMap(small_pool(128), 1, TEXT)
    put(m, keys_of([("y" * 100,)], TEXT.kinds), [1])
    remove(m, keys_of([("y" * 100,)], TEXT.kinds))
    back = HashMap(load_pool(save(m.pool.snapshot()), lazy=lazy), 1, TEXT)
    assert len(back.slots.heap_pages) == 0
    put(back, keys_of([("z" * 100,)], TEXT.kinds), [2])
    assert contents(back) == {(b"z" * 100,): 2}

"""The unordered map against what it promises: keys are compared, removal is final, a batch is all or nothing."""

from __future__ import annotations

import numpy as np
import pytest
from state_tools import (
    IDENTITY,
    INT,
    MIXED,
    TEXT,
    TWO,
    check_pool,
    colliding_keys,
    contents,
    int_keys,
    keys_of,
    load_pool,
    put,
    remove,
    save,
    small_pool,
)

from holdfast.errors import ConfigError, InvariantError, MemoryLimitError
from holdfast.state.hashmap import HashMap, MapLayout
from holdfast.state.index import DEPTH, home_of, tag_of
from holdfast.state.keys import PLAIN, VAR0, VAR1, make_keys
from holdfast.state.records import SLOT_BITS

_DOMAIN = (0, 1, -1, 2**63 - 1, -(2**63), 255, 1 << 32)


@pytest.mark.parametrize("page_bytes", [4096, 8192, 65536, 1 << 20])
def test_every_key_put_is_found_and_no_other(page_bytes):
    m = HashMap(small_pool(600 if page_bytes < 65536 else 64, page_bytes), 1, INT)
    values = list(range(-20_000, 20_000))
    put(m, int_keys(values), [3 * v for v in values])
    assert len(m) == len(values)
    assert (m.find(int_keys(values)) >= 0).all()
    assert (m.find(int_keys(range(20_000, 40_000))) == -1).all()
    assert contents(m) == {(v,): 3 * v for v in values}
    check_pool(m.pool)


def test_extreme_keys_are_ordinary_keys():
    m = HashMap(small_pool(), 1, INT)
    put(m, int_keys(_DOMAIN), list(range(len(_DOMAIN))))
    assert contents(m) == {(k,): i for i, k in enumerate(_DOMAIN)}


def test_null_differs_from_zero_and_from_empty():
    m = HashMap(small_pool(), 1, MIXED)
    rows = [(None, None, None), (0, "", 0), (None, "", 0), (0, None, 0), (0, "", None), (0, "x", None), (None, "x", 0)]
    put(m, keys_of(rows, MIXED.kinds), list(range(len(rows))))
    put(m, keys_of(rows, MIXED.kinds), list(range(10, 10 + len(rows))))
    want = {tuple(c.encode() if isinstance(c, str) else c for c in r): 10 + i for i, r in enumerate(rows)}
    assert contents(m) == want


@pytest.mark.parametrize("length", [0, 1, 7, 8, 14, 15, 16, 17, 255, 4030, 4031, 4032, 4033, 8064, 8065, 50_000])
def test_strings_of_any_length_are_keys(length):
    m = HashMap(small_pool(), 1, TEXT)
    rows = [("a" * length,), ("a" * max(0, length - 1) + "b",), ("b" * length + "!",)]
    for _ in range(2):
        put(m, keys_of(rows, TEXT.kinds), [1, 2, 3])
    assert contents(m) == {(rows[0][0].encode(),): 1, (rows[1][0].encode(),): 2, (rows[2][0].encode(),): 3}
    remove(m, keys_of(rows[:1], TEXT.kinds))
    assert contents(m) == {(rows[1][0].encode(),): 2, (rows[2][0].encode(),): 3}
    remove(m, keys_of(rows, TEXT.kinds))
    assert len(m) == 0
    check_pool(m.pool)


def test_thousands_of_keys_with_one_hash_are_all_different_keys():
    m = HashMap(small_pool(256), 1, TWO)
    keys = colliding_keys(3000)
    put(m, keys, list(range(3000)))
    assert len(m) == 3000
    assert len(m.index) > 4, "no overflow page was needed: the test does not test"
    rids = m.find(keys)
    assert len(np.unique(rids)) == 3000
    assert (m.find(colliding_keys(50, first=3000)) == -1).all()
    order = np.random.default_rng(1).permutation(3000)
    for part in np.split(order, 6):
        m.remove(rids[part])
        rids[part] = -1
        assert (m.find(keys) == rids).all()
    assert len(m) == 0
    assert len(m.index) == 1
    check_pool(m.pool)


def test_keys_with_one_hash_live_beside_ordinary_keys_through_a_restore():
    m = HashMap(small_pool(256), 1, TWO)
    put(m, colliding_keys(1500), [7] * 1500)
    words = np.random.default_rng(2).integers(-(2**63), 2**63 - 1, (4000, 2))
    other = make_keys(words, np.zeros(4000, np.int64), TWO.kinds)
    put(m, other, [8] * 4000)
    put(m, colliding_keys(1500, first=1500), [9] * 1500)
    want = contents(m)
    assert len(want) == 7000
    back = HashMap(load_pool(save(m.pool.snapshot())), 1, TWO)
    assert contents(back) == want
    for keys in (colliding_keys(3000), other):
        assert (back.find(keys) >= 0).all()


def _keys_of_tag(tag: int, count: int) -> list[int]:
    """Ints whose hash has this tag and which share a bucket of a 4 KiB index page."""
    candidates = np.arange(2_000_000).reshape(-1, 1)
    hashes = make_keys(candidates, np.zeros(len(candidates), np.int64), (PLAIN,)).hashes
    m = HashMap(small_pool(), 1, INT)
    tags = 1 + (((hashes >> 24) & 0xFFFF) * 255 >> 16)
    found = [i for i in np.flatnonzero(tags == tag) if home_of(m.at, hashes[i]) == 0]
    assert all(tag_of(hashes[i]) == tag for i in found[:5])
    return [int(i) for i in found[:count]]


def test_a_removed_key_is_not_found_through_the_slot_it_left():
    # the tags of 8 slots are compared with one subtraction, whose borrow makes an empty slot above a match look like
    # a match too if the tag is 1
    m = HashMap(small_pool(), 1, INT)
    first, second = _keys_of_tag(1, 2)
    put(m, int_keys([first, second]), [1, 2])
    put(m, int_keys([12345]), [3])  # keeps the page of records
    remove(m, int_keys([second]))
    assert m.find(int_keys([second]))[0] == -1
    put(m, int_keys([second]), [4])
    assert contents(m) == {(first,): 1, (second,): 4, (12345,): 3}


@pytest.mark.slow
def test_more_than_65535_keys_may_pass_one_bucket():
    # 16 bits would not count them: pages of 512 KiB and more hold more entries than that
    m = HashMap(small_pool(64, 1 << 20), 1, TWO)
    keys = colliding_keys(70_000)
    put(m, keys, [1] * 70_000)
    # the last ones are the farthest from home
    some = np.r_[0:20, 65_500:65_560, 69_980:70_000]
    part = make_keys(keys.words[some], keys.nulls[some], TWO.kinds)
    assert (m.find(part) >= 0).all()


def test_an_empty_map_keeps_one_index_page():
    m = HashMap(small_pool(512), 1, INT)
    put(m, int_keys(range(20_000)), [0] * 20_000)
    assert len(m.index) > 20
    remove(m, int_keys(range(20_000)))
    assert (len(m), len(m.index), len(m.slots.pages)) == (0, 1, 0)
    put(m, int_keys(range(100)), list(range(100)))
    assert contents(m) == {(i,): i for i in range(100)}


def test_a_map_emptied_at_the_limit_under_a_snapshot_works_on():
    # nothing becomes free, since the snapshot holds every page: the index cannot be replaced by a new one
    m = HashMap(small_pool(2048), 1, INT)
    put(m, int_keys(range(30_000)), [5] * 30_000)
    pool = m.pool
    m.flush()
    snapshot = pool.snapshot()
    filler = pool.create(50, 9)
    while pool.headroom() > len(m.index):
        filler.allocate()
    remove(m, int_keys(range(30_000)))
    assert len(m) == 0
    assert (m.find(int_keys(range(200))) == -1).all()
    snapshot.close()
    pool.reclaim()
    put(m, int_keys(range(500)), [6] * 500)
    assert contents(m) == {(i,): 6 for i in range(500)}
    check_pool(pool)


@pytest.mark.parametrize("layout", [INT, TEXT], ids=["ints", "strings"])
def test_a_batch_that_hits_the_limit_leaves_no_trace(layout):
    pool = small_pool(24)
    m = HashMap(pool, 1, layout)

    def keys(values):
        return int_keys(values) if layout is INT else keys_of([(f"{v:040}",) for v in values], TEXT.kinds)

    put(m, keys(range(100)), list(range(100)))
    before = contents(m)
    for _ in range(3):
        with pytest.raises(MemoryLimitError):
            m.upsert(keys(range(50, 20_000)), IDENTITY)
        assert contents(m) == before
        assert (m.find(keys(range(100, 1000))) == -1).all()
        check_pool(pool)
    put(m, keys(range(100, 150)), [1] * 50)
    assert len(m) == 150


def test_a_batch_that_hits_the_limit_while_pages_are_lazy_leaves_no_trace():
    m = HashMap(small_pool(256), 1, INT)
    put(m, int_keys(range(3000)), list(range(3000)))
    raw = save(m.pool.snapshot())
    refused = 0
    for headroom in range(1, len(m.slots.pages) + 6):
        pool = load_pool(raw, pages=64, lazy=True)
        back = HashMap(pool, 1, INT)
        filler = pool.create(50, 9)
        while pool.headroom() > headroom:
            filler.allocate()
        try:
            back.upsert(int_keys(list(range(10_000, 10_300)) + list(range(3000))), IDENTITY)
        except MemoryLimitError:
            refused += 1
            check_pool(pool)
            assert pool.lazy_pages() == (back.slots.pages.table == -1).sum()
            filler.clear()
            assert contents(back) == {(i,): i for i in range(3000)}
            assert (back.find(int_keys(range(10_000, 10_300))) == -1).all()
    assert refused > 5, "the limit was hardly reached: the test does not test"


def test_removing_a_record_twice_is_a_bug_that_is_reported():
    m = HashMap(small_pool(), 1, INT)
    put(m, int_keys(range(10)), [0] * 10)
    rids = m.find(int_keys([3]))
    with pytest.raises(InvariantError):
        m.remove(np.array([rids[0], rids[0]]))
    assert len(m) == 9


def test_an_image_keeps_records_at_the_numbers_of_its_primary():
    primary, image = HashMap(small_pool(256), 1, INT), HashMap(small_pool(256), 1, INT)
    put(primary, int_keys(range(5000)), list(range(5000)))
    remove(primary, int_keys(range(4000)))  # leaves holes among the pages
    keys = int_keys(range(4999, 3999, -1))
    rids = primary.find(keys)
    image.place(rids, keys, IDENTITY)
    assert (image.find(keys) == rids).all()
    put(image, int_keys(range(10_000, 14_000)), [1] * 4000)  # new records fill the holes
    assert (image.find(keys) == rids).all()
    assert len(image) == 5000
    check_pool(image.pool)


def test_a_number_beyond_a_smaller_image_is_the_limit_not_a_crash():
    image = HashMap(small_pool(16), 1, INT)
    rid = 5000 << int(image.slots.block[SLOT_BITS])
    with pytest.raises(MemoryLimitError):
        image.place(np.array([rid]), int_keys([1]), IDENTITY)
    check_pool(image.pool)
    put(image, int_keys(range(50)), list(range(50)))
    assert contents(image) == {(i,): i for i in range(50)}


def test_placing_on_a_taken_number_is_a_bug_that_is_reported():
    image = HashMap(small_pool(), 1, INT)
    image.place(np.array([3]), int_keys([1]), IDENTITY)
    with pytest.raises(InvariantError):
        image.place(np.array([3]), int_keys([2]), IDENTITY)
    assert len(image) == 1


def test_placing_works_while_the_image_is_lazy():
    image = HashMap(small_pool(), 1, INT)
    image.place(np.array([3, 400]), int_keys([1, 2]), IDENTITY)
    back = HashMap(load_pool(save(image.pool.snapshot()), lazy=True), 1, INT)
    back.place(np.array([4]), int_keys([3]), IDENTITY)
    assert sorted(back.slots.rids()) == [3, 4, 400]


def test_a_deep_index_restores_into_a_much_smaller_pool():
    # the directory is sized for the pool; pages written under a larger one may stand for more bits of the hash
    m = HashMap(small_pool(1 << 16), 1, INT)
    span = np.arange(0, 40_000_000)
    hashes = make_keys(span.reshape(-1, 1), np.zeros(len(span), np.int64), (PLAIN,)).hashes
    crowd = span[hashes >> np.uint64(64 - 12) == 5]  # one corner of the hash space: deep pages, few of them
    put(m, int_keys(crowd), list(range(len(crowd))))
    depth = int(m.block[DEPTH])
    back = HashMap(load_pool(save(m.pool.snapshot()), pages=len(m.index) + len(m.slots.pages) + 4), 1, INT)
    assert depth > int(small_pool(len(m.index) + len(m.slots.pages) + 4).pages_max).bit_length() + 2
    assert contents(back) == contents(m)
    assert (back.find(int_keys(crowd)) >= 0).all()


def test_what_is_new_and_what_is_updated_is_told_apart_once():
    m = HashMap(small_pool(), 1, INT)
    put(m, int_keys([1, 2, 3]), [0, 0, 0])
    new, old = m.slots.changed()
    assert (len(new), len(old)) == (3, 0)
    put(m, int_keys([2, 4, 2]), [0, 0, 0])
    assert m.slots.count_changed() == (1, 1)
    new, old = m.slots.changed()
    assert list(new) == list(m.find(int_keys([4])))
    assert list(old) == list(m.find(int_keys([2])))
    put(m, int_keys([5, 2]), [0, 0])
    remove(m, int_keys([5, 2]))
    assert m.slots.count_changed() == (0, 0)


def test_a_map_of_no_rows_and_a_batch_of_no_rows():
    m = HashMap(small_pool(), 1, INT)
    assert len(m.find(int_keys([]))) == 0
    addresses, fresh = m.upsert(int_keys([]), IDENTITY)
    assert (len(addresses), len(fresh), len(m)) == (0, 0, 0)
    assert m.find(int_keys([1]))[0] == -1
    m.remove(np.zeros(0, np.int64))


def test_key_batches_may_be_strided_or_of_another_integer_type():
    m = HashMap(small_pool(), 1, TWO)
    words = np.arange(40).reshape(10, 4)[:, ::2]
    put(m, make_keys(words, np.zeros(20, np.int32)[::2], TWO.kinds), list(range(10)))
    assert contents(m) == {(4 * i, 4 * i + 2): i for i in range(10)}


def test_a_record_larger_than_a_page_is_refused_with_advice():
    with pytest.raises(Exception, match="does not fit on a page") as error:
        HashMap(small_pool(), 1, MapLayout(kinds=(PLAIN,), value_words=600))
    assert "larger pages" in str(error.value)


def test_a_map_that_shrank_gives_its_index_back():
    m = HashMap(small_pool(2048), 1, INT)
    keys = int_keys(range(60_000))
    put(m, keys, list(range(60_000)))
    most = len(m.index)
    remove(m, int_keys(range(1000, 60_000)))
    assert len(m.index) < most / 8
    assert contents(m) == {(i,): i for i in range(1000)}
    put(m, keys, list(range(60_000)))
    assert contents(m) == {(i,): i for i in range(60_000)}
    back = HashMap(load_pool(save(m.pool.snapshot()), pages=2048), 1, INT)
    assert (back.find(keys) >= 0).all()
    check_pool(m.pool)


@pytest.mark.parametrize("room", [0, 1, 50])
def test_clearing_under_a_snapshot_is_done_or_refused_whole(room):
    m = HashMap(small_pool(512), 1, INT)
    put(m, int_keys(range(5000)), list(range(5000)))
    snapshot = m.pool.snapshot()
    filler = m.pool.create(50, 9)
    while m.pool.headroom() > room:
        filler.allocate()
    if room == 0:
        with pytest.raises(MemoryLimitError):
            m.clear()
        assert contents(m) == {(i,): i for i in range(5000)}
    else:
        m.clear()
        assert (len(m), len(m.index)) == (0, 1)
    filler.clear()
    assert len(contents(HashMap(load_pool(save(snapshot)), 1, INT))) == 5000
    put(m, int_keys([1, 9999]), [7, 8])
    assert m.find(int_keys([9999]))[0] >= 0
    assert (m.find(int_keys([4000]))[0] >= 0) == (room == 0)
    check_pool(m.pool)


def test_more_key_columns_than_null_bits_are_refused_with_advice():
    # with a bit beyond the 32 that a record has room for, a key would never equal itself
    HashMap(small_pool(), 1, MapLayout(kinds=(PLAIN,) * 32, value_words=1))
    HashMap(small_pool(), 1, MapLayout(kinds=(VAR0, VAR1) * 32, value_words=1))
    with pytest.raises(ConfigError, match="too many key columns") as error:
        HashMap(small_pool(), 1, MapLayout(kinds=(PLAIN,) * 33, value_words=1))
    assert "32" in error.value.detail

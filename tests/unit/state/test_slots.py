"""Records with numbers for life: slots are used again, pages come and go, and the bitmaps tell the truth."""

from __future__ import annotations

import numpy as np
import pytest
from state_tools import check_pool, load_pool, save, small_pool

from holdfast.errors import ConfigError, InvariantError
from holdfast.state.pages import PagePool
from holdfast.state.records import record_writable, slot_alloc, slot_free, slot_place
from holdfast.state.slots import SlotStore


def _store(pages: int = 64, value_words: int = 7) -> SlotStore:
    return SlotStore(small_pool(pages), 1, key_words=1, value_words=value_words, var_at=[])


def _take(s: SlotStore, n: int) -> list[int]:
    return [slot_alloc(s.pool.at, s.at) for _ in range(n)]


def _give(s: SlotStore, rids) -> None:
    for rid in rids:
        slot_free(s.pool.at, s.at, rid)


def test_every_record_has_a_number_of_its_own():
    s = _store()
    rids = _take(s, 500)
    assert len(set(rids)) == 500
    assert sorted(rids) == s.rids().tolist()
    assert len({record_writable(s.pool.at, s.at, rid) for rid in rids}) == 500


def test_free_slots_are_used_before_a_new_page_is_opened():
    s = _store()
    rids = _take(s, 500)
    pages = len(s.pages)
    _give(s, rids[10:400:3])
    again = _take(s, 130)
    assert set(again) <= set(rids[10:400:3]) | set(range(rids[-1] + 1, rids[-1] + 60))
    assert len(s.pages) == pages
    assert len(s) == 500
    check_pool(s.pool)


@pytest.mark.parametrize("order", ["forward", "backward", "mixed"])
def test_a_page_that_empties_is_released_whichever_record_goes_last(order):
    s = _store()
    for _ in range(4):  # pages come back as current, partial and stale ones
        rids = _take(s, 300)
        if order == "mixed":
            rids = [rids[i] for i in np.random.default_rng(0).permutation(300)]
        _give(s, reversed(rids) if order == "backward" else rids)
        assert (len(s), len(s.pages)) == (0, 0)
        check_pool(s.pool)


def test_a_page_dropped_while_current_and_opened_again_has_no_ghosts():
    s = _store()
    rids = _take(s, 3)
    _give(s, rids[:2])
    _give(s, rids[2:])  # current, noted as stale, and gone
    assert _take(s, 1) == [rids[0]]
    s.pool.snapshot()
    assert s.rids().tolist() == [rids[0]]
    assert s.count_changed() == (1, 0)


def test_removals_clone_no_page_until_the_next_snapshot():
    s = _store()
    rids = _take(s, 500)
    first = s.pool.snapshot()
    _give(s, rids[::2])
    assert s.pool.stats().pages_cloned == 0
    second = s.pool.snapshot()
    assert s.pool.stats().pages_cloned == len(s.pages)

    def restored(snapshot):
        return SlotStore(load_pool(save(snapshot)), 1, key_words=1, value_words=7, var_at=[]).rids().tolist()

    assert restored(first) == sorted(rids)
    assert restored(second) == sorted(rids[1::2])


def test_a_restored_store_fills_its_holes_first():
    s = _store()
    rids = _take(s, 500)
    pages = len(s.pages)
    _give(s, rids[100:200])
    back = SlotStore(load_pool(save(s.pool.snapshot())), 1, key_words=1, value_words=7, var_at=[])
    taken = _take(back, 100)
    assert len(back.pages) == pages
    assert len(set(taken) | set(back.rids().tolist())) == len(back) == 500


def test_a_lazy_page_keeps_its_records_when_new_ones_come():
    s = _store()
    rids = _take(s, 200)
    back = SlotStore(load_pool(save(s.pool.snapshot()), lazy=True), 1, key_words=1, value_words=7, var_at=[])
    taken = _take(back, 100)
    assert not set(taken) & set(rids)
    assert sorted(rids + taken) == back.rids().tolist()


def test_placing_in_any_order_gives_the_same_numbers():
    for seed in range(5):
        s = _store()
        rids = np.random.default_rng(seed).permutation(2000)[:300]
        rids = [int(r) for r in rids if r & 63 < 55]  # 56 records a page
        assert all(slot_place(s.pool.at, s.at, rid) == 0 for rid in rids)
        assert s.rids().tolist() == sorted(rids)
        more = _take(s, 500)
        assert not set(more) & set(rids)
        check_pool(s.pool)


def test_a_pool_too_large_for_record_numbers_is_refused_with_advice():
    pool = PagePool(page_bytes=1 << 20, limit_bytes=1 << 40)
    with pytest.raises(ConfigError, match="too large for one structure") as error:
        SlotStore(pool, 1, key_words=1, value_words=1, var_at=[])
    assert "shards" in error.value.hint


@pytest.mark.parametrize("words", [0, 1, 5, 60, 62, 63, 64, 250, 501])
def test_records_of_any_size_stay_on_their_page(words):
    s = _store(value_words=words)
    rids = _take(s, 40)
    ends = [record_writable(s.pool.at, s.at, rid) + s.record_bytes for rid in rids]
    base = s.pool.words.__array_interface__["data"][0]
    for rid, end in zip(rids, ends, strict=True):
        start = end - s.record_bytes
        assert (start - base) // 4096 == (end - 1 - base) // 4096, rid
        assert (start - base) % 4096 >= 64


def test_numbers_are_placed_and_freed_while_pages_are_lazy():
    s = _store()
    s.place(np.array([0, 1, 64, 65]))
    back = SlotStore(load_pool(save(s.pool.snapshot()), lazy=True), 1, key_words=1, value_words=7, var_at=[])
    back.place(np.array([2, 66, 128]))
    back.free(np.array([64, 2]))
    assert back.rids().tolist() == [0, 1, 65, 66, 128]
    check_pool(back.pool)


def test_placing_on_a_taken_number_and_freeing_a_free_one_are_bugs_that_are_reported():
    s = _store()
    s.place(np.array([0, 1]))
    with pytest.raises(InvariantError):
        s.place(np.array([1]))
    with pytest.raises(InvariantError):
        s.free(np.array([2]))
    with pytest.raises(InvariantError):
        s.free(np.array([0, 0]))
    assert s.rids().tolist() == [1]

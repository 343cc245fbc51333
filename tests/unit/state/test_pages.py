"""Pages, page sets and snapshots: who holds a page, who may write it, when it is free again."""

from __future__ import annotations

import io

import numpy as np
import pytest
from state_tools import INT, check_pool, contents, int_keys, load_pool, put, remove, save, small_pool

from holdfast.errors import ConfigError, CorruptPageError, InvariantError, MemoryLimitError, StateError
from holdfast.state import checkpoint
from holdfast.state.hashmap import HashMap
from holdfast.state.pages import PAGE_BYTES_MAX, PAGE_BYTES_MIN, PagePool
from holdfast.state.pagetable import HEADER_WORDS

KIND = 9


def _filled(pages: int = 64, count: int = 5):
    """A pool with one set whose page i says 100 + i."""
    pool = small_pool(pages)
    page_set = pool.create(1, KIND)
    for i in range(count):
        page_set.resolve(page_set.allocate(), write=True)[HEADER_WORDS] = 100 + i
    return pool, page_set


def _says(page_set, lp):
    return int(page_set.resolve(lp)[HEADER_WORDS])


def _carried(snapshot):
    return [int(snapshot.page(i)[HEADER_WORDS]) for i in range(len(snapshot))]


# -- configuration ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page_bytes", [0, -4096, 1, 2048, 4097, 12288, 2 << 20])
def test_a_page_size_that_cannot_work_is_refused_with_advice(page_bytes):
    with pytest.raises(ConfigError, match="page size cannot be used") as error:
        PagePool(page_bytes=page_bytes, limit_bytes=1 << 30)
    assert str(page_bytes) in error.value.detail
    assert "65536 is a good start" in error.value.hint


def test_a_limit_below_four_pages_is_refused_with_advice():
    with pytest.raises(ConfigError, match="too small for a page pool") as error:
        PagePool(page_bytes=4096, limit_bytes=4 * 4096 - 1)
    assert "four pages" in error.value.hint


@pytest.mark.parametrize("page_bytes", [PAGE_BYTES_MIN, 8192, 65536, PAGE_BYTES_MAX])
def test_every_page_size_gives_the_pages_it_promises(page_bytes):
    pool = small_pool(6, page_bytes)
    page_set = pool.create(3, KIND)
    for i in range(6):
        page = page_set.resolve(page_set.allocate(), write=True)
        assert page.nbytes == page_bytes
        page[HEADER_WORDS:] = i
    with pytest.raises(MemoryLimitError):
        page_set.allocate()
    assert [_says(page_set, lp) for lp in range(6)] == list(range(6))
    assert pool.stats().bytes == 6 * page_bytes


def test_a_page_set_has_one_kind():
    pool, _ = _filled()
    with pytest.raises(InvariantError, match="another kind"):
        pool.create(1, KIND + 1)
    with pytest.raises(InvariantError, match="out of range"):
        pool.create(1 << 31, KIND)


# -- allocate, release, resolve -----------------------------------------------------------------------------------


def test_a_new_page_is_zero_but_for_its_name_also_when_it_was_used_before():
    pool, page_set = _filled(pages=8, count=8)
    for lp in range(8):
        page_set.resolve(lp, write=True)[HEADER_WORDS:] = -1
        page_set.release(lp)
    lp = page_set.allocate()
    page = page_set.resolve(lp)
    assert not page[2:].any()
    assert int(page[1]) == lp
    check_pool(pool)


def test_released_numbers_are_used_again_before_new_ones():
    pool, page_set = _filled(count=6)
    page_set.release(2)
    page_set.release(4)
    assert {page_set.allocate(), page_set.allocate()} == {2, 4}
    assert page_set.allocate() == 6
    check_pool(pool)


def test_a_page_that_is_not_there_can_be_neither_read_nor_released():
    _, page_set = _filled()
    page_set.release(3)
    with pytest.raises(InvariantError, match="resolved a page"):
        page_set.resolve(3)
    with pytest.raises(InvariantError, match="released a page"):
        page_set.release(3)


def test_a_page_resolved_to_read_cannot_be_written():
    _, page_set = _filled()
    with pytest.raises(ValueError, match="read-only"):
        page_set.resolve(0)[HEADER_WORDS] = 1


def test_clearing_and_destroying_give_everything_back():
    pool, page_set = _filled(count=20)
    page_set.clear()
    assert (len(page_set), pool.stats().pages) == (0, 0)
    assert page_set.allocate() == 0
    pool.destroy(1)
    assert pool.sets == {}
    check_pool(pool)


# -- the limit ----------------------------------------------------------------------------------------------------


def test_the_limit_error_says_how_much_and_who_holds_it():
    pool, page_set = _filled(pages=8, count=4)
    pool.snapshot()
    for lp in range(4):
        page_set.resolve(lp, write=True)
    with pytest.raises(MemoryLimitError) as error:
        page_set.allocate()
    assert error.value.what == "state has reached its memory limit"
    assert "8 of 8 pages of 4096 bytes are in use" in error.value.detail
    assert "4 of them are held by 1 open snapshots" in error.value.detail
    assert "let running checkpoints finish" in error.value.hint


def test_at_the_limit_pages_that_readers_are_done_with_are_used_first():
    pool, page_set = _filled(pages=8, count=4)
    snapshot = pool.snapshot()
    for lp in range(4):
        page_set.resolve(lp, write=True)
    snapshot.read = 2
    assert page_set.allocate() == 4
    assert page_set.allocate() == 5
    with pytest.raises(MemoryLimitError):
        page_set.allocate()
    snapshot.close()
    page_set.allocate()
    check_pool(pool)


def test_a_write_at_the_limit_that_needs_a_clone_changes_nothing():
    pool, page_set = _filled(pages=4, count=4)
    snapshot = pool.snapshot()
    with pytest.raises(MemoryLimitError):
        page_set.resolve(0, write=True)
    assert _carried(snapshot) == [100, 101, 102, 103]
    check_pool(pool)


# -- snapshots ----------------------------------------------------------------------------------------------------


def test_a_snapshot_never_changes_while_its_owner_writes_releases_and_allocates():
    pool, page_set = _filled(count=6)
    first = pool.snapshot()
    page_set.resolve(1, write=True)[HEADER_WORDS] = 1
    second = pool.snapshot()
    page_set.release(2)
    page_set.resolve(page_set.allocate(), write=True)[HEADER_WORDS] = 2
    page_set.resolve(1, write=True)[HEADER_WORDS] = 3
    assert _carried(first) == [100, 101, 102, 103, 104, 105]
    assert _carried(second) == [100, 1, 102, 103, 104, 105]
    assert [_says(page_set, lp) for lp in range(6)] == [100, 3, 2, 103, 104, 105]
    check_pool(pool)
    for snapshot in (first, second):
        snapshot.close()
    pool.reclaim()
    assert pool.stats().pages == 6
    check_pool(pool)


def test_a_page_is_cloned_once_per_snapshot_and_not_at_all_once_read():
    pool, page_set = _filled(count=4)
    snapshot = pool.snapshot()
    for _ in range(3):
        page_set.resolve(0, write=True)
    assert pool.stats().pages_cloned == 1
    snapshot.read = 3
    pool.reclaim()
    page_set.resolve(1, write=True)
    page_set.resolve(2, write=True)
    assert pool.stats().pages_cloned == 1, "the reader was done with these"
    page_set.resolve(3, write=True)
    assert pool.stats().pages_cloned == 2


def test_an_old_page_is_free_once_its_reader_has_passed_it():
    pool, page_set = _filled(count=4)
    snapshot = pool.snapshot()
    for lp in range(4):
        page_set.resolve(lp, write=True)
    for read in range(1, 5):
        snapshot.read = read
        pool.reclaim()
        assert pool.stats().pages == 8 - read
    assert pool.stats().snapshots_open == 0
    with pytest.raises(InvariantError, match="after letting go"):
        snapshot.page(0)


def test_a_released_page_lives_on_in_the_snapshots_that_hold_it():
    pool, page_set = _filled(count=3)
    a, b = pool.snapshot(), pool.snapshot()
    page_set.clear()
    assert pool.stats().pages == 3
    a.close()
    pool.reclaim()
    assert pool.stats().pages == 3
    assert _carried(b) == [100, 101, 102]
    b.close()
    pool.reclaim()
    assert pool.stats().pages == 0
    check_pool(pool)


def test_an_incremental_snapshot_carries_what_was_written_since_its_base_and_names_the_rest():
    pool, page_set = _filled(count=5)
    base = pool.snapshot()
    page_set.resolve(1, write=True)[HEADER_WORDS] = 1
    page_set.release(4)
    middle = pool.snapshot(base=base)
    page_set.resolve(3, write=True)[HEADER_WORDS] = 3
    page_set.allocate()
    page_set.allocate()
    last = pool.snapshot(base=middle)
    wide = pool.snapshot(base=base)
    assert list(middle.lps[0]) == [1]
    assert list(middle.live[0]) == [0, 1, 2, 3]
    assert list(last.lps[0]) == [3, 4, 5]
    assert list(wide.lps[0]) == [1, 3, 4, 5]
    raws = [save(s) for s in (base, middle, last)]
    back = load_pool(*raws).sets[1]
    assert [_says(back, lp) for lp in back.logical()] == [100, 1, 102, 3, 0, 0]


def test_an_incremental_snapshot_carries_a_set_whole_that_its_base_did_not_have():
    pool, _ = _filled(count=2)
    other = pool.create(2, KIND)
    other.resolve(other.allocate(), write=True)[HEADER_WORDS] = 7
    base = pool.snapshot([1])
    both = pool.snapshot([1, 2], base=base)
    assert [len(lps) for lps in both.lps] == [0, 1]
    assert _says(load_pool(save(base), save(both)).sets[2], 0) == 7


def test_a_snapshot_that_cannot_be_taken_holds_nothing():
    pool, _ = _filled(count=3)
    with pytest.raises(KeyError):
        pool.snapshot([1, 99])
    assert pool.stats().snapshots_open == 0
    check_pool(pool)


def test_a_snapshot_takes_along_what_was_removed_just_before():
    # removals are noted beside the pages; whoever takes the snapshot need not know
    m = HashMap(small_pool(), 1, INT)
    put(m, int_keys(range(100)), list(range(100)))
    remove(m, int_keys(range(50)))
    back = HashMap(load_pool(save(m.pool.snapshot())), 1, INT)
    assert contents(back) == {(i,): i for i in range(50, 100)}


def test_a_snapshot_of_nothing_is_nothing():
    pool = small_pool()
    assert len(pool.snapshot()) == 0
    pool.create(4, KIND)
    snapshot = pool.snapshot()
    assert (len(snapshot), snapshot.nbytes) == (0, 0)
    pool.reclaim()
    assert pool.stats().snapshots_open == 0
    assert list(load_pool(save(snapshot)).sets) == [4]


def test_a_reader_cannot_go_on_with_a_snapshot_that_its_owner_has_closed():
    pool, page_set = _filled(count=6)
    stream = checkpoint.stream(pool.snapshot(), stage_bytes=1)
    snapshot = pool._open[0]
    for _ in range(2):
        next(stream)  # head, page 0
    snapshot.close()
    pool.reclaim()
    page_set.clear()
    for _ in range(6):  # takes the pages that the snapshot had
        page_set.resolve(page_set.allocate(), write=True)[HEADER_WORDS:] = -7
    with pytest.raises(StateError, match="closed"):
        list(stream)
    pool.reclaim()
    check_pool(pool)


def test_a_stream_that_breaks_off_lets_go_of_its_snapshot():
    pool, page_set = _filled(count=4)

    class Full(io.BytesIO):
        def write(self, part):
            if self.tell():  # the head fits, pages do not
                raise OSError("no space left on device")
            return super().write(part)

    with pytest.raises(OSError, match="no space"):
        checkpoint.write(pool.snapshot(), Full())
    page_set.clear()
    pool.reclaim()
    assert pool.stats().pages == 0
    check_pool(pool)


# -- memory back to the system ------------------------------------------------------------------------------------


def test_trim_gives_back_free_pages_and_only_those():
    pool, page_set = _filled(pages=64, count=40)
    for lp in range(0, 40, 2):
        page_set.resolve(lp, write=True)[HEADER_WORDS:] = -1
        page_set.release(lp)
    assert pool.trim() == 20 * 4096
    assert not any(pool.page(int(p)).any() for p in pool._free[:20])
    assert [_says(page_set, lp) for lp in range(1, 40, 2)] == [100 + i for i in range(1, 40, 2)]
    for _ in range(20):
        page_set.resolve(page_set.allocate(), write=True)[HEADER_WORDS:] = 5
    check_pool(pool)
    assert pool.trim() == 0


def test_the_figures_add_up():
    pool, page_set = _filled(pages=16, count=5)
    pool.snapshot()
    page_set.resolve(0, write=True)
    page_set.release(4)
    s = pool.stats()
    assert (s.page_bytes, s.pages, s.pages_peak, s.pages_free, s.pages_cloned) == (4096, 6, 6, 0, 1)
    assert (s.pages_max, s.snapshots_open, s.bytes, s.bytes_peak) == (16, 1, 6 * 4096, 6 * 4096)
    assert pool.headroom() == 10


# -- loading ------------------------------------------------------------------------------------------------------


def test_a_page_that_belongs_elsewhere_is_refused():
    _, page_set = _filled(count=2)
    target = small_pool()
    sets = {set_id: target.create(set_id, KIND) for set_id in (1, 2)}
    for set_id, lp, content in (
        (1, 1, page_set.resolve(0)),
        (1, 0, np.zeros(512, np.int64)),
        (2, 0, page_set.resolve(0)),
    ):
        phys = target.take_page()
        target.page(phys)[:] = content
        with pytest.raises(CorruptPageError, match="belongs elsewhere"):
            target.adopt([set_id], np.zeros(1, np.int64), np.array([lp]), np.array([phys]))
        assert len(sets[set_id]) == 0


@pytest.mark.parametrize("lazy", [False, True])
def test_a_checkpoint_with_page_numbers_beyond_a_smaller_pool_is_refused_with_advice(lazy):
    pool, page_set = _filled(pages=64, count=60)
    for lp in range(50):
        page_set.release(lp)
    with pytest.raises(ConfigError, match="too small for this checkpoint") as error:
        load_pool(save(pool.snapshot()), pages=20, lazy=lazy)
    assert "60" in error.value.hint


def test_a_lazy_page_that_finds_no_memory_can_be_loaded_later():
    pool, _ = _filled(pages=64, count=6)
    back = load_pool(save(pool.snapshot()), pages=6, lazy=True)
    filler = back.create(2, KIND)
    filler.allocate()
    page_set = back.sets[1]
    for lp in range(5):
        assert _says(page_set, lp) == 100 + lp
    for _ in range(3):
        with pytest.raises(MemoryLimitError):
            page_set.resolve(5)
        assert back.lazy_pages() == 1
    filler.clear()
    assert _says(page_set, 5) == 105
    assert back.lazy_pages() == 0
    assert back.loader is None, "the file is still held"
    check_pool(back)


@pytest.mark.parametrize("touched", [0, 1, 4])
def test_a_lazy_set_can_be_destroyed_without_being_loaded(touched):
    pool, _ = _filled(count=4)
    back = load_pool(save(pool.snapshot()), lazy=True)
    for lp in range(touched):
        back.sets[1].resolve(lp)
    back.destroy(1)
    assert (back.stats().pages, back.stats().pages_peak, back.loader) == (0, touched, None)


def test_a_lazy_page_can_be_released_without_being_loaded():
    pool, _ = _filled(count=4)
    back = load_pool(save(pool.snapshot()), lazy=True)
    back.sets[1].release(2)
    assert (len(back.sets[1]), back.lazy_pages(), back.stats().pages) == (3, 3, 0)
    assert back.sets[1].allocate() == 2
    assert [_says(back.sets[1], lp) for lp in range(4)] == [100, 101, 0, 103]
    check_pool(back)


def test_a_snapshot_of_a_lazy_pool_has_every_page():
    pool, _ = _filled(count=4)
    raw = save(pool.snapshot())
    back = load_pool(raw, lazy=True)
    back.sets[1].resolve(2, write=True)[HEADER_WORDS] = 9
    again = load_pool(save(back.snapshot()))
    assert [_says(again.sets[1], lp) for lp in range(4)] == [100, 101, 9, 103]


def test_misuse_of_snapshots_and_of_loading_is_reported():
    pool, page_set = _filled(count=2)
    other, _ = _filled(count=2)
    with pytest.raises(InvariantError, match="another pool"):
        pool.snapshot(base=other.snapshot())
    with pytest.raises(InvariantError, match="twice"):
        pool.snapshot([1, 1])
    copy = pool.take_page()
    pool.page(copy)[:] = page_set.resolve(0)
    with pytest.raises(CorruptPageError, match="belongs elsewhere"):
        pool.adopt([page_set.id], np.zeros(1, np.int64), np.zeros(1, np.int64), np.array([copy]))
    pool.give_page(copy)
    check_pool(pool)


def test_a_state_at_its_limit_restores_from_a_chain_into_a_pool_of_that_limit():
    pool, page_set = _filled(pages=64, count=8)
    first = pool.snapshot()
    for lp in range(0, 8, 2):
        page_set.resolve(lp, write=True)[HEADER_WORDS] = lp
    second = pool.snapshot(base=first)
    for lp in range(8):
        page_set.resolve(lp, write=True)[HEADER_WORDS] = -lp
    third = pool.snapshot(base=second)
    raws = [save(s) for s in (first, second, third)]
    for lazy in (False, True):
        back = load_pool(*raws[:2], pages=8, lazy=lazy)
        assert [_says(back.sets[1], lp) for lp in range(8)] == [0, 101, 2, 103, 4, 105, 6, 107]
        back = load_pool(*raws, pages=8, lazy=lazy)
        assert [_says(back.sets[1], lp) for lp in range(8)] == [-lp for lp in range(8)]
        check_pool(back)

"""The deque: what goes in at one end comes out at either, in order, and pages come and go with it."""

from __future__ import annotations

import numpy as np
import pytest
from state_tools import check_pool, load_pool, save, small_pool

from holdfast.errors import ConfigError, CorruptPageError, InputError, MemoryLimitError
from holdfast.state.deque import Deque

PAIR = np.dtype([("at", "M8[us]"), ("value", "f8")])


def _rows(*numbers: int, words: int = 1) -> np.ndarray:
    return np.array([[n * 10 + w for w in range(words)] for n in numbers], np.int64).reshape(-1, words)


def _numbers(rows: np.ndarray) -> list[int]:
    return [int(r[0]) // 10 for r in rows]


@pytest.mark.parametrize("page_bytes", [4096, 8192, 65536])
@pytest.mark.parametrize("words", [1, 3, 7, 504])
def test_rows_come_out_in_the_order_in_which_they_went_in(page_bytes, words):
    d = Deque(small_pool(2100, page_bytes), 1, words)
    d.append(_rows(*range(1000), words=words))
    d.append_front(_rows(*range(-1000, 0), words=words))
    assert _numbers(d.slice()) == list(range(-1000, 1000))
    assert d.get(999)[-1] == -10 + words - 1
    assert _numbers(d.pop(1500)) == list(range(-1000, 500))
    assert _numbers(d.pop_back(499)) == list(range(501, 1000))
    assert _numbers(d.pop(99)) == [500]
    assert (len(d), len(d.pages)) == (0, 0)
    check_pool(d.pool)


def test_a_queue_that_runs_for_ever_needs_no_more_than_its_longest_content():
    d = Deque(small_pool(8), 1, 100)  # 5 rows a page
    for i in range(3000):
        d.append(_rows(3 * i, 3 * i + 1, 3 * i + 2, words=100))
        assert _numbers(d.pop(3) if i % 100 else d.slice()) == [3 * i, 3 * i + 1, 3 * i + 2]
        if i % 100 == 0:
            d.clear()
    assert d.pool.stats().pages_peak <= 2
    for i in range(500):  # and the other way round
        d.append_front(_rows(i, i + 1, i + 2, words=100))
        assert _numbers(d.pop_back(3)) == [i, i + 1, i + 2]
    assert d.pages.table[8:].max() == 0
    check_pool(d.pool)


def test_a_window_that_slides_over_many_pages_keeps_its_rows():
    d = Deque(small_pool(64), 1, 1)
    low = 0
    for high in range(100, 100_000, 700):
        d.append(_rows(*range(max(0, high - 700) if high > 100 else 0, high)))
        d.drop(max(0, len(d) - 5000))
        low = high - len(d)
        assert (d.get(0)[0], d.get(-1)[0], d.get(len(d) // 2)[0]) == (
            10 * low,
            10 * (high - 1),
            10 * (low + len(d) // 2),
        )
    assert low > 90_000
    check_pool(d.pool)


def test_positions_outside_are_errors_and_slices_are_cut():
    d = Deque(small_pool(), 1, 1)
    d.append(_rows(1, 2, 3))
    for i in (3, -4):
        with pytest.raises(IndexError):
            d.get(i)
    assert _numbers(d.slice(1, 99)) == [2, 3]
    assert _numbers(d.slice(-2)) == [2, 3]
    assert _numbers(d.slice(2, 1)) == []
    assert _numbers(d.pop(-5)) == []
    with pytest.raises(IndexError):
        d.set(2, _rows(1, 2))


def test_views_are_all_rows_page_by_page_and_cannot_be_written():
    d = Deque(small_pool(), 1, 2)
    d.append(_rows(*range(1000), words=2))
    d.drop(300)
    d.append_front(_rows(7, 8, words=2))
    views = list(d.views())
    assert len(views) == len(d.pages)
    assert (np.concatenate(views) == d.slice()).all()
    with pytest.raises(ValueError, match="read-only"):
        views[0][0, 0] = 1
    assert list(Deque(small_pool(), 1, 2).views()) == []


def test_rows_can_be_written_over_where_they_are():
    d = Deque(small_pool(), 1, 1)
    d.append(_rows(*range(2000)))
    snapshot = d.pool.snapshot()
    d.set(400, _rows(*range(-800, 0)))
    assert _numbers(d.slice()) == [*range(400), *range(-800, 0), *range(1200, 2000)]
    d.set(5, _rows())
    back = Deque(load_pool(save(snapshot)), 1, 1)
    assert _numbers(back.slice()) == list(range(2000))


@pytest.mark.parametrize("front", [False, True])
def test_at_the_limit_none_of_the_rows_are_in(front):
    d = Deque(small_pool(6), 1, 1)  # 504 rows a page
    d.append(_rows(*range(700)))
    add = d.append_front if front else d.append
    for _ in range(3):
        with pytest.raises(MemoryLimitError):
            add(_rows(*range(5000)))
        assert _numbers(d.slice()) == list(range(700))
        assert len(d.pages) == 2
        check_pool(d.pool)
    add(_rows(*range(6 * 504 - 1008)))
    back = Deque(load_pool(save(d.pool.snapshot())), 1, 1)
    assert (back.slice() == d.slice()).all()


def test_at_the_limit_rows_are_not_half_written_over():
    d = Deque(small_pool(6), 1, 1)
    d.append(_rows(*range(4 * 504)))
    d.pool.snapshot()
    with pytest.raises(MemoryLimitError):
        d.set(0, _rows(*range(-4 * 504, 0)))
    assert _numbers(d.slice()) == list(range(4 * 504))


def test_popping_clones_no_page_that_a_snapshot_holds():
    d = Deque(small_pool(), 1, 1)
    d.append(_rows(*range(5000)))
    snapshot = d.pool.snapshot()
    d.pop(1234)
    d.pop_back(1234)
    assert d.pool.stats().pages_cloned == 0
    after = d.pool.snapshot()
    assert d.pool.stats().pages_cloned == 2, "the two ends"
    assert _numbers(Deque(load_pool(save(snapshot)), 1, 1).slice()) == list(range(5000))
    assert _numbers(Deque(load_pool(save(after)), 1, 1).slice()) == list(range(1234, 5000 - 1234))


@pytest.mark.parametrize("lazy", [False, True])
def test_a_restored_deque_goes_on_at_both_ends(lazy):
    d = Deque(small_pool(), 1, 3)
    d.append_front(_rows(*range(500), words=3))  # positions below zero
    d.append(_rows(*range(500, 900), words=3))
    first = d.pool.snapshot()
    d.drop(250)
    d.append(_rows(*range(900, 1300), words=3))
    second = d.pool.snapshot(base=first)
    back = Deque(load_pool(save(first), save(second), lazy=lazy), 1, 3)
    back.append(_rows(1300, words=3))
    back.append_front(_rows(248, 249, words=3))
    assert _numbers(back.slice()) == list(range(248, 1301))
    assert _numbers(back.pop(1053)) == list(range(248, 1301))
    assert len(back.pages) == 0
    check_pool(back.pool)


def test_an_emptied_deque_restores_empty():
    d = Deque(small_pool(), 1, 1)
    d.append(_rows(*range(10)))
    d.clear()
    back = Deque(load_pool(save(d.pool.snapshot())), 1, 1)
    back.append_front(_rows(5))
    assert _numbers(back.slice()) == [5]


def test_structured_rows_go_in_and_come_out_as_they_are():
    d = Deque.of(small_pool(), 1, PAIR)
    rows = np.zeros(1000, PAIR)
    rows["at"] = np.arange(1000)
    rows["value"] = np.linspace(-1, 1, 1000)
    d.append(rows)
    d.append(rows[::-2])
    assert (d.slice(0, 1000) == rows).all()
    assert (d.slice(1000) == rows[::-2]).all()
    assert d.get(3)["at"] == np.datetime64(3, "us")
    assert sum(len(v["value"]) for v in d.views()) == 1500


@pytest.mark.parametrize(
    "dtype", ["i8", [("a", "i4"), ("b", "i4")], [("a", "i8"), ("b", "i4")], [("a", "O")], [("a", "i8", 2)]]
)
def test_a_row_type_that_is_not_made_of_words_is_refused_with_advice(dtype):
    with pytest.raises(ConfigError, match="not made of words") as error:
        Deque.of(small_pool(), 1, np.dtype(dtype))
    assert "8 bytes" in error.value.hint


@pytest.mark.parametrize("words", [0, -1, 505])
def test_a_row_that_does_not_fit_is_refused(words):
    with pytest.raises(ConfigError, match="does not fit"):
        Deque(small_pool(), 1, words)


@pytest.mark.parametrize("rows", [np.zeros((2, 3), np.int64), np.zeros(2, np.int64), np.zeros((2, 2))])
def test_rows_of_another_shape_are_refused_whole(rows):
    d = Deque(small_pool(), 1, 2)
    with pytest.raises(InputError, match="another shape"):
        d.append(rows)
    assert len(d) == 0


def test_a_deque_opened_with_another_row_type_is_refused():
    d = Deque(small_pool(), 1, 2)
    d.append(_rows(1, 2, words=2))
    with pytest.raises(CorruptPageError, match="do not fit together"):
        Deque(load_pool(save(d.pool.snapshot())), 1, 4)

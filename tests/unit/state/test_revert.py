"""Going back to a snapshot: pages, free pages and other snapshots are as if nothing had happened since."""

from __future__ import annotations

import numpy as np
import pytest
from state_tools import INT, contents, int_keys, put, remove

from holdfast.errors import InvariantError
from holdfast.state.hashmap import HashMap
from holdfast.state.pages import PagePool
from holdfast.state.revert import revert


def pool() -> PagePool:
    return PagePool(page_bytes=4096, limit_bytes=256 * 4096)


def test_a_map_is_what_it_was_and_no_page_is_lost():
    made = pool()
    m = HashMap(made, 0, INT)
    put(m, int_keys(range(500)), range(500))
    m.flush()
    before, pages = contents(m), made.stats().pages
    for _ in range(3):
        snapshot = made.snapshot()
        put(m, int_keys(range(200, 900)), range(700))
        remove(m, int_keys(range(100)))
        assert contents(m) != before
        revert(snapshot)
        m = HashMap(made, 0, INT)
        assert contents(m) == before
        assert (made.stats().pages, made.stats().snapshots_open) == (pages, 0)
    put(m, int_keys([7]), [1])
    assert contents(m) == {**before, (7,): 1}


def test_an_earlier_snapshot_still_has_its_pages():
    made = pool()
    m = HashMap(made, 0, INT)
    put(m, int_keys(range(300)), range(300))
    m.flush()
    earlier = made.snapshot()
    words = [np.array(earlier.page(i)) for i in range(len(earlier))]
    put(m, int_keys(range(50)), [9] * 50)
    m.flush()
    snapshot = made.snapshot()
    put(m, int_keys(range(600)), [8] * 600)
    revert(snapshot)
    m = HashMap(made, 0, INT)
    put(m, int_keys(range(600)), [7] * 600)
    assert all((earlier.page(i) == words[i]).all() for i in range(len(earlier)))


def test_a_part_of_a_snapshot_is_not_enough_to_go_back_to():
    made = pool()
    m = HashMap(made, 0, INT)
    put(m, int_keys(range(10)), range(10))
    base = made.snapshot()
    put(m, int_keys([1]), [2])
    with pytest.raises(InvariantError, match="a part of a snapshot"):
        revert(made.snapshot(base=base))

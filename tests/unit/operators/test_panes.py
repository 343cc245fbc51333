"""Records by pane: what is dropped is gone, whatever way the index is brought to know it."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.errors import MemoryLimitError
from holdfast.operators import panes
from holdfast.operators.panes import PaneMap
from holdfast.state.keys import PLAIN, Keys, make_keys
from holdfast.state.pages import PagePool

ZERO = np.zeros(1, np.int64)


def keys_of(pane: int, numbers: np.ndarray) -> Keys:
    words = np.stack([np.full(len(numbers), pane, np.int64), numbers], 1)
    return make_keys(words, np.zeros(len(numbers), np.int64), (PLAIN, PLAIN))


def two_panes(old: int, new: int, pages: int = 400) -> tuple[PaneMap, np.ndarray, np.ndarray]:
    made = PaneMap(PagePool(page_bytes=4096, limit_bytes=4096 * pages), 0, (PLAIN,), 1)
    numbers = np.random.default_rng(old).permutation(10 * (old + new)).astype(np.int64)
    first, second = numbers[:old], numbers[old : old + new]
    for pane, some in enumerate((first, second)):
        made.upsert(keys_of(pane, some), ZERO)
    return made, first, second


@pytest.mark.parametrize("share", [0, 1 << 40], ids=["made again", "emptied"])
@pytest.mark.parametrize(("old", "new"), [(3_000, 0), (3_000, 1), (3_000, 700), (1, 0), (700, 3_000)])
def test_dropped_panes_are_gone_and_the_others_are_found(monkeypatch, share, old, new):
    monkeypatch.setattr(panes, "REMAKE_SHARE", share)
    made, first, second = two_panes(old, new)
    stay = made.map.find(keys_of(1, second))
    assert made.drop_below(1) == old
    assert (made.map.find(keys_of(0, first)) == -1).all()
    assert (made.map.find(keys_of(1, second)) == stay).all()
    assert sorted(made.rids_of(-10, 10)) == sorted(stay)
    made.upsert(keys_of(2, first), ZERO)
    assert (made.map.find(keys_of(2, first)) >= 0).all()
    assert len(made) == old + new


def test_an_index_that_is_made_again_needs_no_room_beside_what_a_snapshot_holds():
    """At the limit nothing is dropped; a page of room for each that a snapshot holds is enough."""
    made, first, second = two_panes(3_000, 500)
    pool = made.pool
    held = pool.snapshot(list(range(PaneMap.SETS)))
    taken = [pool.create(50 + i, 9).allocate() for i in range(pool.headroom() - made.clones_to_drop() + 1)]
    with pytest.raises(MemoryLimitError):
        made.drop_below(1)
    assert (made.map.find(keys_of(0, first)) >= 0).all()
    pool.sets[50].release(taken[0])
    assert made.drop_below(1) == 3_000
    assert (made.map.find(keys_of(1, second)) >= 0).all()
    held.close()

"""A map whose keys start with a pane number, and a list of the records of every pane.

Windows overlap, panes do not: a row belongs to one pane, so it is touched once, and a window is the merge of its
panes. The pane is the first key word; an ordered map beside the hash map knows for every pane the head of a list that
runs through its records, so that closing or dropping a pane costs what is in it and nothing else, whether there are
three panes or a million.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from holdfast.state.hashmap import HashMap, MapLayout
from holdfast.state.index import SLOTS
from holdfast.state.intrinsics import load, store
from holdfast.state.keys import PLAIN, Keys, make_keys
from holdfast.state.ordered import OrderedMap, ordered_find, ordered_put, ordered_remove
from holdfast.state.pages import PagePool
from holdfast.state.records import record_address

#: Words of a pane's entry: its number, the first record of its list (rid + 1), how many there are.
_PANE, _HEAD, _COUNT = range(3)
_LOW4 = 0xFFFFFFFF
#: Where so many times more records go than stay, the index is made again instead of emptied.
REMAKE_SHARE = 4


@njit(cache=True)
def next_rid(word0):
    """What follows in a list: rid + 1, or 0."""
    return (word0 >> 32) & _LOW4


@njit(cache=True, nogil=True)
def _link(pool, m, panes, rids, start):
    """Put new records at the head of their pane's list. How many are linked; fewer at the memory limit."""
    s = load(m, SLOTS)
    entry = np.int64(0)
    for i in range(start, len(rids)):
        at = record_address(pool, s, rids[i])
        if entry == 0 or load(entry, _PANE) != load(at, 1):
            entry = ordered_put(pool, panes, at + 8)
            if entry < 0:
                return i
        store(at, 0, (load(at, 0) & _LOW4) | (load(entry, _HEAD) << 32))
        store(entry, _HEAD, rids[i] + 1)
        store(entry, _COUNT, load(entry, _COUNT) + 1)
    return len(rids)


@njit(cache=True, nogil=True)
def _unlink(pool, m, panes, rids, count):
    """Undo `_link` for the first `count` records, the last one first."""
    s = load(m, SLOTS)
    for i in range(count - 1, -1, -1):
        at = record_address(pool, s, rids[i])
        entry = ordered_find(pool, panes, at + 8)
        store(entry, _HEAD, next_rid(load(at, 0)))
        store(entry, _COUNT, load(entry, _COUNT) - 1)
        if load(entry, _COUNT) == 0:
            ordered_remove(pool, panes, at + 8)


@njit(cache=True, nogil=True)
def _walk(pool, m, heads, out):
    s = load(m, SLOTS)
    k = 0
    for i in range(len(heads)):
        at = heads[i]
        while at > 0:
            out[k] = at - 1
            at = next_rid(load(record_address(pool, s, at - 1), 0))
            k += 1
    return k


class PaneMap:
    """Records by (pane, key). `ids` .. `ids + 4` are its page sets."""

    SETS = HashMap.SETS + OrderedMap.SETS

    def __init__(
        self,
        pool: PagePool,
        ids: int,
        key_kinds: tuple[int, ...],
        value_words: int,
        value_vars: tuple[int, ...] = (),
    ) -> None:
        self.pool = pool
        self.kinds = (PLAIN, *key_kinds)
        self.map = HashMap(pool, ids, MapLayout(self.kinds, value_words, value_vars))
        self.panes = OrderedMap(pool, ids + HashMap.SETS, MapLayout((PLAIN,), 2))

    def __len__(self) -> int:
        return len(self.map)

    def upsert(self, keys: Keys, identity: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(addresses of records to write, rids of new ones). All or nothing at the memory limit."""
        to, fresh = self.map.upsert(keys, identity)
        self._link(fresh)
        return to, fresh

    def undo(self, fresh: NDArray[np.int64]) -> None:
        """Take back the new records of the last `upsert`."""
        _unlink(self.pool.at, self.map.at, self.panes.at, fresh, len(fresh))
        self.map.remove(fresh)

    def place(self, rids: NDArray[np.int64], keys: Keys, identity: NDArray[np.int64]) -> None:
        """Make records at these very rids."""
        self.map.place(rids, keys, identity)
        self._link(rids)

    def _link(self, rids: NDArray[np.int64]) -> None:
        done = _link(self.pool.at, self.map.at, self.panes.at, rids, 0)
        if done < len(rids):
            self.pool.make_room()
            done = _link(self.pool.at, self.map.at, self.panes.at, rids, done)
            if done < len(rids):
                _unlink(self.pool.at, self.map.at, self.panes.at, rids, done)
                self.map.remove(rids)
                raise self.pool.limit_error()

    def pane_numbers(self, below: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Panes below a bound, ascending, and how many records each has."""
        entries = self.panes.entries(0, self._rank(below))
        return entries[:, _PANE], entries[:, _COUNT]

    def rids_of(self, first: int, below: int) -> NDArray[np.int64]:
        """Records of the panes in [first, below), pane by pane."""
        self.map.slots.pages.load_all()  # the lists run through records anywhere
        skip = self._rank(first)
        entries = self.panes.entries(skip, self._rank(below) - skip)
        out = np.empty(int(entries[:, _COUNT].sum()), np.int64)
        _walk(self.pool.at, self.map.at, np.ascontiguousarray(entries[:, _HEAD]), out)
        return out

    def clones_to_drop(self) -> int:
        """Pages that dropping may have to clone, because a snapshot holds them."""
        return self.map.index.shared() + self.panes.leaves.shared()

    def drop_below(self, bound: int) -> int:
        """Forget all panes below a bound; how many records that were. All of them, or at the memory limit none."""
        rids = self.rids_of(-(2**63), bound)
        panes = self._rank(bound)
        if panes:
            self.pool.ensure_room(self.clones_to_drop())
        if len(rids) and len(rids) >= REMAKE_SHARE * (len(self.map) - len(rids)):
            self.map.remove_most(rids)
        else:
            self.map.remove(rids)
        self.panes.drop_first(panes)
        return len(rids)

    def _rank(self, pane: int) -> int:
        return self.panes.rank(make_keys(np.array([[pane]], np.int64), np.zeros(1, np.int64), (PLAIN,)))

    def clear(self) -> None:
        self.map.clear()
        self.panes.clear()

    def flush(self) -> None:
        self.map.flush()

"""The ordered map: sorted leaves on pages, and a sorted list of leaves beside them.

sguard §4.3 uses a T-tree: a balanced binary tree whose nodes are pages. That saved memory when a comparison cost as
much as a memory access. Today a step down a binary tree is a cache miss, so this is a B+-tree cut down to two levels:
a leaf is a page of entries in key order, and the inner level is one flat array of the leaves' first keys, searched by
bisection in a few cached lines. It is not part of the state: after a restore it is read off the leaves (the paper's
"coarse-grained deserialisation"). Entries that come in ascending order, as time does, fill leaves to the brim.

Keys are words of the kinds of `hashmap.py`, compared from left to right: plain words as signed numbers, variable-length
ones by their bytes. Entry layout: key words, then value words.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from holdfast.errors import ConfigError
from holdfast.state.hashmap import MapLayout
from holdfast.state.heap import KIND_HEAP, Heap, compare_values, heap_count, heap_free, is_long, long_length, own_value
from holdfast.state.intrinsics import address, copy_words, load, load_byte, store
from holdfast.state.keys import K_ROWS, K_WORDS, VAR0, Keys
from holdfast.state.pages import PagePool
from holdfast.state.pagetable import HEADER_WORDS, add_page, bump, drop_page, new_block, readable, writable

KIND_LEAF = 4
#: Word of a leaf's header: entries on it.
P_COUNT = 2

#: A map's block: addresses of the leaves' page set, the heap, the sorted list of leaves and the kinds of key words;
#: key words, words of an entry, entries of a full leaf, leaves, entries.
PAGES, HEAP, LEAVES, KINDS, KW, EW, CAPACITY, LEAF_COUNT, SIZE = range(9)


@njit(cache=True)
def _entry(o, leaf, i):
    return leaf + 8 * (HEADER_WORDS + i * load(o, EW))


@njit(cache=True)
def _leaf(pool, o, position):
    return readable(pool, load(o, PAGES), load(load(o, LEAVES), position))


@njit(cache=True)
def _compare(pool, o, entry, key, key_heap):
    """Order of an entry against the key words at an address (of a batch, or with a heap of their own)."""
    j = 0
    while j < load(o, KW):
        a = load(entry, j)
        b = load(key, j)
        if load_byte(load(o, KINDS), j) == VAR0:
            order = compare_values(pool, load(o, HEAP), a, load(entry, j + 1), key_heap, b, load(key, j + 1))
            if order != 0:
                return order
            j += 2
            continue
        if a != b:
            return -1 if a < b else 1
        j += 1
    return 0


@njit(cache=True)
def _seek_leaf(pool, o, key):
    """Position of the last leaf whose first key is not above the key; 0 if all are."""
    low = 0
    high = load(o, LEAF_COUNT)
    while high - low > 1:
        middle = (low + high) >> 1
        if _compare(pool, o, _entry(o, _leaf(pool, o, middle), 0), key, 0) <= 0:
            low = middle
        else:
            high = middle
    return low


@njit(cache=True)
def _seek(pool, o, leaf, key):
    """Index of the first entry of a leaf that is not below the key."""
    low = 0
    high = load(leaf, P_COUNT)
    while low < high:
        middle = (low + high) >> 1
        if _compare(pool, o, _entry(o, leaf, middle), key, 0) < 0:
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True)
def _open_leaf(pool, o, position):
    """A new empty leaf at this position in the list: its page number, or -1 at the limit."""
    lp = add_page(pool, load(o, PAGES), False)
    if lp < 0:
        return -1
    leaves = load(o, LEAVES)
    for i in range(load(o, LEAF_COUNT), position, -1):
        store(leaves, i, load(leaves, i - 1))
    store(leaves, position, lp)
    bump(o, LEAF_COUNT, 1)
    return lp


@njit(cache=True)
def _close_leaf(pool, o, position):
    leaves = load(o, LEAVES)
    drop_page(pool, load(o, PAGES), load(leaves, position))
    for i in range(position, load(o, LEAF_COUNT) - 1):
        store(leaves, i, load(leaves, i + 1))
    bump(o, LEAF_COUNT, -1)


@njit(cache=True)
def _divide(pool, o, position):
    """Move the upper half of a full leaf to a new one behind it; all of it stays if time only goes forward."""
    leaf = writable(pool, load(o, PAGES), load(load(o, LEAVES), position))
    if leaf < 0:
        return -2
    lp = _open_leaf(pool, o, position + 1)
    if lp < 0:
        return -2
    other = readable(pool, load(o, PAGES), lp)
    keep = load(leaf, P_COUNT) >> 1
    moved = load(leaf, P_COUNT) - keep
    copy_words(_entry(o, other, 0), _entry(o, leaf, keep), moved * load(o, EW))
    store(other, P_COUNT, moved)
    store(leaf, P_COUNT, keep)
    return 0


@njit(cache=True)
def ordered_find(pool, o, key):
    """Address of an entry, to read; 0 if there is none."""
    if load(o, LEAF_COUNT) == 0:
        return 0
    leaf = _leaf(pool, o, _seek_leaf(pool, o, key))
    i = _seek(pool, o, leaf, key)
    if i < load(leaf, P_COUNT) and _compare(pool, o, _entry(o, leaf, i), key, 0) == 0:
        return _entry(o, leaf, i)
    return 0


@njit(cache=True)
def ordered_put(pool, o, key):
    """Address of the entry of a key, to write; a new one has zero values. -2 at the limit."""
    pages = load(o, PAGES)
    if load(o, LEAF_COUNT) == 0 and _open_leaf(pool, o, 0) < 0:
        return -2
    while True:
        position = _seek_leaf(pool, o, key)
        leaf = writable(pool, pages, load(load(o, LEAVES), position))
        if leaf < 0:
            return -2
        count = load(leaf, P_COUNT)
        i = _seek(pool, o, leaf, key)
        if i < count and _compare(pool, o, _entry(o, leaf, i), key, 0) == 0:
            return _entry(o, leaf, i)
        if count < load(o, CAPACITY):
            break
        if i == count and position == load(o, LEAF_COUNT) - 1:
            lp = _open_leaf(pool, o, position + 1)  # ascending keys: leave the full leaf full
            if lp < 0:
                return -2
            leaf = readable(pool, pages, lp)
            count = 0
            i = 0
            break
        if _divide(pool, o, position) < 0:
            return -2
    return _make_entry(pool, o, leaf, count, i, key)


@njit(cache=True)
def _make_entry(pool, o, leaf, count, i, key):
    ew = load(o, EW)
    fresh = np.empty(ew, np.int64)
    fresh[:] = 0
    j = 0
    while j < load(o, KW):
        fresh[j] = load(key, j)
        if load_byte(load(o, KINDS), j) == VAR0:
            place = own_value(pool, load(o, HEAP), load(key, j), load(key, j + 1))
            if is_long(fresh[j]) and place < 0:
                _free_values(pool, o, fresh.ctypes.data, j)
                if count == 0 and load(o, LEAF_COUNT) > 0:
                    _close_empty(pool, o)
                return -2
            fresh[j + 1] = place
            j += 1
        j += 1
    for e in range(count, i, -1):
        copy_words(_entry(o, leaf, e), _entry(o, leaf, e - 1), ew)
    copy_words(_entry(o, leaf, i), fresh.ctypes.data, ew)
    store(leaf, P_COUNT, count + 1)
    bump(o, SIZE, 1)
    return _entry(o, leaf, i)


@njit(cache=True)
def _close_empty(pool, o):
    """Take back the leaf that was opened for an entry which then found no memory."""
    for position in range(load(o, LEAF_COUNT) - 1, -1, -1):
        if load(_leaf(pool, o, position), P_COUNT) == 0:
            _close_leaf(pool, o, position)


@njit(cache=True)
def _free_values(pool, o, entry, stop):
    """Let go of the long values among the first words of an entry."""
    for j in range(stop):
        if load_byte(load(o, KINDS), j) == VAR0 and is_long(load(entry, j)):
            heap_free(pool, load(o, HEAP), load(entry, j + 1), long_length(load(entry, j)))


@njit(cache=True)
def _take_out(pool, o, position, first, stop):
    """Remove entries [first, stop) of a leaf; a leaf that empties goes, one that shrinks joins its neighbour."""
    pages = load(o, PAGES)
    reading = _leaf(pool, o, position)
    count = load(reading, P_COUNT)
    if first == 0 and stop == count:
        for e in range(count):
            _free_values(pool, o, _entry(o, reading, e), load(o, KW))
        bump(o, SIZE, -count)
        _close_leaf(pool, o, position)
        return 0
    leaf = writable(pool, pages, load(load(o, LEAVES), position))
    if leaf < 0:
        return -2
    for e in range(first, stop):
        _free_values(pool, o, _entry(o, leaf, e), load(o, KW))
    for e in range(stop, count):
        copy_words(_entry(o, leaf, first + e - stop), _entry(o, leaf, e), load(o, EW))
    left = count - (stop - first)
    store(leaf, P_COUNT, left)
    bump(o, SIZE, first - stop)
    if left < load(o, CAPACITY) >> 2 and position + 1 < load(o, LEAF_COUNT):
        after = _leaf(pool, o, position + 1)
        more = load(after, P_COUNT)
        if left + more <= load(o, CAPACITY) >> 1:
            copy_words(_entry(o, leaf, left), _entry(o, after, 0), more * load(o, EW))
            store(leaf, P_COUNT, left + more)
            _close_leaf(pool, o, position + 1)
    return 0


@njit(cache=True)
def ordered_remove(pool, o, key):
    """1 if the key was there and is gone, 0 if it was not, -2 at the limit."""
    if load(o, LEAF_COUNT) == 0:
        return 0
    position = _seek_leaf(pool, o, key)
    leaf = _leaf(pool, o, position)
    i = _seek(pool, o, leaf, key)
    if i == load(leaf, P_COUNT) or _compare(pool, o, _entry(o, leaf, i), key, 0) != 0:
        return 0
    return 1 if _take_out(pool, o, position, i, i + 1) == 0 else -2


@njit(cache=True, nogil=True)
def put_rows(pool, o, keys, values, start):
    """Set the values of keys. (rows done, code)."""
    n, vw = values.shape
    kw = load(o, KW)
    for i in range(start, n):
        entry = ordered_put(pool, o, load(keys, K_WORDS) + 8 * i * kw)
        if entry < 0:
            return i, -2
        for w in range(vw):
            store(entry, kw + w, values[i, w])
    return n, 0


@njit(cache=True, nogil=True)
def get_rows(pool, o, keys, values, found):
    vw = values.shape[1]
    kw = load(o, KW)
    for i in range(load(keys, K_ROWS)):
        entry = ordered_find(pool, o, load(keys, K_WORDS) + 8 * i * kw)
        found[i] = entry != 0
        if entry != 0:
            for w in range(vw):
                values[i, w] = load(entry, kw + w)


@njit(cache=True, nogil=True)
def remove_rows(pool, o, keys, start, removed):
    kw = load(o, KW)
    n = load(keys, K_ROWS)
    for i in range(start, n):
        code = ordered_remove(pool, o, load(keys, K_WORDS) + 8 * i * kw)
        if code < 0:
            return i, -2
        removed[i] = code == 1
    return n, 0


@njit(cache=True, nogil=True)
def count_below(pool, o, key):
    """How many entries are below a key."""
    if load(o, LEAF_COUNT) == 0:
        return 0
    position = _seek_leaf(pool, o, key)
    total = 0
    for p in range(position):
        total += load(_leaf(pool, o, p), P_COUNT)
    return total + _seek(pool, o, _leaf(pool, o, position), key)


@njit(cache=True, nogil=True)
def copy_entries(pool, o, skip, out):
    """Entries in order, after the first `skip`, as many as `out` has rows; how many."""
    k = 0
    ew = load(o, EW)
    for p in range(load(o, LEAF_COUNT)):
        leaf = _leaf(pool, o, p)
        count = load(leaf, P_COUNT)
        if skip >= count:
            skip -= count
            continue
        for e in range(skip, count):
            if k == len(out):
                return k
            for w in range(ew):
                out[k, w] = load(_entry(o, leaf, e), w)
            k += 1
        skip = 0
    return k


@njit(cache=True, nogil=True)
def drop_first(pool, o, n):
    """Remove the n lowest entries. How many are gone; fewer than n at the memory limit."""
    gone = 0
    while gone < n:
        count = load(_leaf(pool, o, 0), P_COUNT)
        take = min(count, n - gone)
        if _take_out(pool, o, 0, 0, take) < 0:
            return gone
        gone += take
    return gone


@njit(cache=True)
def _attach_leaves(pool, o, lps):
    """Sort the leaves by their first keys and count what they hold. After keys that came at random the pages are in any
    order, so each leaf is put where bisection says; numbers are cheap to move, keys are dear to compare."""
    leaves = load(o, LEAVES)
    size = 0
    for n in range(len(lps)):
        leaf = readable(pool, load(o, PAGES), lps[n])
        size += load(leaf, P_COUNT)
        low = 0
        high = n
        while low < high:
            middle = (low + high) >> 1
            if _compare(pool, o, _entry(o, _leaf(pool, o, middle), 0), _entry(o, leaf, 0), load(o, HEAP)) > 0:
                high = middle
            else:
                low = middle + 1
        for i in range(n, low, -1):
            store(leaves, i, load(leaves, i - 1))
        store(leaves, low, lps[n])
        for e in range(load(leaf, P_COUNT)):
            entry = _entry(o, leaf, e)
            for j in range(load(o, KW)):
                if load_byte(load(o, KINDS), j) == VAR0 and is_long(load(entry, j)):
                    heap_count(pool, load(o, HEAP), load(entry, j + 1), long_length(load(entry, j)))
    store(o, LEAF_COUNT, len(lps))
    store(o, SIZE, size)


class OrderedMap:
    """A map in key order on pages. `ids` and `ids + 1` are its page sets: leaves and long keys."""

    SETS = 2

    def __init__(self, pool: PagePool, ids: int, layout: MapLayout) -> None:
        self.pool = pool
        self.layout = layout
        self.leaves = pool.create(ids, KIND_LEAF)
        self.heap_pages = pool.create(ids + 1, KIND_HEAP)
        self.heap = Heap(self.heap_pages)
        entry_words = layout.key_words + layout.value_words
        capacity = (pool.page_words - HEADER_WORDS) // entry_words
        if capacity < 2:
            raise ConfigError(
                "an entry of the ordered map does not fit on a page",
                detail=f"An entry takes {8 * entry_words} bytes, a page {pool.page_bytes}; two must fit.",
                hint="Use larger pages or fewer key columns.",
            )
        self._list = np.zeros(pool.pages_max, np.int64)
        self._kinds = np.array(layout.kinds, np.uint8)
        self.block = new_block(PAGES, self.leaves.block, self.heap.block, self._list, self._kinds)
        self.block[KW] = layout.key_words
        self.block[EW] = entry_words
        self.block[CAPACITY] = capacity
        self.at = address(self.block)
        if len(self.leaves) or len(self.heap_pages):
            self.leaves.load_all()
            self.heap_pages.load_all()
            _attach_leaves(pool.at, self.at, self.leaves.logical())
            self.heap.counted()

    def __len__(self) -> int:
        return int(self.block[SIZE])

    def put(self, keys: Keys, values: NDArray[np.int64]) -> None:
        """Set values, row by row; the last of equal keys stays. At the limit, the rows before it are in."""
        done, code = put_rows(self.pool.at, self.at, keys.at, values, 0)
        if code:
            self.pool.make_room()
            done, code = put_rows(self.pool.at, self.at, keys.at, values, done)
            if code:
                raise self.pool.limit_error()

    def get(self, keys: Keys) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """(values, found)."""
        values = np.zeros((len(keys), self.layout.value_words), np.int64)
        found = np.zeros(len(keys), np.bool_)
        get_rows(self.pool.at, self.at, keys.at, values, found)
        return values, found

    def remove(self, keys: Keys) -> NDArray[np.bool_]:
        """Which keys were there; they are gone now."""
        removed = np.zeros(len(keys), np.bool_)
        done, code = remove_rows(self.pool.at, self.at, keys.at, 0, removed)
        if code:
            self.pool.make_room()
            done, code = remove_rows(self.pool.at, self.at, keys.at, done, removed)
            if code:
                raise self.pool.limit_error()
        return removed

    def rank(self, keys: Keys) -> int:
        """How many entries are below the (one) key."""
        return count_below(self.pool.at, self.at, keys.words.ctypes.data)

    def entries(self, skip: int = 0, count: int | None = None) -> NDArray[np.int64]:
        """Entries in key order as rows of words (keys, then values)."""
        n = max(0, len(self) - skip if count is None else min(count, len(self) - skip))
        out = np.empty((n, int(self.block[EW])), np.int64)
        copy_entries(self.pool.at, self.at, skip, out)
        return out

    def drop_first(self, n: int) -> None:
        """Remove the n lowest entries; all of them if there are fewer."""
        n = min(n, len(self))
        gone = drop_first(self.pool.at, self.at, n)
        if gone < n:
            self.pool.make_room()
            if drop_first(self.pool.at, self.at, n - gone) < n - gone:
                raise self.pool.limit_error()

    def clear(self) -> None:
        self.drop_first(len(self))

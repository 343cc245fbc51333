"""Fixed-size records on pages, each with a number that never changes while it lives.

A record's number (rid) is its page and its slot in it, so finding it is two shifts and no division. Which slots are
taken is one bit each: in the page (so that a page alone says what is on it) and in an array beside the pages. The
array is the truth between snapshots: removing a record clears its bit there only and notes the page as stale, so that
expiring a window does not clone every page a running checkpoint holds; `flush` writes stale bits back before the next
snapshot (the pool calls it). Two more bits per record, `fresh` and `touched`, say what is new and what has changed
since the last capture (cooperative-ha §7.1); they are not part of the state.

Layout of a record, in words:

    0             next record of a chain (high 32 bits: rid + 1) and null bits of the key columns (low 32 bits)
    1 .. kw       key words
    kw + 1 ..     value words

Pages that empty completely are released; holes are filled before a new page is opened.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from holdfast.errors import ConfigError, check
from holdfast.state.heap import KIND_HEAP, Heap, heap_count, heap_free, is_long, long_length
from holdfast.state.intrinsics import address, count_ones, load, store, trailing_zeros, zero_words
from holdfast.state.pages import PagePool, PageSet
from holdfast.state.pagetable import (
    ABSENT,
    HEADER_WORDS,
    HOLE,
    LAZY,
    LFREE,
    LFREE_STACK,
    LIMIT,
    N,
    add_page,
    bump,
    drop_page,
    new_block,
    page_address,
    physical,
    pop,
    push,
    readable,
    writable,
)

KIND_RECORDS = 1

#: A store's block. Addresses: page set and heap; bits per record (live, fresh, touched); live records per page; the
#: stack of pages with room, and whether a page is on it; the same for pages whose bitmap lags; where in a record the
#: two-word values are. Then their number, the layout, and counters.
(
    PAGES, HEAP, BITS, FRESH, TOUCHED, COUNTS, PARTIAL_STACK, ON_PARTIAL, STALE_STACK, IS_STALE, VAR_AT,
    VARS, KW, RW, RPP, SLOT_BITS, FIRST, BITMAP_WORDS, LIVE, CURRENT, CURSOR, PARTIAL, STALE,
) = range(23)  # fmt: skip

RID_BITS = 32
_FULL = np.uint64(0xFFFFFFFFFFFFFFFF)


@njit(cache=True)
def page_of(s, rid):
    return rid >> load(s, SLOT_BITS)


@njit(cache=True)
def _slot_of(s, rid):
    return rid & ((1 << load(s, SLOT_BITS)) - 1)


@njit(cache=True)
def record_address(pool, s, rid):
    """Address of a record, to read."""
    page = readable(pool, load(s, PAGES), page_of(s, rid))
    return page + 8 * (load(s, FIRST) + _slot_of(s, rid) * load(s, RW))


@njit(cache=True)
def record_writable(pool, s, rid):
    """Address of a record, to write; negative as `writable` says."""
    page = writable(pool, load(s, PAGES), page_of(s, rid))
    if page < 0:
        return page
    return page + 8 * (load(s, FIRST) + _slot_of(s, rid) * load(s, RW))


@njit(cache=True)
def _set_bit(s, which, rid):
    slot = _slot_of(s, rid)
    at = page_of(s, rid) * load(s, BITMAP_WORDS) + (slot >> 6)
    bits = load(s, which)
    store(bits, at, np.int64(np.uint64(load(bits, at)) | (np.uint64(1) << np.uint64(slot & 63))))
    return at


@njit(cache=True)
def _clear_bit(s, which, rid):
    slot = _slot_of(s, rid)
    at = page_of(s, rid) * load(s, BITMAP_WORDS) + (slot >> 6)
    bits = load(s, which)
    store(bits, at, np.int64(np.uint64(load(bits, at)) & ~(np.uint64(1) << np.uint64(slot & 63))))


@njit(cache=True)
def is_taken(s, rid):
    """Whether a record lives at this number. Its page must be loaded, if there is one."""
    slot = _slot_of(s, rid)
    at = page_of(s, rid) * load(s, BITMAP_WORDS) + (slot >> 6)
    return (np.uint64(load(load(s, BITS), at)) >> np.uint64(slot & 63)) & np.uint64(1) != np.uint64(0)


@njit(cache=True)
def mark_touched(s, rid):
    _set_bit(s, TOUCHED, rid)


@njit(cache=True)
def _open_page(pool, s, lp):
    """Nothing is on a page that has just been added."""
    store(load(s, COUNTS), lp, 0)
    bw = load(s, BITMAP_WORDS)
    for w in range(lp * bw, (lp + 1) * bw):
        store(load(s, BITS), w, 0)
        store(load(s, FRESH), w, 0)
        store(load(s, TOUCHED), w, 0)


@njit(cache=True)
def _has_room(s, lp):
    return lp >= 0 and physical(load(s, PAGES), lp) != HOLE and load(load(s, COUNTS), lp) < load(s, RPP)


@njit(cache=True)
def _free_slot(s, lp):
    """The next free slot of a page that has one, from the cursor on."""
    bw = load(s, BITMAP_WORDS)
    w = load(s, CURSOR)
    while True:
        taken = np.uint64(load(load(s, BITS), lp * bw + w))
        if taken != _FULL:
            slot = w * 64 + np.int64(trailing_zeros(~taken))
            if slot < load(s, RPP):
                store(s, CURSOR, w)
                return slot
        w = w + 1 if w + 1 < bw else 0


@njit(cache=True)
def _take(pool, s, rid, page):
    """Count a record as alive, and say so on its page."""
    at = _set_bit(s, BITS, rid)
    lp = page_of(s, rid)
    store(page, HEADER_WORDS + at - lp * load(s, BITMAP_WORDS), load(load(s, BITS), at))
    bump(load(s, COUNTS), lp, 1)
    bump(s, LIVE, 1)


@njit(cache=True)
def slot_alloc(pool, s):
    """A free slot, its bit set everywhere and its page writable: rid, or -2 when the pool is at its limit."""
    while True:
        lp = load(s, CURRENT)
        if _has_room(s, lp):
            page = writable(pool, load(s, PAGES), lp)
            if page < 0:
                return page
            rid = (lp << load(s, SLOT_BITS)) | _free_slot(s, lp)
            _take(pool, s, rid, page)
            _set_bit(s, FRESH, rid)
            return rid
        if load(s, PARTIAL) > 0:
            lp = pop(s, PARTIAL_STACK, PARTIAL)
            store(load(s, ON_PARTIAL), lp, 0)
        else:
            lp = add_page(pool, load(s, PAGES), False)
            if lp < 0:
                return -2
            _open_page(pool, s, lp)
        store(s, CURRENT, lp)
        store(s, CURSOR, 0)


@njit(cache=True)
def _note(s, stack, top, flag, lp):
    """Push a page on one of the stacks unless it is there already."""
    if load(load(s, flag), lp) == 0:
        store(load(s, flag), lp, 1)
        push(s, stack, top, lp)


@njit(cache=True)
def slot_free(pool, s, rid):
    """Give a slot back, and the long values of its record. Writes no page."""
    at = record_address(pool, s, rid)
    for v in range(load(s, VARS)):
        offset = load(load(s, VAR_AT), v)
        w0 = load(at, offset)
        if is_long(w0):
            heap_free(pool, load(s, HEAP), load(at, offset + 1), long_length(w0))
    lp = page_of(s, rid)
    _clear_bit(s, BITS, rid)
    _clear_bit(s, FRESH, rid)
    _clear_bit(s, TOUCHED, rid)
    bump(s, LIVE, -1)
    if bump(load(s, COUNTS), lp, -1) == 0:
        drop_page(pool, load(s, PAGES), lp)
        if load(s, CURRENT) == lp:
            store(s, CURRENT, -1)
        return
    _note(s, STALE_STACK, STALE, IS_STALE, lp)
    if lp != load(s, CURRENT):
        _note(s, PARTIAL_STACK, PARTIAL, ON_PARTIAL, lp)


@njit(cache=True)
def slot_place(pool, s, rid):
    """Take this very slot: how an image keeps its records where its primary has them.

    0; or -1 if it is taken, -2 at the limit, -3 if its page has to be loaded first.
    """
    lp = page_of(s, rid)
    pages = load(s, PAGES)
    if lp >= load(pages, N) or physical(pages, lp) == HOLE:
        if not _place_page(pool, pages, lp):
            return -2
        _open_page(pool, s, lp)
        _note(s, PARTIAL_STACK, PARTIAL, ON_PARTIAL, lp)
    page = writable(pool, pages, lp)
    if page < 0:
        return page
    if is_taken(s, rid):
        return -1
    _take(pool, s, rid, page)
    return 0


@njit(cache=True)
def _place_page(pool, pages, lp):
    """Open the page of this logical number, wherever it is among the holes. False at the limit of memory or numbers."""
    if lp >= load(pool, LIMIT):  # an image with a lower limit than its primary's
        return False
    while load(pages, N) < lp:  # numbers that the primary has used and this image has not
        push(pages, LFREE_STACK, LFREE, load(pages, N))
        bump(pages, N, 1)
    if load(pages, N) == lp:
        return add_page(pool, pages, True) >= 0
    stack = load(pages, LFREE_STACK)
    top = load(pages, LFREE) - 1
    for k in range(top + 1):
        if load(stack, k) == lp:  # bring it to the top
            store(stack, k, load(stack, top))
            store(stack, top, lp)
            break
    return add_page(pool, pages, False) >= 0


@njit(cache=True)
def flush_bits(pool, s):
    """Write bitmaps that lag behind to their pages: before a snapshot. 0, or -2 at the limit."""
    bw = load(s, BITMAP_WORDS)
    while load(s, STALE) > 0:
        lp = load(load(s, STALE_STACK), load(s, STALE) - 1)
        if physical(load(s, PAGES), lp) != HOLE:
            page = writable(pool, load(s, PAGES), lp)
            if page < 0:
                return page
            for w in range(bw):
                store(page, HEADER_WORDS + w, load(load(s, BITS), lp * bw + w))
        store(load(s, IS_STALE), lp, 0)
        bump(s, STALE, -1)
    return 0


@njit(cache=True)
def _emit(s, lp, w, bits, out, k):
    while bits != np.uint64(0):
        out[k] = (lp << load(s, SLOT_BITS)) | (w * 64 + np.int64(trailing_zeros(bits)))
        k += 1
        bits &= bits - np.uint64(1)
    return k


@njit(cache=True, nogil=True)
def collect_live(s, out):
    k = 0
    bw = load(s, BITMAP_WORDS)
    for lp in range(load(load(s, PAGES), N)):
        if physical(load(s, PAGES), lp) != HOLE:
            for w in range(bw):
                k = _emit(s, lp, w, np.uint64(load(load(s, BITS), lp * bw + w)), out, k)
    return k


@njit(cache=True, nogil=True)
def collect_changed(s, out_new, out_old):
    """Rids of new records, and of old ones that were touched; clears both kinds of bits."""
    n_new = 0
    n_old = 0
    bw = load(s, BITMAP_WORDS)
    for lp in range(load(load(s, PAGES), N)):
        if physical(load(s, PAGES), lp) == HOLE:
            continue
        for w in range(bw):
            at = lp * bw + w
            new = np.uint64(load(load(s, FRESH), at))
            old = np.uint64(load(load(s, TOUCHED), at)) & ~new
            store(load(s, FRESH), at, 0)
            store(load(s, TOUCHED), at, 0)
            n_new = _emit(s, lp, w, new, out_new, n_new)
            n_old = _emit(s, lp, w, old, out_old, n_old)
    return n_new, n_old


@njit(cache=True, nogil=True)
def count_changed(s):
    n_new = 0
    n_old = 0
    bw = load(s, BITMAP_WORDS)
    for lp in range(load(load(s, PAGES), N)):
        if physical(load(s, PAGES), lp) == HOLE:
            continue
        for at in range(lp * bw, (lp + 1) * bw):
            new = np.uint64(load(load(s, FRESH), at))
            n_new += count_ones(new)
            n_old += count_ones(np.uint64(load(load(s, TOUCHED), at)) & ~new)
    return n_new, n_old


@njit(cache=True, nogil=True)
def gather_words(pool, s, rids, offset, count, out):
    """Copy `count` words of each record, from `offset` on, into rows."""
    for i in range(len(rids)):
        at = record_address(pool, s, rids[i])
        for w in range(count):
            out[i, w] = load(at, offset + w)


@njit(cache=True, nogil=True)
def place_many(pool, s, rids, start):
    """Take these very slots, with zeroed records. (done, code as `slot_place`)."""
    for i in range(start, len(rids)):
        code = slot_place(pool, s, rids[i])
        if code < 0:
            return i, code
        zero_words(record_address(pool, s, rids[i]), load(s, RW))
    return len(rids), 0


@njit(cache=True, nogil=True)
def free_many(pool, s, rids):
    """Give slots back; how many, fewer than all if one is free already."""
    for i in range(len(rids)):
        if not is_taken(s, rids[i]):
            return i
        slot_free(pool, s, rids[i])
    return len(rids)


@njit(cache=True)
def _attach_page(pool, s, lp):
    """Rebuild what is beside one page from what is on it."""
    bw = load(s, BITMAP_WORDS)
    page = page_address(pool, physical(load(s, PAGES), lp))
    live = 0
    for w in range(bw):
        word = load(page, HEADER_WORDS + w)
        store(load(s, BITS), lp * bw + w, word)
        live += count_ones(np.uint64(word))
    store(load(s, COUNTS), lp, live)
    bump(s, LIVE, live)
    if live < load(s, RPP):
        _note(s, PARTIAL_STACK, PARTIAL, ON_PARTIAL, lp)


@njit(cache=True)
def _attach_all(pool, s):
    """Rebuild what is beside the pages from what is on them: the whole recovery of this structure."""
    for lp in range(load(load(s, PAGES), N)):
        if physical(load(s, PAGES), lp) > 0:
            _attach_page(pool, s, lp)


@njit(cache=True)
def _attach_heap(pool, s, rids):
    for i in range(len(rids)):
        at = record_address(pool, s, rids[i])
        for v in range(load(s, VARS)):
            offset = load(load(s, VAR_AT), v)
            if is_long(load(at, offset)):
                heap_count(pool, load(s, HEAP), load(at, offset + 1), long_length(load(at, offset)))


class SlotStore:
    """Fixed-size records with stable numbers; `ids` and `ids + 1` are its page sets (records, long values)."""

    def __init__(self, pool: PagePool, ids: int, *, key_words: int, value_words: int, var_at: list[int]) -> None:
        self.pool = pool
        self.key_words = key_words
        self.record_words = 1 + key_words + value_words
        self.pages: PageSet = pool.create(ids, KIND_RECORDS)
        self.heap_pages: PageSet = pool.create(ids + 1, KIND_HEAP)
        room = pool.page_words - HEADER_WORDS
        rpp = room // self.record_words
        while rpp and (rpp + 63) // 64 + rpp * self.record_words > room:
            rpp -= 1
        if rpp == 0:
            raise ConfigError(
                "a record does not fit on a page",
                detail=f"A record takes {8 * self.record_words} bytes, a page holds {8 * room}.",
                hint="Use larger pages, fewer key columns or fewer aggregates.",
            )
        bitmap_words = (rpp + 63) // 64
        slot_bits = max(1, (rpp - 1).bit_length())
        n = pool.pages_max
        if n << slot_bits >= 1 << RID_BITS:
            raise ConfigError(
                "the pool is too large for one structure",
                detail=f"{n} pages of {rpp} records exceed {RID_BITS} bits.",
                hint="Use more shards, or a lower limit for each.",
            )
        self.var_at = np.array(var_at, np.int64)
        self.heap = Heap(self.heap_pages)
        # in the order of the block's words
        self._bits = [np.zeros(n * bitmap_words, np.int64) for _ in (BITS, FRESH, TOUCHED)]
        self._by_page = [np.zeros(n, np.int64) for _ in (COUNTS, PARTIAL_STACK, ON_PARTIAL, STALE_STACK, IS_STALE)]
        self.block = new_block(PAGES, self.pages.block, self.heap.block, *self._bits, *self._by_page, self.var_at)
        self.block[VARS] = len(var_at)
        self.block[KW] = key_words
        self.block[RW] = self.record_words
        self.block[RPP] = rpp
        self.block[SLOT_BITS] = slot_bits
        self.block[FIRST] = HEADER_WORDS + bitmap_words
        self.block[BITMAP_WORDS] = bitmap_words
        self.block[CURRENT] = -1
        self.at = address(self.block)
        self.pages.on_snapshot = self.flush
        if len(self.pages) or len(self.heap_pages):
            self._attach()

    def _attach(self) -> None:
        if len(self.var_at):  # the heap's counts need every record, so nothing can be left for later
            self.pages.load_all()
            self.heap_pages.load_all()
        _attach_all(self.pool.at, self.at)
        if len(self.var_at):
            _attach_heap(self.pool.at, self.at, self.rids())
            self.heap.counted()
        self.pages.on_load = lambda lp: _attach_page(self.pool.at, self.at, lp)

    def __len__(self) -> int:
        self.pages.load_all()
        return int(self.block[LIVE])

    @property
    def record_bytes(self) -> int:
        return 8 * self.record_words

    def load_pages_of(self, rids: NDArray[np.int64]) -> None:
        """Bring in the pages of these records if a lazy restore has left them out."""
        if self.pages.block[ABSENT]:
            lps = np.unique(rids >> int(self.block[SLOT_BITS]))
            lps = lps[lps < len(self.pages.table)]
            for lp in lps[self.pages.table[lps] == LAZY]:
                self.pages.fault(int(lp))

    def rids(self) -> NDArray[np.int64]:
        """All records, by page and slot."""
        out = np.empty(len(self), np.int64)
        collect_live(self.at, out)
        return out

    def is_live(self, rids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these numbers belong to a record now."""
        return self._test(self._bits[0], rids)

    def is_fresh(self, rids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these records no capture has seen yet."""
        return self._test(self._bits[1], rids)

    def _test(self, bits: NDArray[np.int64], rids: NDArray[np.int64]) -> NDArray[np.bool_]:
        slot_bits = int(self.block[SLOT_BITS])
        slot = rids & ((1 << slot_bits) - 1)
        words = bits[(rids >> slot_bits) * self.block[BITMAP_WORDS] + (slot >> 6)]
        return (words >> (slot & 63)) & 1 != 0

    def gather(self, rids: NDArray[np.int64], offset: int, count: int) -> NDArray[np.int64]:
        """`count` words of each record from word `offset` on, as rows."""
        self.pages.load_all()
        out = np.empty((len(rids), count), np.int64)
        gather_words(self.pool.at, self.at, rids, offset, count, out)
        return out

    def place(self, rids: NDArray[np.int64]) -> None:
        """Make empty records at these very numbers."""
        self.load_pages_of(rids)
        done, code = place_many(self.pool.at, self.at, rids, 0)
        if code == -2:
            self.pool.make_room()
            done, code = place_many(self.pool.at, self.at, rids, done)
            if code == -2:
                raise self.pool.limit_error()
        check(code == 0, "a record number is taken", f"row {done} of the batch")

    def free(self, rids: NDArray[np.int64]) -> None:
        """Forget these records."""
        self.load_pages_of(rids)
        done = free_many(self.pool.at, self.at, rids)
        check(done == len(rids), "a record number is free already", f"row {done} of the batch")

    def changed(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(new, updated) since the last call, and forget them: what a capture takes."""
        n_new, n_old = count_changed(self.at)
        new = np.empty(n_new, np.int64)
        old = np.empty(n_old, np.int64)
        collect_changed(self.at, new, old)
        return new, old

    def forget_changed(self) -> list[memoryview]:
        """Count everything as captured; the marks as they were, which say which records had changed."""
        marks = [bits[: self.pages.block[N] * self.block[BITMAP_WORDS]] for bits in self._bits[1:]]
        kept = [m.copy().view(np.uint8).data for m in marks]
        for mark in marks:
            mark[:] = 0
        return kept

    def touch_all(self) -> None:
        """Count every record as changed."""
        used = self.pages.block[N] * self.block[BITMAP_WORDS]
        self._bits[2][:used] |= self._bits[0][:used]

    def count_changed(self) -> tuple[int, int]:
        """How many are new and how many updated since the last `changed`: C_n and C_u of cooperative-ha §7.1."""
        return count_changed(self.at)

    def clear(self) -> None:
        """Forget every record."""
        self.pages.clear()
        self.heap_pages.clear()
        self.heap.reset()
        for array in (*self._bits, *self._by_page):
            array[:] = 0
        for word in (LIVE, CURSOR, PARTIAL, STALE):
            self.block[word] = 0
        self.block[CURRENT] = -1

    def flush(self) -> None:
        """Bring the pages up to date with what is beside them; before a snapshot."""
        if flush_bits(self.pool.at, self.at) < 0:
            self.pool.make_room()
            if flush_bits(self.pool.at, self.at) < 0:
                raise self.pool.limit_error()

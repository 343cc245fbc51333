"""Kernels over fixed-size records on pages: find, take, free, mark, collect. `slots.py` owns what they work on.

A record is known by its number (rid): its page and its slot. A kernel gets the pool and the block of a `SlotStore` as
addresses, and never outlives the call.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from holdfast.state.heap import heap_free, is_long, long_length
from holdfast.state.intrinsics import count_ones, load, store, trailing_zeros, zero_words
from holdfast.state.pagetable import (
    HEADER_WORDS,
    HOLE,
    LFREE,
    LFREE_STACK,
    LIMIT,
    N,
    add_page,
    bump,
    drop_page,
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
    """Nothing is on a page that has just been added. Marks that are 0 stay unwritten: an image never needs theirs, and
    memory that nobody has written takes no room."""
    store(load(s, COUNTS), lp, 0)
    bw = load(s, BITMAP_WORDS)
    for w in range(lp * bw, (lp + 1) * bw):
        store(load(s, BITS), w, 0)
        if load(load(s, FRESH), w) != 0:
            store(load(s, FRESH), w, 0)
        if load(load(s, TOUCHED), w) != 0:
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
def note_page(s, stack, top, flag, lp):
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
    note_page(s, STALE_STACK, STALE, IS_STALE, lp)
    if lp != load(s, CURRENT):
        note_page(s, PARTIAL_STACK, PARTIAL, ON_PARTIAL, lp)


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
        note_page(s, PARTIAL_STACK, PARTIAL, ON_PARTIAL, lp)
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

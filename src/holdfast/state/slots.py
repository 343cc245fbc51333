"""Fixed-size records on pages, each with a number that never changes while it exists.

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
from holdfast.state.heap import KIND_HEAP, Heap, heap_count, is_long, long_length
from holdfast.state.intrinsics import address, count_ones, load, store
from holdfast.state.pages import PagePool, PageSet
from holdfast.state.pagetable import (
    ABSENT,
    HEADER_WORDS,
    LAZY,
    N,
    bump,
    new_block,
    page_address,
    physical,
)
from holdfast.state.records import (
    BITMAP_WORDS,
    BITS,
    COUNTS,
    CURRENT,
    CURSOR,
    FIRST,
    FRESH,
    HEAP,
    IS_STALE,
    KIND_RECORDS,
    KW,
    LIVE,
    ON_PARTIAL,
    PAGES,
    PARTIAL,
    PARTIAL_STACK,
    RID_BITS,
    RPP,
    RW,
    SLOT_BITS,
    STALE,
    STALE_STACK,
    TOUCHED,
    VAR_AT,
    VARS,
    collect_changed,
    collect_live,
    count_changed,
    flush_bits,
    free_many,
    gather_words,
    note_page,
    place_many,
    record_address,
)


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
        note_page(s, PARTIAL_STACK, PARTIAL, ON_PARTIAL, lp)


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

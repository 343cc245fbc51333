"""Page tables and the kernels that every structure builds on: allocate, clone on write, pin, release.

Structures are blocks of words that hold the addresses of their parts (see `intrinsics.py`). A page set maps logical
page numbers, which are stable and part of the state, to physical pages, which are not. The theory is in `pages.py`.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from holdfast.state.intrinsics import address, copy_words, load, store, zero_words

#: Words at the start of every page: [0] magic, kind and page set; [1] logical number; the rest is the structure's.
HEADER_WORDS = 8
MAGIC = 0x4846  # "HF"

#: The pool's block. Addresses first: the mapping, holders per physical page (its set and the snapshots; 0 = free),
#: the stack of free pages.
WORDS, REFS, FREE_STACK, SEQ, FREE, HIGH, LIMIT, CLONED, USED, USED_PEAK, SHIFT = range(11)
#: A page set's block. Addresses first: logical page -> physical page; snapshot number at which it was last made
#: writable; stack of logical numbers to use again. N is the first logical number never used.
TABLE, STAMP, LFREE_STACK, ID, KIND, N, LFREE, COUNT, ABSENT, FAULT = range(10)
BLOCK_WORDS = 32

#: `table` entries that are not a physical page.
HOLE, LAZY = 0, -1


def new_block(first: int, *arrays: NDArray) -> NDArray[np.int64]:
    """A block whose words from `first` on are the addresses of these arrays. Whoever holds the block holds them."""
    block = np.zeros(BLOCK_WORDS, np.int64)
    for i, array in enumerate(arrays):
        block[first + i] = address(array)
    return block


@njit(cache=True)
def page_address(pool, phys):
    return load(pool, WORDS) + (phys << (load(pool, SHIFT) + 3))


@njit(cache=True)
def bump(block, index, by):
    value = load(block, index) + by
    store(block, index, value)
    return value


@njit(cache=True)
def push(block, stack, top, value):
    """Push on the stack whose address and height are words of the block."""
    height = load(block, top)
    store(load(block, stack), height, value)
    store(block, top, height + 1)


@njit(cache=True)
def pop(block, stack, top):
    height = load(block, top) - 1
    store(block, top, height)
    return load(load(block, stack), height)


@njit(cache=True)
def alloc(pool):
    """A physical page with one holder, or 0 when the pool is at its limit."""
    if load(pool, FREE) > 0:
        page = pop(pool, FREE_STACK, FREE)
    elif load(pool, HIGH) < load(pool, LIMIT):
        page = load(pool, HIGH)
        store(pool, HIGH, page + 1)
    else:
        return 0
    store(load(pool, REFS), page, 1)
    used = bump(pool, USED, 1)
    if used > load(pool, USED_PEAK):
        store(pool, USED_PEAK, used)
    return page


@njit(cache=True)
def unref(pool, page):
    """Let go of a physical page; the last holder frees it."""
    if bump(load(pool, REFS), page, -1) == 0:
        push(pool, FREE_STACK, FREE, page)
        bump(pool, USED, -1)


@njit(cache=True)
def unref_many(pool, pages, start, stop):
    for i in range(start, stop):
        unref(pool, pages[i])


@njit(cache=True)
def add_page(pool, pages, at_end):
    """A new zeroed page of the set; its logical number, or -1 at the limit. `at_end` never fills a hole."""
    phys = alloc(pool)
    if phys == 0:
        return -1
    if load(pages, LFREE) > 0 and not at_end:
        lp = pop(pages, LFREE_STACK, LFREE)
    else:
        lp = load(pages, N)
        store(pages, N, lp + 1)
    at = page_address(pool, phys)
    zero_words(at, 1 << load(pool, SHIFT))
    store(at, 0, (MAGIC << 48) | (load(pages, KIND) << 32) | load(pages, ID))
    store(at, 1, lp)
    store(load(pages, TABLE), lp, phys)
    store(load(pages, STAMP), lp, load(pool, SEQ))
    bump(pages, COUNT, 1)
    return lp


@njit(cache=True)
def drop_page(pool, pages, lp):
    """Release a page of the set; snapshots that hold it keep it alive."""
    unref(pool, load(load(pages, TABLE), lp))
    store(load(pages, TABLE), lp, HOLE)
    push(pages, LFREE_STACK, LFREE, lp)
    bump(pages, COUNT, -1)


@njit(cache=True)
def physical(pages, lp):
    return load(load(pages, TABLE), lp)


@njit(cache=True)
def readable(pool, pages, lp):
    """Address of a page that is loaded, to read."""
    return page_address(pool, physical(pages, lp))


@njit(cache=True)
def is_absent(pages, lp):
    """Whether a page has yet to be loaded; remembers it as the one to load."""
    if physical(pages, lp) < 0:
        store(pages, FAULT, lp)
        return True
    return False


@njit(cache=True)
def writable(pool, pages, lp):
    """Address of a page to write: cloned first if a snapshot holds it. -3: to be loaded; -2: pool at its limit."""
    phys = physical(pages, lp)
    if load(load(pages, STAMP), lp) == load(pool, SEQ) and phys > 0:
        return page_address(pool, phys)
    return _make_writable(pool, pages, lp, phys)


@njit(cache=True)
def _make_writable(pool, pages, lp, phys):
    if phys < 0:
        store(pages, FAULT, lp)
        return -3
    if load(load(pool, REFS), phys) > 1:
        fresh = alloc(pool)
        if fresh == 0:
            return -2
        copy_words(page_address(pool, fresh), page_address(pool, phys), 1 << load(pool, SHIFT))
        bump(load(pool, REFS), phys, -1)  # the snapshots' pins remain; `reclaim` frees it with the last of them
        store(load(pages, TABLE), lp, fresh)
        bump(pool, CLONED, 1)
        phys = fresh
    store(load(pages, STAMP), lp, load(pool, SEQ))
    return page_address(pool, phys)


@njit(cache=True)
def pin(pool, pages, base_seq, lps, phys):
    """Copy the ids of the pages written after snapshot `base_seq` (all: -1) and hold them; how many."""
    k = 0
    table = load(pages, TABLE)
    stamp = load(pages, STAMP)
    refs = load(pool, REFS)
    for lp in range(load(pages, N)):
        page = load(table, lp)
        if page > 0 and load(stamp, lp) > base_seq:
            lps[k] = lp
            phys[k] = page
            store(refs, page, load(refs, page) + 1)
            k += 1
    return k


@njit(cache=True)
def _holes(pages):
    """Put every hole below N on the stack of reusable logical numbers, lowest on top; how many pages there are."""
    count = 0
    store(pages, LFREE, 0)
    for lp in range(load(pages, N) - 1, -1, -1):
        if physical(pages, lp) == HOLE:
            push(pages, LFREE_STACK, LFREE, lp)
        else:
            count += 1
    store(pages, COUNT, count)
    return count


@njit(cache=True, nogil=True)
def adopt_pages(pool, blocks, sets, lps, phys):
    """Enter pages that have been read into physical pages in their sets' tables, in whatever order they came.

    sets[i] is an index into `blocks`, the addresses of the sets' blocks. Every page's own header must agree: -1, or the
    index of the first one that does not, or that is there already.
    """
    for i in range(len(phys)):
        pages = blocks[sets[i]]
        at = page_address(pool, phys[i])
        if load(at, 0) != (MAGIC << 48) | (load(pages, KIND) << 32) | load(pages, ID) or load(at, 1) != lps[i]:
            return i
        if physical(pages, lps[i]) > 0:
            return i
        store(load(pages, TABLE), lps[i], phys[i])
        store(load(pages, STAMP), lps[i], load(pool, SEQ))
        store(pages, N, max(load(pages, N), lps[i] + 1))
    return -1

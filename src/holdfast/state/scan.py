"""Records of a store in the order of their numbers, a bounded number of bytes at a time.

A state is carried to another node by walking over its records while they go on changing. The walk keeps one number
between two calls, the rid where it goes on, so that it holds no memory and no snapshot, and each call costs what it
returns (and one look at each page that has nothing on it).
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from holdfast.state.heap import is_long, long_length
from holdfast.state.intrinsics import load, trailing_zeros
from holdfast.state.pagetable import HOLE, N, physical
from holdfast.state.records import BITMAP_WORDS, BITS, PAGES, RW, SLOT_BITS, VAR_AT, VARS, record_address
from holdfast.state.slots import SlotStore

#: Bytes that the number of a record takes beside its words.
RID_BYTES = 4


@njit(cache=True)
def _bytes_of(pool, s, rid):
    """What a record weighs in a message: its number, its words, the long values that it refers to."""
    size = RID_BYTES + 8 * load(s, RW)
    if load(s, VARS) > 0:
        at = record_address(pool, s, rid)
        for v in range(load(s, VARS)):
            w0 = load(at, load(load(s, VAR_AT), v))
            if is_long(w0):
                size += long_length(w0)
    return size


@njit(cache=True, nogil=True)
def _collect_from(pool, s, start, bytes_max, at_least, out):
    """Rids from `start` on until `bytes_max` is reached: (how many, where to go on or -1, bytes)."""
    k = 0
    total = 0
    bw = load(s, BITMAP_WORDS)
    slot_bits = load(s, SLOT_BITS)
    first_page = start >> slot_bits
    first_slot = start & ((1 << slot_bits) - 1)
    for lp in range(first_page, load(load(s, PAGES), N)):
        if physical(load(s, PAGES), lp) == HOLE:
            continue
        for w in range(bw):
            bits = np.uint64(load(load(s, BITS), lp * bw + w))
            if lp == first_page and first_slot > w * 64:
                gone = first_slot - w * 64
                if gone >= 64:
                    continue
                bits &= ~((np.uint64(1) << np.uint64(gone)) - np.uint64(1))
            while bits != np.uint64(0):
                rid = (lp << slot_bits) | (w * 64 + np.int64(trailing_zeros(bits)))
                size = _bytes_of(pool, s, rid)
                if (total + size > bytes_max and k >= at_least) or k == len(out):
                    return k, rid, total
                out[k] = rid
                k += 1
                total += size
                bits &= bits - np.uint64(1)
    return k, -1, total


def records_from(store: SlotStore, start: int, bytes_max: int, at_least: int) -> tuple[NDArray[np.int64], int, int]:
    """(rids from `start` on that weigh at most `bytes_max`, where to go on or -1, what they weigh).

    `at_least` so many come even if they weigh more: one, so that a value that is larger than the bound gets through.
    """
    store.pages.load_all()
    room = max(at_least, max(0, bytes_max) // (RID_BYTES + store.record_bytes))
    out = np.empty(min(len(store), room), np.int64)
    count, following, total = _collect_from(store.pool.at, store.at, start, bytes_max, at_least, out)
    return out[:count], int(following), int(total)

"""Variable-length values on pages: strings, binaries, anything that is a run of bytes.

In a record such a value takes two words, in the manner of "German strings":

    short (up to 15 bytes)   byte 0 = length, bytes 1-15 = the value; the heap is never touched
    long                     word 0: byte 0 = 255, bytes 1-3 = length (24 bits), bytes 4-7 = hash of the content;
                             word 1: where the value is

Two short values are equal when their two words are equal. Two long ones can only be equal when their first words
are, and then the bytes are compared: a hash says "different" or "maybe", never "same".

The heap hands out whole words and only ever appends; a page goes when nothing on it is alive. Values die together
with the windows that hold them, so pages empty in about the order in which they were filled. A value longer than a
page has pages of its own, each naming the next in its header: any free numbers will do, so holes in the page table are
never lost to it. How much of a page is alive is counted beside the pages, not on them: letting
go of a value then never has to clone a page that a snapshot holds. A restore counts again from the records.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from holdfast.state.intrinsics import address, load, load_byte, mix, store, store_byte, swap_bytes
from holdfast.state.pages import PageSet
from holdfast.state.pagetable import HEADER_WORDS, SHIFT, add_page, bump, drop_page, new_block, readable, writable

KIND_HEAP = 3
SHORT_BYTES_MAX = 15
LONG_BYTES_MAX = (1 << 24) - 1
LONG = 0xFF


#: Word of a page's header: the page (+ 1) on which a value longer than this one continues.
P_NEXT = 2

#: A heap's block. Addresses of the page set's block and of the live words per logical page; the page being filled
#: (or -1) and its next free word.
PAGES, LIVE_WORDS, CURRENT, NEXT = range(4)

_K1 = np.uint64(0xA0761D6478BD642F)
_K2 = np.uint64(0xE7037ED1A0B428DB)


class Heap:
    """Variable-length values of one structure."""

    def __init__(self, pages: PageSet) -> None:
        self.pages = pages
        self._live = np.zeros(pages.pool.pages_max, np.int64)
        self.block = new_block(PAGES, pages.block, self._live)
        self.block[CURRENT] = -1
        self.at = address(self.block)

    def counted(self) -> None:
        """After a restore has counted what is alive: let go of pages with nothing on them."""
        for lp in self.pages.logical():
            if self._live[lp] == 0:
                self.pages.release(int(lp))

    def reset(self) -> None:
        """Nothing is alive any more; the pages are released by whoever owns them."""
        self._live[:] = 0
        self.block[CURRENT] = -1


@njit(cache=True)
def is_long(word0):
    return (word0 & 0xFF) == LONG


@njit(cache=True)
def long_length(word0):
    return (word0 >> 8) & 0xFFFFFF


@njit(cache=True)
def load_some(at, n):
    """Up to eight bytes from an address as one little-endian word."""
    if n >= 8:
        return load(at, 0)
    w = np.int64(0)
    for b in range(n):
        w |= load_byte(at, b) << (8 * b)
    return w


@njit(cache=True)
def hash_bytes(at, n):
    h = _K1 ^ np.uint64(n)
    for w in range(0, n, 8):
        h = mix(h ^ np.uint64(load_some(at + w, n - w)), _K2)
    return h


@njit(cache=True)
def pack_value(at, n, out):
    """Write the two words of the n bytes at an address; a long value refers to them there."""
    if n <= SHORT_BYTES_MAX:
        store(out, 0, n | (load_some(at, min(n, 7)) << 8))
        store(out, 1, load_some(at + 7, n - 7) if n > 7 else 0)
    else:
        h = hash_bytes(at, n) & np.uint64(0xFFFFFFFF)
        store(out, 0, np.int64(np.uint64(LONG | (n << 8)) | (h << np.uint64(32))))
        store(out, 1, at)


@njit(cache=True)
def heap_put(pool, heap, at, n):
    """Copy bytes into the heap; where they are now, or -2 when the pool is at its limit."""
    page_words = 1 << load(pool, SHIFT)
    need = (n + 7) >> 3
    if need > page_words - HEADER_WORDS:
        return _put_spanning(pool, heap, at, n)
    pages = load(heap, PAGES)
    live = load(heap, LIVE_WORDS)
    current = load(heap, CURRENT)
    if current < 0 or load(heap, NEXT) + need > page_words:
        lp = add_page(pool, pages, False)
        if lp < 0:
            return -2
        if current >= 0 and load(live, current) == 0:
            drop_page(pool, pages, current)
        current = lp
        store(heap, CURRENT, lp)
        store(heap, NEXT, HEADER_WORDS)
        store(live, lp, 0)
    page = writable(pool, pages, current)
    if page < 0:
        return -2
    start = load(heap, NEXT)
    for w in range(need):
        store(page, start + w, load_some(at + 8 * w, n - 8 * w))
    bump(live, current, need)
    store(heap, NEXT, start + need)
    return (current << load(pool, SHIFT)) | start


@njit(cache=True)
def _put_spanning(pool, heap, at, n):
    payload = (1 << load(pool, SHIFT)) - HEADER_WORDS
    pages = load(heap, PAGES)
    need = (n + 7) >> 3
    following = np.int64(0)
    for p in range((need - 1) // payload, -1, -1):  # from the last page to the first: each has to name the next
        lp = add_page(pool, pages, False)
        if lp < 0:
            while following != 0:
                lp = following - 1
                following = load(readable(pool, pages, lp), P_NEXT)
                drop_page(pool, pages, lp)
            return -2
        page = readable(pool, pages, lp)
        count = min(payload, need - p * payload)
        for w in range(count):
            k = 8 * (p * payload + w)
            store(page, HEADER_WORDS + w, load_some(at + k, n - k))
        store(page, P_NEXT, following)
        store(load(heap, LIVE_WORDS), lp, count)
        following = lp + 1
    return ((following - 1) << load(pool, SHIFT)) | HEADER_WORDS


@njit(cache=True)
def _first_word(pool, heap, place):
    """A cursor on a value: the address of its page and the index of its first word there."""
    shift = load(pool, SHIFT)
    return readable(pool, load(heap, PAGES), place >> shift), place & ((1 << shift) - 1)


@njit(cache=True)
def _next_word(pool, heap, page, index):
    """The cursor one word further, on whichever page that is."""
    if index + 1 < 1 << load(pool, SHIFT) or load(page, P_NEXT) == 0:
        return page, index + 1
    return readable(pool, load(heap, PAGES), load(page, P_NEXT) - 1), np.int64(HEADER_WORDS)


@njit(cache=True)
def heap_word(pool, heap, place, k):
    """Word k of the value at this place. Walks there from page to page: to read a whole value, use a cursor."""
    page_words = 1 << load(pool, SHIFT)
    page, index = _first_word(pool, heap, place)
    index += k
    while index >= page_words:
        index -= page_words - HEADER_WORDS
        page = readable(pool, load(heap, PAGES), load(page, P_NEXT) - 1)
    return load(page, index)


@njit(cache=True)
def value_length(word0):
    return long_length(word0) if is_long(word0) else word0 & 0xFF


@njit(cache=True)
def value_word(pool, heap, word0, word1, k):
    """Word k of a value, zeros after its end. `heap` is 0 for a value of a batch: word 1 is then an address."""
    if is_long(word0):
        if heap == 0:
            return load_some(word1 + 8 * k, long_length(word0) - 8 * k)
        return heap_word(pool, heap, word1, k)
    if k == 0:
        return np.int64((np.uint64(word0) >> np.uint64(8)) | (np.uint64(word1) << np.uint64(56)))
    return np.int64(np.uint64(word1) >> np.uint64(8))


@njit(cache=True)
def compare_values(pool, heap, a0, a1, other_heap, b0, b1):
    """Order of two values by their bytes, as Spark orders strings: negative, 0 or positive."""
    na = value_length(a0)
    nb = value_length(b0)
    for k in range((min(na, nb) + 7) >> 3):
        a = swap_bytes(np.uint64(value_word(pool, heap, a0, a1, k)))
        b = swap_bytes(np.uint64(value_word(pool, other_heap, b0, b1, k)))
        left = min(na, nb) - 8 * k
        if left < 8:  # only bytes that both have
            drop = np.uint64(64 - 8 * left)
            a >>= drop
            b >>= drop
        if a != b:
            return -1 if a < b else 1
    return na - nb


@njit(cache=True)
def same_value(pool, heap, a0, a1, other_heap, b0, b1):
    if a0 != b0:
        return False
    if not is_long(a0):
        return a1 == b1
    n = long_length(a0)
    if heap == 0 or other_heap == 0:
        return _equals_bytes(pool, max(heap, other_heap), b1 if heap == 0 else a1, a1 if heap == 0 else b1, n)
    page, index = _first_word(pool, heap, a1)
    other, other_index = _first_word(pool, other_heap, b1)
    for _ in range((n + 7) >> 3):
        if load(page, index) != load(other, other_index):
            return False
        page, index = _next_word(pool, heap, page, index)
        other, other_index = _next_word(pool, other_heap, other, other_index)
    return True


@njit(cache=True)
def _equals_bytes(pool, heap, place, at, n):
    """Whether a long value is these n bytes. `heap` is 0 if the value is itself at an address."""
    if heap == 0:
        for k in range(0, n, 8):
            if load_some(place + k, n - k) != load_some(at + k, n - k):
                return False
        return True
    page, index = _first_word(pool, heap, place)
    for k in range(0, n, 8):
        if load(page, index) != load_some(at + k, n - k):
            return False
        page, index = _next_word(pool, heap, page, index)
    return True


@njit(cache=True)
def own_value(pool, heap, word0, word1):
    """A copy in this heap of a value of a batch: its second word, or -2 at the limit. A short one is its own copy."""
    if is_long(word0):
        return heap_put(pool, heap, word1, long_length(word0))
    return word1


@njit(cache=True)
def heap_count(pool, heap, place, n):
    """Count a value as alive: what a restore does for every value it finds."""
    shift = load(pool, SHIFT)
    payload = (1 << shift) - HEADER_WORDS
    lp = place >> shift
    left = (n + 7) >> 3
    while left > 0:
        bump(load(heap, LIVE_WORDS), lp, min(left, payload))
        left -= payload
        if left > 0:
            lp = load(readable(pool, load(heap, PAGES), lp), P_NEXT) - 1


@njit(cache=True)
def heap_free(pool, heap, place, n):
    """Let go of a value; a page with nothing alive on it is released."""
    shift = load(pool, SHIFT)
    payload = (1 << shift) - HEADER_WORDS
    pages = load(heap, PAGES)
    lp = place >> shift
    left = (n + 7) >> 3
    while left > 0:
        following = load(readable(pool, pages, lp), P_NEXT) - 1
        if bump(load(heap, LIVE_WORDS), lp, -min(left, payload)) == 0 and lp != load(heap, CURRENT):
            drop_page(pool, pages, lp)
        left -= payload
        lp = following


@njit(cache=True)
def value_copy_out(pool, heap, word0, word1, out):
    """Bytes of a value, short or long, to an address; how many. `heap` is 0 for a value of a batch."""
    n = value_length(word0)
    if is_long(word0) and heap != 0:  # a cursor, since the value may lie on many pages
        page, index = _first_word(pool, heap, word1)
        for k in range(n >> 3):
            store(out + 8 * k, 0, load(page, index))
            page, index = _next_word(pool, heap, page, index)
        for b in range(n & 7):
            store_byte(out, (n & ~7) + b, (load(page, index) >> (8 * b)) & 0xFF)
        return n
    for k in range((n + 7) >> 3):
        w = value_word(pool, heap, word0, word1, k)
        if n - 8 * k >= 8:
            store(out + 8 * k, 0, w)
        else:
            for b in range(n - 8 * k):
                store_byte(out, 8 * k + b, (w >> (8 * b)) & 0xFF)
    return n


@njit(cache=True, nogil=True)
def _long_total(words, columns):
    total = 0
    for i in range(len(words)):
        for c in columns:
            if is_long(words[i, c]):
                total += long_length(words[i, c])
    return total


@njit(cache=True, nogil=True)
def _move_long(pool, heap, words, columns, blob):
    at = 0
    for i in range(len(words)):
        for c in columns:
            if is_long(words[i, c]):
                value_copy_out(pool, heap, words[i, c], words[i, c + 1], blob.ctypes.data + at)
                words[i, c + 1] = at
                at += long_length(words[i, c])


@njit(cache=True, nogil=True)
def shift_long(words, columns, by):
    for i in range(len(words)):
        for c in columns:
            if is_long(words[i, c]):
                words[i, c + 1] += by


@njit(cache=True, nogil=True)
def long_fit(words, columns, n):
    """Whether every long value of these rows lies inside a blob of n bytes."""
    for i in range(len(words)):
        for c in columns:
            if is_long(words[i, c]) and not 0 <= words[i, c + 1] <= n - long_length(words[i, c]):
                return False
    return True


def extract_long(pool: int, heap: int, words: NDArray[np.int64], columns: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Copy the long values of gathered records out of the heap; in `words`, they become offsets into the result."""
    if not len(columns):
        return np.zeros(0, np.uint8)
    blob = np.empty(_long_total(words, columns), np.uint8)
    _move_long(pool, heap, words, columns, blob)
    return blob


def point_to(words: NDArray[np.int64], columns: NDArray[np.int64], blob: NDArray[np.uint8]) -> None:
    """Turn offsets into `blob` into addresses, as in a batch. The blob must stay alive."""
    if len(columns) and len(blob):
        shift_long(words, columns, address(blob))

"""Pages on their way to and from files that hold nothing but pages: copies with digests, and the way back into a pool.

Unlike `checkpoint.py`, which makes one stream that explains itself, this is for many files at once: which page is
where, and with which digest, is kept elsewhere (`holdfast.checkpoint`). Several threads may copy out of one snapshot,
or read into one pool, at the same time: no kernel here needs the interpreter's lock, and no two touch the same page.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from holdfast.errors import check
from holdfast.state.checkpoint import digest_words
from holdfast.state.intrinsics import copy_words, load
from holdfast.state.pages import PagePool, Snapshot
from holdfast.state.pagetable import SHIFT, N, alloc, page_address


@njit(cache=True, nogil=True)
def stage_pages(pool, phys, start, stop, out, digests):
    """Copy pages start..stop of a snapshot, one after the other, and note their digests."""
    words = 1 << load(pool, SHIFT)
    at = out.ctypes.data
    for i in range(start, stop):
        copy_words(at, page_address(pool, phys[i]), words)
        digests[i] = np.int64(digest_words(at, words))
        at += 8 * words


@njit(cache=True, nogil=True)
def first_damaged(words, page_words, digests, start):
    """Pages of these words against their digests from `start` on: the index of the first that differs, or -1."""
    at = words.ctypes.data
    for i in range(len(words) // page_words):
        if np.int64(digest_words(at + 8 * i * page_words, page_words)) != digests[start + i]:
            return i
    return -1


@njit(cache=True)
def take_pages(pool, out):
    """That many physical pages, or how many there were."""
    for i in range(len(out)):
        page = alloc(pool)
        if page == 0:
            return i
        out[i] = page
    return len(out)


def copy_out(snapshot: Snapshot, start: int, stop: int, out: NDArray[np.int64], digests: NDArray[np.int64]) -> None:
    """Pages start..stop of what a snapshot carries, as they are in memory. Any thread may call this."""
    snapshot.check_open()
    stage_pages(snapshot.pool.at, snapshot.all_phys, start, stop, out, digests)
    snapshot.check_open()  # else a page may have been another's when it was copied


def prepare(pool: PagePool, sets: list[tuple[int, int, NDArray[np.int64]]]) -> NDArray[np.int64]:
    """Make (id, kind, page numbers) known to an empty pool, and find room for all of their pages; physical pages.

    They follow on each other in memory, so that a run of pages in a file is read in one piece.
    """
    check(not pool.sets, "restored into a pool that is in use")
    for set_id, kind, lps in sets:
        made = pool.create(set_id, kind)
        made.check_fits(int(lps.max(initial=0)))
        made.block[N] = int(lps.max(initial=-1)) + 1  # now: several threads will adopt pages, and none may move it
    phys = np.zeros(sum(len(lps) for _, _, lps in sets), np.int64)
    if take_pages(pool.at, phys) < len(phys):
        raise pool.limit_error()
    check(bool((np.diff(phys) == 1).all()), "pages of a new pool do not follow on each other")
    return phys


def pages_view(pool: PagePool, first: int, count: int) -> memoryview:
    """The bytes of `count` physical pages from `first` on, to read into."""
    words = pool.words[first << pool.shift : (first + count) << pool.shift]
    return memoryview(words).cast("B")  # pyright: ignore[reportArgumentType]


def find_damage(words: NDArray[np.int64], page_words: int, digests: NDArray[np.int64], start: int) -> int:
    """Index of the first page of these words that does not have its digest (digests[start] and on); -1: all have."""
    return int(first_damaged(words, page_words, digests, start))

"""A batch of keys as words, hashed and ready for a map.

A key is a row of 64-bit words and a word of null bits. Words of the kind PLAIN are compared as they are; a VAR0 and a
VAR1 word together are a variable-length value (see `heap.py`). A batch holds values by address, state by place.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from holdfast.state.heap import is_long
from holdfast.state.intrinsics import address, load, mix
from holdfast.state.pagetable import new_block

#: Kinds of key words: a plain word; the first and the second word of a variable-length value.
PLAIN, VAR0, VAR1 = 0, 1, 2

#: A key batch's block: addresses of words, null bits and hashes; rows and key words.
K_WORDS, K_NULLS, K_HASHES, K_ROWS = range(4)

SEED = np.uint64(0x9E3779B97F4A7C15)
KEY = np.uint64(0xE7037ED1A0B428DB)


class Keys(NamedTuple):
    """A batch of packed keys. Long values refer to bytes of `owner`, which must live as long."""

    words: NDArray[np.int64]  # (rows, key words)
    nulls: NDArray[np.int64]  # null bits of the key columns
    hashes: NDArray[np.uint64]
    block: NDArray[np.int64]
    owner: object

    @property
    def at(self) -> int:
        return address(self.block)

    def __len__(self) -> int:
        return len(self.hashes)


def make_keys(words: NDArray[np.int64], nulls: NDArray[np.int64], kinds: tuple[int, ...], owner: object = None) -> Keys:
    """Hash packed keys and make them ready for a map."""
    words = np.ascontiguousarray(words, np.int64)
    nulls = np.ascontiguousarray(nulls, np.int64)
    hashes = np.empty(len(words), np.uint64)
    hash_rows(words, nulls, np.array(kinds, np.uint8), hashes)
    block = new_block(K_WORDS, words, nulls, hashes)
    block[K_ROWS] = len(words)
    return Keys(words, nulls, hashes, block, owner)


@njit(cache=True, nogil=True)
def hash_rows(words, nulls, kinds, out):
    """Hash packed keys. A long value counts by its first word only: that has its length and content hash."""
    n, kw = words.shape
    for i in range(n):
        h = SEED ^ np.uint64(nulls[i])
        for j in range(kw):
            if kinds[j] == VAR1 and is_long(words[i, j - 1]):
                continue
            h = mix(h ^ np.uint64(words[i, j]), KEY)
        out[i] = mix(h, SEED)


@njit(cache=True)
def hash_of(keys, i):
    return np.uint64(load(load(keys, K_HASHES), i))

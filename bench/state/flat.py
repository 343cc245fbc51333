"""The same map without pages, to measure what pages cost.

Same hash, same 64-byte buckets, same tags, same block-wise prefetching, same bits for captures; but records and
buckets are plain arrays: no directory, no page table, no stamps, no copy-on-write. It cannot take a snapshot, and it
grows by rehashing everything at once.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from holdfast.state.hashmap import (
    BLOCK_ROWS,
    BUCKET_SLOTS,
    BUCKET_WORDS,
    FILL_MAX,
    K_HASHES,
    K_NULLS,
    K_ROWS,
    K_WORDS,
    Keys,
    _free_in,
    _hash_of,
    _rid_at,
    _tag,
    _zero_bytes,
)
from holdfast.state.intrinsics import address, load, multiply_high, prefetch, store, trailing_zeros
from holdfast.state.pages import bump, new_block

#: Addresses of records, buckets and the touched bits; words of a record, buckets, records, key words.
RECORDS, TABLE, TOUCHED, RW, BUCKETS, COUNT, KW = range(7)
_ONES = np.uint64(0x0101010101010101)
_LOW4 = np.uint64(0xFFFFFFFF)


@njit(cache=True)
def _bucket(f, h):
    return load(f, TABLE) + 8 * BUCKET_WORDS * np.int64(multiply_high(h, np.uint64(load(f, BUCKETS))))


@njit(cache=True)
def _record(f, rid):
    return load(f, RECORDS) + 8 * rid * load(f, RW)


@njit(cache=True)
def _next(f, bucket):
    bucket += 8 * BUCKET_WORDS
    return bucket if bucket < load(f, TABLE) + 8 * BUCKET_WORDS * load(f, BUCKETS) else load(f, TABLE)


@njit(cache=True)
def _same(f, rid, keys, i):
    at = _record(f, rid)
    kw = load(f, KW)
    if (np.uint64(load(at, 0)) & _LOW4) != np.uint64(load(load(keys, K_NULLS), i)):
        return False
    for j in range(kw):
        if load(at, 1 + j) != load(load(keys, K_WORDS), i * kw + j):
            return False
    return True


@njit(cache=True)
def _find(f, keys, i, h):
    tag = _tag(h)
    bucket = _bucket(f, h)
    while True:
        for half in range(2):
            z = _zero_bytes(np.uint64(load(bucket, half)) ^ (tag * _ONES))
            if half == 1:
                z &= _LOW4
            while z != np.uint64(0):
                rid = _rid_at(bucket, half * 8 + np.int64(trailing_zeros(z) >> np.uint64(3)))
                if _same(f, rid, keys, i):
                    return rid
                z &= z - np.uint64(1)
        if np.uint64(load(bucket, 1)) >> np.uint64(48) == np.uint64(0):
            return -1
        bucket = _next(f, bucket)


@njit(cache=True)
def _enter(f, h, rid):
    bucket = _bucket(f, h)
    while True:
        j = _free_in(bucket)
        if j >= 0:
            break
        store(bucket, 1, np.int64(np.uint64(load(bucket, 1)) + (np.uint64(1) << np.uint64(48))))
        bucket = _next(f, bucket)
    store(bucket, j >> 3, np.int64(np.uint64(load(bucket, j >> 3)) | (_tag(h) << np.uint64(8 * (j & 7)))))
    shift = np.uint64(32 * (j & 1))
    pair = np.uint64(load(bucket, 2 + (j >> 1))) & ~(_LOW4 << shift)
    store(bucket, 2 + (j >> 1), np.int64(pair | (np.uint64(rid) << shift)))


@njit(cache=True)
def _ask(f, keys, start, stop):
    for i in range(start, stop):
        prefetch(_bucket(f, _hash_of(keys, i)))
    for i in range(start, stop):
        h = _hash_of(keys, i)
        bucket = _bucket(f, h)
        z = _zero_bytes(np.uint64(load(bucket, 0)) ^ (_tag(h) * _ONES))
        first = np.int64(0)
        if z == np.uint64(0):
            z = _zero_bytes(np.uint64(load(bucket, 1)) ^ (_tag(h) * _ONES)) & _LOW4
            first = np.int64(8)
        if z != np.uint64(0):
            prefetch(_record(f, _rid_at(bucket, first + np.int64(trailing_zeros(z) >> np.uint64(3)))))


@njit(cache=True, nogil=True)
def flat_upsert(f, keys, identity, out):
    n = load(keys, K_ROWS)
    kw = load(f, KW)
    touched = load(f, TOUCHED)
    i = 0
    while i < n:
        stop = min(n, i + BLOCK_ROWS)
        _ask(f, keys, i, stop)
        while i < stop:
            h = np.uint64(load(load(keys, K_HASHES), i))
            rid = _find(f, keys, i, h)
            if rid < 0:
                rid = bump(f, COUNT, 1) - 1
                at = _record(f, rid)
                store(at, 0, load(load(keys, K_NULLS), i))
                for j in range(kw):
                    store(at, 1 + j, load(load(keys, K_WORDS), i * kw + j))
                for w in range(len(identity)):
                    store(at, 1 + kw + w, identity[w])
                _enter(f, h, rid)
            word = np.uint64(load(touched, rid >> 6)) | (np.uint64(1) << np.uint64(rid & 63))
            store(touched, rid >> 6, np.int64(word))
            out[i] = _record(f, rid)
            i += 1


class FlatMap:
    """A map of plain arrays for up to `capacity` records of plain words."""

    def __init__(self, capacity: int, key_words: int, value_words: int) -> None:
        width = 1 + key_words + value_words
        buckets = int(capacity / (BUCKET_SLOTS * FILL_MAX)) + 1
        self._records = np.zeros(capacity * width, np.int64)
        self._table = np.zeros(buckets * BUCKET_WORDS + 8, np.int64)
        skip = (-address(self._table) % 64) // 8  # a bucket is one cache line, as on pages
        self._aligned = self._table[skip:]
        self._touched = np.zeros(capacity // 64 + 1, np.int64)
        self.block = new_block(RECORDS, self._records, self._aligned, self._touched)
        self.block[RW] = width
        self.block[BUCKETS] = buckets
        self.block[KW] = key_words
        self.at = address(self.block)

    def upsert(self, keys: Keys, identity: np.ndarray) -> np.ndarray:
        out = np.empty(len(keys), np.int64)
        flat_upsert(self.at, keys.at, identity, out)
        return out

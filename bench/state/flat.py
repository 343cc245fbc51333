"""The same map without pages, to measure what pages cost.

Same hash, same 64-byte buckets, same tags, same block-wise prefetching, same bits for captures; but records and
buckets are plain arrays: no directory, no page table, no stamps, no copy-on-write. It cannot take a snapshot, and it
grows by rehashing everything at once.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from holdfast.state.hashmap import BLOCK_ROWS
from holdfast.state.index import (
    BUCKET_SLOTS,
    BUCKET_WORDS,
    FILL_MAX,
    LOW4,
    ONES,
    free_in,
    rid_at,
    tag_at,
    tag_of,
    zero_bytes,
)
from holdfast.state.intrinsics import address, load, multiply_high, prefetch, store, trailing_zeros
from holdfast.state.keys import K_HASHES, K_NULLS, K_ROWS, K_WORDS, Keys
from holdfast.state.pagetable import bump, new_block

#: Addresses of records, buckets and the touched bits; words of a record, buckets, records, key words.
RECORDS, TABLE, TOUCHED, RW, BUCKETS, COUNT, KW = range(7)


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
    if (np.uint64(load(at, 0)) & LOW4) != np.uint64(load(load(keys, K_NULLS), i)):
        return False
    for j in range(kw):
        if load(at, 1 + j) != load(load(keys, K_WORDS), i * kw + j):
            return False
    return True


@njit(cache=True)
def _find(f, keys, i, h):
    tag = tag_of(h)
    bucket = _bucket(f, h)
    while True:
        for half in range(2):
            z = zero_bytes(np.uint64(load(bucket, half)) ^ (tag * ONES))
            if half == 1:
                z &= LOW4
            while z != np.uint64(0):
                rid = rid_at(bucket, half * 8 + np.int64(trailing_zeros(z) >> np.uint64(3)))
                if _same(f, rid, keys, i):
                    return rid
                z &= z - np.uint64(1)
        if np.uint64(load(bucket, 1)) >> np.uint64(32) == np.uint64(0):
            return -1
        bucket = _next(f, bucket)


@njit(cache=True)
def _enter(f, h, rid):
    bucket = _bucket(f, h)
    while True:
        j = free_in(bucket)
        if j >= 0:
            break
        store(bucket, 1, np.int64(np.uint64(load(bucket, 1)) + (np.uint64(1) << np.uint64(32))))
        bucket = _next(f, bucket)
    store(bucket, j >> 3, np.int64(np.uint64(load(bucket, j >> 3)) | (tag_of(h) << np.uint64(8 * (j & 7)))))
    shift = np.uint64(32 * (j & 1))
    pair = np.uint64(load(bucket, 2 + (j >> 1))) & ~(LOW4 << shift)
    store(bucket, 2 + (j >> 1), np.int64(pair | (np.uint64(rid) << shift)))


@njit(cache=True)
def _ask(f, keys, start, stop, candidates):
    hashes = load(keys, K_HASHES)
    for i in range(start, stop):
        bucket = _bucket(f, np.uint64(load(hashes, i)))
        prefetch(bucket)
        candidates[i - start] = bucket
    for i in range(start, stop):
        tag = tag_of(np.uint64(load(hashes, i)))
        bucket = candidates[i - start]
        j = np.int64(0)
        z = zero_bytes(np.uint64(load(bucket, 0)) ^ (tag * ONES))
        if z == np.uint64(0):
            z = zero_bytes(np.uint64(load(bucket, 1)) ^ (tag * ONES)) & LOW4
            j = np.int64(8)
        candidates[i - start] = -1
        if z != np.uint64(0):
            j += np.int64(trailing_zeros(z) >> np.uint64(3))
            if tag_at(bucket, j) == tag:
                candidates[i - start] = rid_at(bucket, j)
                prefetch(_record(f, candidates[i - start]))


@njit(cache=True)
def _find_or_insert(f, keys, i, identity):
    h = np.uint64(load(load(keys, K_HASHES), i))
    rid = _find(f, keys, i, h)
    if rid < 0:
        kw = load(f, KW)
        rid = bump(f, COUNT, 1) - 1
        at = _record(f, rid)
        store(at, 0, load(load(keys, K_NULLS), i))
        for j in range(kw):
            store(at, 1 + j, load(load(keys, K_WORDS), i * kw + j))
        for w in range(len(identity)):
            store(at, 1 + kw + w, identity[w])
        _enter(f, h, rid)
    return rid


@njit(cache=True, nogil=True)
def flat_upsert(f, keys, identity, out):
    n = load(keys, K_ROWS)
    candidates = np.empty(BLOCK_ROWS, np.int64)
    records = load(f, RECORDS)
    record_bytes = 8 * load(f, RW)
    touched = load(f, TOUCHED)
    i = 0
    while i < n:
        stop = min(n, i + BLOCK_ROWS)
        _ask(f, keys, i, stop, candidates)
        first = i
        while i < stop:
            rid = candidates[i - first]
            if rid < 0 or not _same(f, rid, keys, i):
                rid = _find_or_insert(f, keys, i, identity)
            store(touched, rid >> 6, load(touched, rid >> 6) | (1 << (rid & 63)))
            out[i] = records + rid * record_bytes
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

"""The paged hash index of a map: from a key's hash to the numbers of the records that may have it.

A bucket is one cache line: 12 tags of a byte (0: empty), a count of the entries that had to go further, and 12 record
numbers. A page is buckets after a header; a directory beside the pages maps the top bits of the hash to a page. See
`hashmap.py` for why.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from holdfast.state.heap import is_long, same_value
from holdfast.state.intrinsics import (
    copy_words,
    load,
    load_byte,
    mix,
    multiply_high,
    prefetch,
    store,
    trailing_zeros,
    zero_words,
)
from holdfast.state.keys import K_NULLS, K_WORDS, KEY, SEED, VAR1, hash_of
from holdfast.state.pagetable import (
    HEADER_WORDS,
    HOLE,
    N,
    add_page,
    bump,
    drop_page,
    is_absent,
    physical,
    readable,
    writable,
)
from holdfast.state.records import HEAP, KW, PAGES, page_of, record_address

KIND_INDEX = 2

BUCKET_WORDS = 8
BUCKET_SLOTS = 12
#: Words of an index page's header: entries, how many bits of the hash it stands for and which, the overflow page
#: (+ 1), and whether it is one.
P_COUNT, P_DEPTH, P_PREFIX, P_NEXT, P_CHAINED = 2, 3, 4, 5, 6
#: A map's block: addresses of the records, the index's page set, the directory and the kinds of key words; then
#: buckets per page, entries at which a page is full, the directory's depth, and whether any key word is not plain.
SLOTS, INDEX, DIRECTORY, KINDS, BUCKETS, FULL, DEPTH, DEPTH_MAX, HAS_VARS = range(9)

#: Fill at which a page splits: higher saves memory, but more entries leave their home bucket.
FILL_MAX = 0.84

#: A page that is less than a quarter full looks for a page to join after so many removals.
SHRINK_EVERY = 32

ONES = np.uint64(0x0101010101010101)
_HIGHS = np.uint64(0x8080808080808080)
LOW4 = np.uint64(0xFFFFFFFF)
#: A bucket counts the entries that had to go further in the upper half of its second word; a page of 1 MiB holds more
#: than 16 bits count.
_PUSHED = np.uint64(32)


@njit(cache=True)
def kind_of(m, j):
    return load_byte(load(m, KINDS), j)


@njit(cache=True)
def key_words(m):
    return load(load(m, SLOTS), KW)


@njit(cache=True)
def hash_record(m, at):
    h = SEED ^ (np.uint64(load(at, 0)) & LOW4)
    for j in range(key_words(m)):
        if kind_of(m, j) == VAR1 and is_long(load(at, j)):
            continue
        h = mix(h ^ np.uint64(load(at, 1 + j)), KEY)
    return mix(h, SEED)


@njit(cache=True)
def key_word(m, keys, i, j):
    return load(load(keys, K_WORDS), i * key_words(m) + j)


@njit(cache=True)
def tag_of(h):
    """A byte from 1 to 255: zero means an empty slot."""
    return np.uint64(1) + ((((h >> np.uint64(24)) & np.uint64(0xFFFF)) * np.uint64(255)) >> np.uint64(16))


@njit(cache=True)
def home_of(m, h):
    """The bucket in its page where an entry belongs."""
    return np.int64(multiply_high((h & np.uint64(0xFFFFFF)) << np.uint64(40), np.uint64(load(m, BUCKETS))))


@njit(cache=True)
def _next_bucket(m, b):
    return b + 1 if b + 1 < load(m, BUCKETS) else 0


@njit(cache=True)
def bucket_at(page, b):
    return page + 8 * (HEADER_WORDS + b * BUCKET_WORDS)


@njit(cache=True)
def root_of(m, h):
    """The index page that the directory names for a hash."""
    return load(load(m, DIRECTORY), np.int64(h >> np.uint64(64 - load(m, DEPTH))))


@njit(cache=True)
def zero_bytes(x):
    """High bit set in each byte of x that is zero (and maybe in a byte above one: a candidate, not a verdict)."""
    return (x - ONES) & ~x & _HIGHS


@njit(cache=True)
def rid_at(bucket, j):
    return np.int64((np.uint64(load(bucket, 2 + (j >> 1))) >> np.uint64(32 * (j & 1))) & LOW4)


@njit(cache=True)
def tag_at(bucket, j):
    return (np.uint64(load(bucket, j >> 3)) >> np.uint64(8 * (j & 7))) & np.uint64(0xFF)


@njit(cache=True)
def _pushed_past(bucket):
    return np.uint64(load(bucket, 1)) >> _PUSHED != np.uint64(0)


@njit(cache=True)
def same_key(pool, m, at, keys, i):
    if (np.uint64(load(at, 0)) & LOW4) != np.uint64(load(load(keys, K_NULLS), i)):
        return False
    for j in range(key_words(m)):
        stored = load(at, 1 + j)
        given = key_word(m, keys, i, j)
        if kind_of(m, j) == VAR1 and is_long(load(at, j)):
            w0 = load(at, j)  # equal to the given one: compared just before
            if not same_value(pool, load(load(m, SLOTS), HEAP), w0, stored, 0, w0, given):
                return False
        elif stored != given:
            return False
    return True


@njit(cache=True)
def _candidates(pool, m, bucket, half, tag, keys, i):
    """Look at the slots of half a bucket whose tag fits: rid, -1 none, -3 a page has to be loaded first."""
    s = load(m, SLOTS)
    z = zero_bytes(np.uint64(load(bucket, half)) ^ (tag * ONES))
    if half == 1:
        z &= LOW4
    while z != np.uint64(0):
        j = half * 8 + np.int64(trailing_zeros(z) >> np.uint64(3))
        z &= z - np.uint64(1)
        if tag_at(bucket, j) != tag:
            continue  # not even a hint: an empty slot still names the record that left it, key and all
        rid = rid_at(bucket, j)
        if is_absent(load(s, PAGES), page_of(s, rid)):
            return -3
        if same_key(pool, m, record_address(pool, s, rid), keys, i):
            return rid
    return -1


@njit(cache=True)
def find_rid(pool, m, keys, i):
    """The record of key i: rid, -1 if there is none, -3 if a page has to be loaded first."""
    h = hash_of(keys, i)
    tag = tag_of(h)
    lp = root_of(m, h)
    while True:
        page = readable(pool, load(m, INDEX), lp)
        b = home_of(m, h)
        for _ in range(load(m, BUCKETS)):
            bucket = bucket_at(page, b)
            for half in range(2):
                rid = _candidates(pool, m, bucket, half, tag, keys, i)
                if rid != -1:
                    return rid
            if not _pushed_past(bucket):
                break
            b = _next_bucket(m, b)
        if load(page, P_NEXT) == 0:
            return -1
        lp = load(page, P_NEXT) - 1


@njit(cache=True)
def free_in(bucket):
    """An empty slot of a bucket, or -1."""
    z = zero_bytes(np.uint64(load(bucket, 0)))
    if z != np.uint64(0):
        return np.int64(trailing_zeros(z) >> np.uint64(3))
    z = zero_bytes(np.uint64(load(bucket, 1))) & LOW4
    if z != np.uint64(0):
        return 8 + np.int64(trailing_zeros(z) >> np.uint64(3))
    return np.int64(-1)


@njit(cache=True)
def _put(m, page, h, rid):
    """Enter (tag, rid) in an index page that has room."""
    b = home_of(m, h)
    while True:
        bucket = bucket_at(page, b)
        j = free_in(bucket)
        if j >= 0:
            break
        store(bucket, 1, np.int64(np.uint64(load(bucket, 1)) + (np.uint64(1) << _PUSHED)))
        b = _next_bucket(m, b)
    tags = np.uint64(load(bucket, j >> 3)) | (tag_of(h) << np.uint64(8 * (j & 7)))
    store(bucket, j >> 3, np.int64(tags))
    shift = np.uint64(32 * (j & 1))
    pair = np.uint64(load(bucket, 2 + (j >> 1))) & ~(LOW4 << shift)
    store(bucket, 2 + (j >> 1), np.int64(pair | (np.uint64(rid) << shift)))
    bump(page, P_COUNT, 1)


@njit(cache=True)
def _entries(pool, m, page, rids, hashes):
    """All entries of an index page with the hashes of their records; -3 if one of those has to be loaded first."""
    s = load(m, SLOTS)
    k = 0
    for b in range(load(m, BUCKETS)):
        bucket = bucket_at(page, b)
        for j in range(BUCKET_SLOTS):
            if tag_at(bucket, j) != np.uint64(0):
                rids[k] = rid_at(bucket, j)
                if is_absent(load(s, PAGES), page_of(s, rids[k])):
                    return -3
                prefetch(record_address(pool, s, rids[k]))
                k += 1
    for i in range(k):
        hashes[i] = hash_record(m, record_address(pool, s, rids[i]))
    return k


@njit(cache=True)
def _mostly_one_hash(hashes, k):
    """Whether more than half of the hashes are the same (Boyer and Moore's vote, then a count)."""
    candidate = np.uint64(0)
    votes = 0
    for i in range(k):
        if votes == 0:
            candidate = hashes[i]
        votes += 1 if hashes[i] == candidate else -1
    same = 0
    for i in range(k):
        if hashes[i] == candidate:
            same += 1
    return 2 * same > k


@njit(cache=True)
def _clear(m, page):
    store(page, P_COUNT, 0)
    zero_words(bucket_at(page, 0), load(m, BUCKETS) * BUCKET_WORDS)


@njit(cache=True)
def _chain(pool, m, page):
    """Move a page's content to an overflow page of its own and start over. 0, or -2 at the limit."""
    extra = add_page(pool, load(m, INDEX), False)
    if extra < 0:
        return -2
    other = readable(pool, load(m, INDEX), extra)
    copy_words(bucket_at(other, 0), bucket_at(page, 0), load(m, BUCKETS) * BUCKET_WORDS)
    store(other, P_COUNT, load(page, P_COUNT))
    store(other, P_NEXT, load(page, P_NEXT))
    store(other, P_CHAINED, 1)
    _clear(m, page)
    store(page, P_NEXT, extra + 1)
    return 0


@njit(cache=True)
def _make_room(pool, m, lp):
    """Split a full page in two, or chain an overflow page to it. 0, -2 limit, -3 a page has to be loaded first."""
    page = writable(pool, load(m, INDEX), lp)
    if page < 0:
        return page
    total = load(m, BUCKETS) * BUCKET_SLOTS
    rids = np.empty(total, np.int64)
    hashes = np.empty(total, np.uint64)
    k = _entries(pool, m, page, rids, hashes)
    if k < 0:
        return k
    depth = load(page, P_DEPTH)
    if load(page, P_NEXT) != 0 or depth >= load(m, DEPTH_MAX) or _mostly_one_hash(hashes, k):
        return _chain(pool, m, page)  # what has an overflow page keeps to it: its entries are not here to be divided
    sibling = add_page(pool, load(m, INDEX), False)
    if sibling < 0:
        return -2
    other = readable(pool, load(m, INDEX), sibling)
    prefix = load(page, P_PREFIX)
    store(page, P_DEPTH, depth + 1)
    store(page, P_PREFIX, prefix << 1)
    store(other, P_DEPTH, depth + 1)
    store(other, P_PREFIX, (prefix << 1) | 1)
    if depth == load(m, DEPTH):  # it cannot tell the halves apart
        _double_directory(m)
    _enter(m, other, sibling)
    _clear(m, page)
    for i in range(k):
        upper = (hashes[i] >> np.uint64(63 - depth)) & np.uint64(1)
        _put(m, other if upper == np.uint64(1) else page, hashes[i], rids[i])
    return 0


@njit(cache=True)
def _enter(m, page, lp):
    """Name a page in the directory for all hashes that it stands for."""
    span = 1 << (load(m, DEPTH) - load(page, P_DEPTH))
    first = load(page, P_PREFIX) * span
    for i in range(first, first + span):
        store(load(m, DIRECTORY), i, lp)


@njit(cache=True)
def _double_directory(m):
    directory = load(m, DIRECTORY)
    for i in range((1 << load(m, DEPTH)) - 1, -1, -1):
        store(directory, 2 * i + 1, load(directory, i))
        store(directory, 2 * i, load(directory, i))
    bump(m, DEPTH, 1)


@njit(cache=True)
def index_insert(pool, m, h, rid):
    """Enter a record. 0, -2 at the memory limit, -3 if a page has to be loaded first; not entered unless 0."""
    while True:
        lp = root_of(m, h)
        page = writable(pool, load(m, INDEX), lp)
        if page < 0:
            return page
        if load(page, P_COUNT) < load(m, FULL):
            _put(m, page, h, rid)
            return 0
        code = _make_room(pool, m, lp)
        if code < 0:
            return code


@njit(cache=True)
def _erase(m, page, b, j, h):
    """Empty slot j of bucket b; the buckets that the entry was pushed past no longer count it."""
    bucket = bucket_at(page, b)
    store(bucket, j >> 3, np.int64(np.uint64(load(bucket, j >> 3)) & ~(np.uint64(0xFF) << np.uint64(8 * (j & 7)))))
    bump(page, P_COUNT, -1)
    passed = home_of(m, h)
    while passed != b:
        at = bucket_at(page, passed)
        store(at, 1, np.int64(np.uint64(load(at, 1)) - (np.uint64(1) << _PUSHED)))
        passed = _next_bucket(m, passed)


@njit(cache=True)
def _shrink(pool, m, lp, before):
    """After a removal: an empty overflow page goes, a page that is mostly empty joins its buddy. Never needed, so what
    would take memory or a page from the file is left for another time. `before` names the page in front, in a chain."""
    pages = load(m, INDEX)
    page = readable(pool, pages, lp)
    if load(page, P_CHAINED) != 0:
        front = writable(pool, pages, before) if load(page, P_COUNT) == 0 else -1
        if front > 0:
            store(front, P_NEXT, load(page, P_NEXT))
            drop_page(pool, pages, lp)
        return
    while load(page, P_DEPTH) > 0 and load(page, P_NEXT) == 0:
        depth = load(page, P_DEPTH)
        twin = load(load(m, DIRECTORY), (load(page, P_PREFIX) ^ 1) << (load(m, DEPTH) - depth))
        other = readable(pool, pages, twin)
        count = load(other, P_COUNT)
        if (
            load(other, P_DEPTH) != depth
            or load(other, P_NEXT) != 0
            or count + load(page, P_COUNT) > load(m, FULL) >> 1
        ):
            return
        rids = np.empty(count, np.int64)
        hashes = np.empty(count, np.uint64)
        if _entries(pool, m, other, rids, hashes) < 0:
            return
        for i in range(count):
            _put(m, page, hashes[i], rids[i])
        store(page, P_DEPTH, depth - 1)
        store(page, P_PREFIX, load(page, P_PREFIX) >> 1)
        _enter(m, page, lp)
        drop_page(pool, pages, twin)


@njit(cache=True)
def index_remove(pool, m, h, rid):
    """Take a record out. 0, -2 at the memory limit, -1 if it is not there."""
    lp = root_of(m, h)
    before = np.int64(-1)
    while True:
        page = readable(pool, load(m, INDEX), lp)
        b = home_of(m, h)
        for _ in range(load(m, BUCKETS)):
            bucket = bucket_at(page, b)
            for j in range(BUCKET_SLOTS):
                if tag_at(bucket, j) != np.uint64(0) and rid_at(bucket, j) == rid:
                    page = writable(pool, load(m, INDEX), lp)
                    if page < 0:
                        return page
                    _erase(m, page, b, j, h)
                    count = load(page, P_COUNT)
                    if count <= load(m, FULL) >> 2 and count % SHRINK_EVERY == 0:
                        _shrink(pool, m, lp, before)
                    return 0
            if not _pushed_past(bucket):
                break
            b = _next_bucket(m, b)
        if load(page, P_NEXT) == 0:
            return -1
        before = lp
        lp = load(page, P_NEXT) - 1


@njit(cache=True)
def index_depth(pool, pages):
    """Bits of the hash that the deepest page of a restored index stands for."""
    depth = np.int64(1)
    for lp in range(load(pages, N)):
        if physical(pages, lp) != HOLE and load(readable(pool, pages, lp), P_CHAINED) == 0:
            depth = max(depth, load(readable(pool, pages, lp), P_DEPTH))
    return depth


@njit(cache=True)
def rebuild_directory(pool, m, depth):
    """From the headers of the index pages, in whatever order they were loaded."""
    pages = load(m, INDEX)
    store(m, DEPTH, depth)
    for lp in range(load(pages, N)):
        if physical(pages, lp) != HOLE and load(readable(pool, pages, lp), P_CHAINED) == 0:
            _enter(m, readable(pool, pages, lp), lp)


@njit(cache=True)
def reset_index(pool, m):
    """Forget all index pages but one: the map is empty. The one it keeps is one it has just let go."""
    pages = load(m, INDEX)
    for lp in range(load(pages, N)):
        if physical(pages, lp) != HOLE:
            drop_page(pool, pages, lp)
    lp = add_page(pool, pages, False)
    store(m, DEPTH, 1)
    store(load(m, DIRECTORY), 0, lp)
    store(load(m, DIRECTORY), 1, lp)
    return lp

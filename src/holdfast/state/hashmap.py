"""The unordered map: a paged hash index over fixed-size records.

sguard §4.3 uses linear hashing with buckets of pages. On today's machines a look-up costs what its cache misses cost,
so this map is built around them:

* **Records apart from the index.** Records are dense and keep their number for life (`slots.py`), so scanning,
  capturing and mirroring them into an image need no hashing, and an update dirties no index page.
* **One cache line per bucket.** A bucket is 64 bytes: 12 one-byte tags, 12 record numbers, and a count of entries that
  had to go further. A look-up reads one line, compares 12 tags at once with plain 64-bit arithmetic, and goes to the
  record only on a tag that fits; keys are then compared word by word (and long strings byte by byte).
* **Growth page by page.** A directory maps the top bits of the hash to an index page; a page that fills up splits in
  two (extendible hashing). The longest pause is the split of one page, never a rehash of the map. The directory is a
  few thousand numbers, stays in the cache, and is rebuilt from page headers after a restore. Two halves that have
  become less than half a page together are joined again.
* **Waiting once.** `upsert` runs over a block of rows three times: ask for the buckets, ask for the records, then do
  the work. The misses of a block overlap.

At worst (just after all pages have split) the index takes 12.7 bytes a record, 6.3 at best.

If more than half of a full page shares one hash, splitting cannot help, so the page gets an overflow page instead:
colliding keys cost time, never correctness.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from holdfast.errors import StateError, check
from holdfast.state.heap import heap_free, heap_put, is_long, long_length, same_value
from holdfast.state.intrinsics import (
    address,
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
from holdfast.state.pages import (
    ABSENT,
    FAULT,
    HEADER_WORDS,
    HOLE,
    N,
    PagePool,
    add_page,
    bump,
    drop_page,
    is_absent,
    new_block,
    physical,
    readable,
    writable,
)
from holdfast.state.slots import (
    HEAP,
    KW,
    LIVE,
    PAGES,
    RW,
    VAR_AT,
    VARS,
    SlotStore,
    is_taken,
    mark_touched,
    page_of,
    record_address,
    record_writable,
    slot_alloc,
    slot_free,
    slot_place,
)

KIND_INDEX = 2

#: Kinds of key words: a plain word; the first and the second word of a variable-length value.
PLAIN, VAR0, VAR1 = 0, 1, 2

BUCKET_WORDS = 8
BUCKET_SLOTS = 12
#: Words of an index page's header: entries, how many bits of the hash it stands for and which, the overflow page
#: (+ 1), and whether it is one.
P_COUNT, P_DEPTH, P_PREFIX, P_NEXT, P_CHAINED = 2, 3, 4, 5, 6
#: A map's block: addresses of the records, the index's page set, the directory and the kinds of key words; then
#: buckets per page, entries at which a page is full, and the directory's depth.
SLOTS, INDEX, DIRECTORY, KINDS, BUCKETS, FULL, DEPTH, DEPTH_MAX = range(8)
#: A key batch's block: addresses of words, null bits and hashes; rows and key words.
K_WORDS, K_NULLS, K_HASHES, K_ROWS = range(4)

#: Fill at which a page splits: higher saves memory, but more entries leave their home bucket.
FILL_MAX = 0.84

#: A page that is less than a quarter full looks for a page to join after so many removals.
SHRINK_EVERY = 32

BLOCK_ROWS = 32

_ONES = np.uint64(0x0101010101010101)
_HIGHS = np.uint64(0x8080808080808080)
_LOW4 = np.uint64(0xFFFFFFFF)
_SEED = np.uint64(0x9E3779B97F4A7C15)
_KEY = np.uint64(0xE7037ED1A0B428DB)
#: A bucket counts the entries that had to go further in the upper half of its second word; a page of 1 MiB holds more
#: than 16 bits count.
_PUSHED = np.uint64(32)


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
        h = _SEED ^ np.uint64(nulls[i])
        for j in range(kw):
            if kinds[j] == VAR1 and is_long(words[i, j - 1]):
                continue
            h = mix(h ^ np.uint64(words[i, j]), _KEY)
        out[i] = mix(h, _SEED)


@njit(cache=True)
def _kind(m, j):
    return load_byte(load(m, KINDS), j)


@njit(cache=True)
def _key_words(m):
    return load(load(m, SLOTS), KW)


@njit(cache=True)
def _hash_record(m, at):
    h = _SEED ^ (np.uint64(load(at, 0)) & _LOW4)
    for j in range(_key_words(m)):
        if _kind(m, j) == VAR1 and is_long(load(at, j)):
            continue
        h = mix(h ^ np.uint64(load(at, 1 + j)), _KEY)
    return mix(h, _SEED)


@njit(cache=True)
def _hash_of(keys, i):
    return np.uint64(load(load(keys, K_HASHES), i))


@njit(cache=True)
def _key_word(m, keys, i, j):
    return load(load(keys, K_WORDS), i * _key_words(m) + j)


@njit(cache=True)
def _tag(h):
    """A byte from 1 to 255: zero means an empty slot."""
    return np.uint64(1) + ((((h >> np.uint64(24)) & np.uint64(0xFFFF)) * np.uint64(255)) >> np.uint64(16))


@njit(cache=True)
def _home(m, h):
    """The bucket in its page where an entry belongs."""
    return np.int64(multiply_high((h & np.uint64(0xFFFFFF)) << np.uint64(40), np.uint64(load(m, BUCKETS))))


@njit(cache=True)
def _next_bucket(m, b):
    return b + 1 if b + 1 < load(m, BUCKETS) else 0


@njit(cache=True)
def _bucket_at(page, b):
    return page + 8 * (HEADER_WORDS + b * BUCKET_WORDS)


@njit(cache=True)
def _root(m, h):
    """The index page that the directory names for a hash."""
    return load(load(m, DIRECTORY), np.int64(h >> np.uint64(64 - load(m, DEPTH))))


@njit(cache=True)
def _zero_bytes(x):
    """High bit set in each byte of x that is zero (and maybe in a byte above one: a candidate, not a verdict)."""
    return (x - _ONES) & ~x & _HIGHS


@njit(cache=True)
def _rid_at(bucket, j):
    return np.int64((np.uint64(load(bucket, 2 + (j >> 1))) >> np.uint64(32 * (j & 1))) & _LOW4)


@njit(cache=True)
def _tag_at(bucket, j):
    return (np.uint64(load(bucket, j >> 3)) >> np.uint64(8 * (j & 7))) & np.uint64(0xFF)


@njit(cache=True)
def _pushed_past(bucket):
    return np.uint64(load(bucket, 1)) >> _PUSHED != np.uint64(0)


@njit(cache=True)
def _same_key(pool, m, at, keys, i):
    if (np.uint64(load(at, 0)) & _LOW4) != np.uint64(load(load(keys, K_NULLS), i)):
        return False
    for j in range(_key_words(m)):
        stored = load(at, 1 + j)
        given = _key_word(m, keys, i, j)
        if _kind(m, j) == VAR1 and is_long(load(at, j)):
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
    z = _zero_bytes(np.uint64(load(bucket, half)) ^ (tag * _ONES))
    if half == 1:
        z &= _LOW4
    while z != np.uint64(0):
        j = half * 8 + np.int64(trailing_zeros(z) >> np.uint64(3))
        z &= z - np.uint64(1)
        if _tag_at(bucket, j) != tag:
            continue  # not even a hint: an empty slot still names the record that left it, key and all
        rid = _rid_at(bucket, j)
        if is_absent(load(s, PAGES), page_of(s, rid)):
            return -3
        if _same_key(pool, m, record_address(pool, s, rid), keys, i):
            return rid
    return -1


@njit(cache=True)
def find_rid(pool, m, keys, i):
    """The record of key i: rid, -1 if there is none, -3 if a page has to be loaded first."""
    h = _hash_of(keys, i)
    tag = _tag(h)
    lp = _root(m, h)
    while True:
        page = readable(pool, load(m, INDEX), lp)
        b = _home(m, h)
        for _ in range(load(m, BUCKETS)):
            bucket = _bucket_at(page, b)
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
def _free_in(bucket):
    """An empty slot of a bucket, or -1."""
    z = _zero_bytes(np.uint64(load(bucket, 0)))
    if z != np.uint64(0):
        return np.int64(trailing_zeros(z) >> np.uint64(3))
    z = _zero_bytes(np.uint64(load(bucket, 1))) & _LOW4
    if z != np.uint64(0):
        return 8 + np.int64(trailing_zeros(z) >> np.uint64(3))
    return np.int64(-1)


@njit(cache=True)
def _put(m, page, h, rid):
    """Enter (tag, rid) in an index page that has room."""
    b = _home(m, h)
    while True:
        bucket = _bucket_at(page, b)
        j = _free_in(bucket)
        if j >= 0:
            break
        store(bucket, 1, np.int64(np.uint64(load(bucket, 1)) + (np.uint64(1) << _PUSHED)))
        b = _next_bucket(m, b)
    tags = np.uint64(load(bucket, j >> 3)) | (_tag(h) << np.uint64(8 * (j & 7)))
    store(bucket, j >> 3, np.int64(tags))
    shift = np.uint64(32 * (j & 1))
    pair = np.uint64(load(bucket, 2 + (j >> 1))) & ~(_LOW4 << shift)
    store(bucket, 2 + (j >> 1), np.int64(pair | (np.uint64(rid) << shift)))
    bump(page, P_COUNT, 1)


@njit(cache=True)
def _entries(pool, m, page, rids, hashes):
    """All entries of an index page with the hashes of their records; -3 if one of those has to be loaded first."""
    s = load(m, SLOTS)
    k = 0
    for b in range(load(m, BUCKETS)):
        bucket = _bucket_at(page, b)
        for j in range(BUCKET_SLOTS):
            if _tag_at(bucket, j) != np.uint64(0):
                rids[k] = _rid_at(bucket, j)
                if is_absent(load(s, PAGES), page_of(s, rids[k])):
                    return -3
                prefetch(record_address(pool, s, rids[k]))
                k += 1
    for i in range(k):
        hashes[i] = _hash_record(m, record_address(pool, s, rids[i]))
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
    zero_words(_bucket_at(page, 0), load(m, BUCKETS) * BUCKET_WORDS)


@njit(cache=True)
def _chain(pool, m, page):
    """Move a page's content to an overflow page of its own and start over. 0, or -2 at the limit."""
    extra = add_page(pool, load(m, INDEX), False)
    if extra < 0:
        return -2
    other = readable(pool, load(m, INDEX), extra)
    copy_words(_bucket_at(other, 0), _bucket_at(page, 0), load(m, BUCKETS) * BUCKET_WORDS)
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
        lp = _root(m, h)
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
    bucket = _bucket_at(page, b)
    store(bucket, j >> 3, np.int64(np.uint64(load(bucket, j >> 3)) & ~(np.uint64(0xFF) << np.uint64(8 * (j & 7)))))
    bump(page, P_COUNT, -1)
    passed = _home(m, h)
    while passed != b:
        at = _bucket_at(page, passed)
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
    lp = _root(m, h)
    before = np.int64(-1)
    while True:
        page = readable(pool, load(m, INDEX), lp)
        b = _home(m, h)
        for _ in range(load(m, BUCKETS)):
            bucket = _bucket_at(page, b)
            for j in range(BUCKET_SLOTS):
                if _tag_at(bucket, j) != np.uint64(0) and _rid_at(bucket, j) == rid:
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
def _intern(pool, m, at, keys, i):
    """Move the long values of a new record's key into the heap. 0, or -2 with nothing kept."""
    heap = load(load(m, SLOTS), HEAP)
    for j in range(_key_words(m)):
        if _kind(m, j) == VAR1 and is_long(load(at, j)):
            place = heap_put(pool, heap, _key_word(m, keys, i, j), long_length(load(at, j)))
            if place < 0:
                for q in range(j):
                    if _kind(m, q) == VAR1 and is_long(load(at, q)):
                        heap_free(pool, heap, load(at, 1 + q), long_length(load(at, q)))
                return -2
            store(at, 1 + j, place)
    return 0


@njit(cache=True)
def _fill(pool, m, rid, keys, i, identity):
    """Write key i and the identity values into a slot, and enter it in the index. 0; or -2, -3 and the slot is free."""
    s = load(m, SLOTS)
    at = record_address(pool, s, rid)
    zero_words(at, load(s, RW))
    store(at, 0, load(load(keys, K_NULLS), i))
    for j in range(_key_words(m)):
        store(at, 1 + j, _key_word(m, keys, i, j))
    for w in range(len(identity)):
        store(at, 1 + _key_words(m) + w, identity[w])
    code = _intern(pool, m, at, keys, i)
    if code < 0:
        for v in range(load(s, VARS)):
            store(at, load(load(s, VAR_AT), v), 0)  # the heap has let go of them already
    else:
        code = index_insert(pool, m, _hash_of(keys, i), rid)
    if code < 0:
        slot_free(pool, s, rid)
    return code


@njit(cache=True)
def _insert(pool, m, keys, i, identity):
    """A new record for key i. Its rid; or -2, -3 with nothing kept."""
    rid = slot_alloc(pool, load(m, SLOTS))
    if rid < 0:
        return rid
    code = _fill(pool, m, rid, keys, i, identity)
    return rid if code == 0 else code


@njit(cache=True)
def _ask(pool, m, keys, start, stop):
    """Start the loads that a block of look-ups will need: the buckets, then the records that they name."""
    s = load(m, SLOTS)
    for i in range(start, stop):
        h = _hash_of(keys, i)
        prefetch(_bucket_at(readable(pool, load(m, INDEX), _root(m, h)), _home(m, h)))
    for i in range(start, stop):
        h = _hash_of(keys, i)
        bucket = _bucket_at(readable(pool, load(m, INDEX), _root(m, h)), _home(m, h))
        z = _zero_bytes(np.uint64(load(bucket, 0)) ^ (_tag(h) * _ONES))
        first = np.int64(0)
        if z == np.uint64(0):
            z = _zero_bytes(np.uint64(load(bucket, 1)) ^ (_tag(h) * _ONES)) & _LOW4
            first = np.int64(8)
        if z != np.uint64(0):
            rid = _rid_at(bucket, first + np.int64(trailing_zeros(z) >> np.uint64(3)))
            if physical(load(s, PAGES), page_of(s, rid)) > 0:
                prefetch(record_address(pool, s, rid))


@njit(cache=True, nogil=True)
def upsert(pool, m, keys, start, identity, out, fresh, fresh_count):
    """Find or make the record of each key from row `start` on.

    out[i] becomes the address of a record that may be written; fresh gathers the rids of new ones. Returns
    (rows done, code, fresh count); code 0: all, -2: memory limit, -3: a page has to be loaded first.
    """
    n = load(keys, K_ROWS)
    s = load(m, SLOTS)
    i = start
    while i < n:
        stop = min(n, i + BLOCK_ROWS)
        _ask(pool, m, keys, i, stop)
        while i < stop:
            rid = find_rid(pool, m, keys, i)
            if rid == -1:
                rid = _insert(pool, m, keys, i, identity)
                if rid >= 0:
                    fresh[fresh_count] = rid
                    fresh_count += 1
            if rid < 0:
                return i, rid, fresh_count
            at = record_writable(pool, s, rid)
            if at < 0:
                return i, at, fresh_count
            mark_touched(s, rid)
            out[i] = at
            i += 1
    return n, 0, fresh_count


@njit(cache=True, nogil=True)
def lookup(pool, m, keys, start, out):
    """Rids of keys, -1 where there is none; (rows done, code)."""
    n = load(keys, K_ROWS)
    i = start
    while i < n:
        stop = min(n, i + BLOCK_ROWS)
        _ask(pool, m, keys, i, stop)
        while i < stop:
            rid = find_rid(pool, m, keys, i)
            if rid == -3:
                return i, -3
            out[i] = rid
            i += 1
    return n, 0


@njit(cache=True, nogil=True)
def remove_rids(pool, m, rids, start):
    """Take records out, index first. (done, code): -2 when an index page cannot be cloned, -1 when there is no such
    record; what is done is done."""
    s = load(m, SLOTS)
    n = len(rids)
    for i in range(start, n):
        if i + BLOCK_ROWS < n:
            prefetch(record_address(pool, s, rids[i + BLOCK_ROWS]))
        if not is_taken(s, rids[i]):
            return i, -1
        code = index_remove(pool, m, _hash_record(m, record_address(pool, s, rids[i])), rids[i])
        if code < 0:
            return i, code
        slot_free(pool, s, rids[i])
    return n, 0


@njit(cache=True, nogil=True)
def place_records(pool, m, rids, keys, identity, start):
    """Put records with these keys at these very rids (an image follows its primary). (done, code as `slot_place`)."""
    for i in range(start, len(rids)):
        code = slot_place(pool, load(m, SLOTS), rids[i])
        if code == 0:
            code = _fill(pool, m, rids[i], keys, i, identity)
        if code < 0:
            return i, code
    return len(rids), 0


@njit(cache=True)
def _index_depth(pool, pages):
    """Bits of the hash that the deepest page of a restored index stands for."""
    depth = np.int64(1)
    for lp in range(load(pages, N)):
        if physical(pages, lp) != HOLE and load(readable(pool, pages, lp), P_CHAINED) == 0:
            depth = max(depth, load(readable(pool, pages, lp), P_DEPTH))
    return depth


@njit(cache=True)
def _rebuild_directory(pool, m, depth):
    """From the headers of the index pages, in whatever order they were loaded."""
    pages = load(m, INDEX)
    store(m, DEPTH, depth)
    for lp in range(load(pages, N)):
        if physical(pages, lp) != HOLE and load(readable(pool, pages, lp), P_CHAINED) == 0:
            _enter(m, readable(pool, pages, lp), lp)


@njit(cache=True)
def _reset_index(pool, m):
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


@dataclass(frozen=True)
class MapLayout:
    """The shape of a map's records: kinds of key words, number of value words, two-word values among the latter."""

    kinds: tuple[int, ...]
    value_words: int
    #: Offsets from the start of the value words of variable-length values.
    value_vars: tuple[int, ...] = ()

    @property
    def key_words(self) -> int:
        return len(self.kinds)

    def var_at(self) -> list[int]:
        keys = [1 + j for j, kind in enumerate(self.kinds) if kind == VAR0]
        return keys + [1 + self.key_words + v for v in self.value_vars]


class HashMap:
    """An unordered map on pages. `ids` .. `ids + 2` are its page sets: records, long values, index."""

    SETS = 3

    def __init__(self, pool: PagePool, ids: int, layout: MapLayout) -> None:
        self.pool = pool
        self.layout = layout
        self.slots = SlotStore(
            pool, ids, key_words=layout.key_words, value_words=layout.value_words, var_at=layout.var_at()
        )
        self.index = pool.create(ids + 2, KIND_INDEX)
        buckets = (pool.page_words - HEADER_WORDS) // BUCKET_WORDS
        self.index.load_all()
        depth = _index_depth(pool.at, self.index.at)
        depth_max = max(depth, min(24, pool.pages_max.bit_length() + 2))  # it may come from a larger pool
        self._directory = np.zeros(1 << depth_max, np.int64)
        self._kinds = np.array(layout.kinds, np.uint8)
        self.block = new_block(SLOTS, self.slots.block, self.index.block, self._directory, self._kinds)
        self.block[BUCKETS] = buckets
        self.block[FULL] = int(buckets * BUCKET_SLOTS * FILL_MAX)
        self.block[DEPTH] = 1
        self.block[DEPTH_MAX] = depth_max
        self.at = address(self.block)
        if len(self.index):
            _rebuild_directory(pool.at, self.at, depth)
        else:
            self._directory[:2] = self.index.allocate()

    def __len__(self) -> int:
        return len(self.slots)

    def upsert(self, keys: Keys, identity: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Find or make a record per key: (addresses to write, rids of new records). All or nothing at the limit.

        The addresses hold until the next snapshot or structural change of this map.
        """
        n = len(keys)
        out = np.empty(n, np.int64)
        fresh = np.empty(n, np.int64)
        done, count = 0, 0
        stuck_at = -1
        while True:
            done, code, count = upsert(self.pool.at, self.at, keys.at, done, identity, out, fresh, count)
            if code == 0:
                return out, fresh[:count]
            try:
                stuck_at = self._help(code, done, stuck_at)
            except StateError:
                # cannot need memory or a page from the file: these records' pages were all written by this batch
                undone, _ = remove_rids(self.pool.at, self.at, fresh[:count], 0)
                check(undone == count, "a batch could not be rolled back", f"{undone} of {count} new records")
                raise

    def find(self, keys: Keys) -> NDArray[np.int64]:
        """Rids of keys, -1 where there is none."""
        out = np.empty(len(keys), np.int64)
        done = 0
        while True:
            done, code = lookup(self.pool.at, self.at, keys.at, done, out)
            if code == 0:
                return out
            self._help(code, done, -1)

    def remove(self, rids: NDArray[np.int64]) -> None:
        """Take records out."""
        self.slots.load_pages_of(rids)
        done, code, stuck_at = 0, -2, -1
        while code:
            done, code = remove_rids(self.pool.at, self.at, rids, done)
            if code:
                stuck_at = self._help(code, done, stuck_at)
        if self.slots.block[LIVE] == 0 and len(self.index) > 1 and not self.slots.pages.block[ABSENT]:
            _reset_index(self.pool.at, self.at)

    def place(self, rids: NDArray[np.int64], keys: Keys, identity: NDArray[np.int64]) -> None:
        """Make records of these keys at these very rids."""
        done, code, stuck_at = 0, -2, -1
        while code:
            done, code = place_records(self.pool.at, self.at, rids, keys.at, identity, done)
            if code:
                stuck_at = self._help(code, done, stuck_at)

    def clear(self) -> None:
        """Forget every record. At the memory limit: none, and a MemoryLimitError."""
        fresh = self.index.allocate()  # first: what is let go below may be held by snapshots and free nothing
        self.slots.clear()
        for lp in self.index.logical():
            if lp != fresh:
                self.index.release(int(lp))
        self.block[DEPTH] = 1
        self._directory[:2] = fresh

    def flush(self) -> None:
        """Before a snapshot."""
        self.slots.flush()

    def _help(self, code: int, row: int, stuck_at: int) -> int:
        """Do what a kernel that stopped at a row asks for; where it stopped for memory last, for the next call."""
        check(code != -1, "a record number is not what the map has there", f"row {row} of the batch")
        if code == -3:
            self.slots.pages.fault(int(self.slots.pages.block[FAULT]))
            return stuck_at
        if row <= stuck_at:  # room was made for this very row, and it was not enough
            raise self.pool.limit_error()
        self.pool.make_room()
        return row

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

import numpy as np
from numba import njit
from numpy.typing import NDArray

from holdfast.errors import ConfigError, StateError, check
from holdfast.state.heap import heap_free, heap_put, is_long, long_length
from holdfast.state.index import (
    BUCKET_SLOTS,
    BUCKET_WORDS,
    BUCKETS,
    DEPTH,
    DEPTH_MAX,
    DIRECTORY,
    FILL_MAX,
    FULL,
    HAS_VARS,
    INDEX,
    KIND_INDEX,
    LOW4,
    ONES,
    SLOTS,
    bucket_at,
    find_rid,
    hash_record,
    home_of,
    index_depth,
    index_insert,
    index_remove,
    key_word,
    key_words,
    kind_of,
    rebuild_directory,
    reset_index,
    rid_at,
    root_of,
    same_key,
    tag_at,
    tag_of,
    zero_bytes,
)
from holdfast.state.intrinsics import address, load, prefetch, store, trailing_zeros, zero_words
from holdfast.state.keys import K_HASHES, K_NULLS, K_ROWS, K_WORDS, VAR0, VAR1, Keys, hash_of
from holdfast.state.pages import PagePool
from holdfast.state.pagetable import (
    ABSENT,
    FAULT,
    HEADER_WORDS,
    SEQ,
    SHIFT,
    STAMP,
    TABLE,
    WORDS,
    new_block,
    readable,
    writable,
)
from holdfast.state.records import (
    BITMAP_WORDS,
    FIRST,
    HEAP,
    KW,
    LIVE,
    PAGES,
    RW,
    SLOT_BITS,
    TOUCHED,
    VAR_AT,
    VARS,
    is_taken,
    record_address,
    slot_alloc,
    slot_free,
    slot_place,
)
from holdfast.state.slots import SlotStore

BLOCK_ROWS = 32

#: Null bits that a record has room for.
KEY_COLUMNS_MAX = 32


@njit(cache=True)
def _intern(pool, m, at, keys, i):
    """Move the long values of a new record's key into the heap. 0, or -2 with nothing kept."""
    heap = load(load(m, SLOTS), HEAP)
    for j in range(key_words(m)):
        if kind_of(m, j) == VAR1 and is_long(load(at, j)):
            place = heap_put(pool, heap, key_word(m, keys, i, j), long_length(load(at, j)))
            if place < 0:
                for q in range(j):
                    if kind_of(m, q) == VAR1 and is_long(load(at, q)):
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
    for j in range(key_words(m)):
        store(at, 1 + j, key_word(m, keys, i, j))
    for w in range(len(identity)):
        store(at, 1 + key_words(m) + w, identity[w])
    code = _intern(pool, m, at, keys, i)
    if code < 0:
        for v in range(load(s, VARS)):
            store(at, load(load(s, VAR_AT), v), 0)  # the heap has let go of them already
    else:
        code = index_insert(pool, m, hash_of(keys, i), rid)
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
def _ask(pool, m, keys, start, stop, candidates):
    """Start the loads that a block of look-ups will need: the buckets, then the records that they name.

    candidates[i - start] becomes the record that the tag of key i names first, or -1: most often the right one.
    """
    s = load(m, SLOTS)
    directory = load(m, DIRECTORY)
    table = load(load(m, INDEX), TABLE)
    words = load(pool, WORDS) + 8 * HEADER_WORDS
    page_shift = load(pool, SHIFT) + 3
    hash_shift = np.uint64(64 - load(m, DEPTH))
    hashes = load(keys, K_HASHES)
    for i in range(start, stop):
        h = np.uint64(load(hashes, i))
        page = load(table, load(directory, np.int64(h >> hash_shift)))
        bucket = words + (page << page_shift) + 8 * BUCKET_WORDS * home_of(m, h)
        prefetch(bucket)
        candidates[i - start] = bucket
    records = load(load(s, PAGES), TABLE)
    slot_bits = load(s, SLOT_BITS)
    slot_mask = (1 << slot_bits) - 1
    record_bytes = 8 * load(s, RW)
    record_words = load(pool, WORDS) + 8 * load(s, FIRST)
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
            rid = rid_at(bucket, j)
            page = load(records, rid >> slot_bits)
            if tag_at(bucket, j) == tag and page > 0:
                candidates[i - start] = rid
                prefetch(record_words + (page << page_shift) + (rid & slot_mask) * record_bytes)


@njit(cache=True)
def _ask_buckets(pool, m, keys, start, stop):
    """Start the loads of the buckets in which a block of new keys belong."""
    for i in range(start, stop):
        h = hash_of(keys, i)
        prefetch(bucket_at(readable(pool, load(m, INDEX), root_of(m, h)), home_of(m, h)))


@njit(cache=True)
def _same_plain(at, nulls, words):
    """Whether a record has this key; both are plain words. `words` is where the key's are, and how many."""
    if (np.uint64(load(at, 0)) & LOW4) != np.uint64(nulls):
        return False
    for j in range(words[1]):
        if load(at, 1 + j) != load(words[0], j):
            return False
    return True


@njit(cache=True)
def _find_or_insert(pool, m, keys, i, identity, fresh, fresh_count):
    """What a candidate was not: (rid or code, fresh count)."""
    rid = find_rid(pool, m, keys, i)
    if rid == -1:
        rid = _insert(pool, m, keys, i, identity)
        if rid >= 0:
            fresh[fresh_count] = rid
            fresh_count += 1
    return rid, fresh_count


@njit(cache=True, nogil=True)
def upsert(pool, m, keys, start, identity, out, fresh, fresh_count):
    """Find or make the record of each key from row `start` on.

    out[i] becomes the address of a record that may be written; fresh gathers the rids of new ones. Returns
    (rows done, code, fresh count); code 0: all, -2: memory limit, -3: a page has to be loaded first.
    """
    n = load(keys, K_ROWS)
    s = load(m, SLOTS)
    candidates = np.empty(BLOCK_ROWS, np.int64)
    # what does not change during a batch, out of the blocks: the compiler cannot know
    words = load(pool, WORDS) + 8 * load(s, FIRST)
    page_shift = load(pool, SHIFT) + 3
    seq = load(pool, SEQ)
    table = load(load(s, PAGES), TABLE)
    stamp = load(load(s, PAGES), STAMP)
    touched = load(s, TOUCHED)
    bitmap_words = load(s, BITMAP_WORDS)
    slot_bits = load(s, SLOT_BITS)
    slot_mask = (1 << slot_bits) - 1
    record_bytes = 8 * load(s, RW)
    kw = load(s, KW)
    plain = load(m, HAS_VARS) == 0
    nulls = load(keys, K_NULLS)
    key_rows = load(keys, K_WORDS)
    i = start
    while i < n:
        stop = min(n, i + BLOCK_ROWS)
        _ask(pool, m, keys, i, stop, candidates)
        first = i
        while i < stop:
            rid = candidates[i - first]
            if rid >= 0:
                at = words + (load(table, rid >> slot_bits) << page_shift) + (rid & slot_mask) * record_bytes
                if plain:
                    same = _same_plain(at, load(nulls, i), (key_rows + i * 8 * kw, kw))
                else:
                    same = same_key(pool, m, at, keys, i)
                if not same:
                    rid = np.int64(-1)
            if rid < 0:
                rid, fresh_count = _find_or_insert(pool, m, keys, i, identity, fresh, fresh_count)
                if rid < 0:
                    return i, rid, fresh_count
            lp = rid >> slot_bits
            if load(stamp, lp) != seq:
                page = writable(pool, load(s, PAGES), lp)
                if page < 0:
                    return i, page, fresh_count
            slot = rid & slot_mask
            at = lp * bitmap_words + (slot >> 6)
            store(touched, at, load(touched, at) | (1 << (slot & 63)))
            out[i] = words + (load(table, lp) << page_shift) + slot * record_bytes
            i += 1
    return n, 0, fresh_count


@njit(cache=True, nogil=True)
def lookup(pool, m, keys, start, out):
    """Rids of keys, -1 where there is none; (rows done, code)."""
    n = load(keys, K_ROWS)
    candidates = np.empty(BLOCK_ROWS, np.int64)
    i = start
    while i < n:
        stop = min(n, i + BLOCK_ROWS)
        _ask(pool, m, keys, i, stop, candidates)
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
        code = index_remove(pool, m, hash_record(m, record_address(pool, s, rids[i])), rids[i])
        if code < 0:
            return i, code
        slot_free(pool, s, rids[i])
    return n, 0


@njit(cache=True, nogil=True)
def index_again(pool, m, rids, start):
    """Enter records that the index does not know. (done, code as `index_insert`)."""
    s = load(m, SLOTS)
    for i in range(start, len(rids)):
        code = index_insert(pool, m, hash_record(m, record_address(pool, s, rids[i])), rids[i])
        if code < 0:
            return i, code
    return len(rids), 0


@njit(cache=True, nogil=True)
def place_records(pool, m, rids, keys, identity, start):
    """Put records with these keys at these very rids (an image follows its primary). (done, code as `slot_place`)."""
    for i in range(start, len(rids)):
        if i == start or i % BLOCK_ROWS == 0:
            _ask_buckets(pool, m, keys, i, min(len(rids), i + BLOCK_ROWS))
        code = slot_place(pool, load(m, SLOTS), rids[i])
        if code == 0:
            code = _fill(pool, m, rids[i], keys, i, identity)
        if code < 0:
            return i, code
    return len(rids), 0


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
        columns = sum(kind != VAR1 for kind in layout.kinds)
        if columns > KEY_COLUMNS_MAX:
            raise ConfigError(
                "a map has too many key columns",
                detail=f"There are {columns}; a record has null bits for {KEY_COLUMNS_MAX}.",
                hint="Group by fewer columns, or by one column that is made of several.",
            )
        self.pool = pool
        self.layout = layout
        self.slots = SlotStore(
            pool, ids, key_words=layout.key_words, value_words=layout.value_words, var_at=layout.var_at()
        )
        self.index = pool.create(ids + 2, KIND_INDEX)
        buckets = (pool.page_words - HEADER_WORDS) // BUCKET_WORDS
        self.index.load_all()
        depth = index_depth(pool.at, self.index.at)
        depth_max = max(depth, min(24, pool.pages_max.bit_length() + 2))  # it may come from a larger pool
        self._directory = np.zeros(1 << depth_max, np.int64)
        self._kinds = np.array(layout.kinds, np.uint8)
        self.block = new_block(SLOTS, self.slots.block, self.index.block, self._directory, self._kinds)
        self.block[BUCKETS] = buckets
        self.block[FULL] = int(buckets * BUCKET_SLOTS * FILL_MAX)
        self.block[DEPTH] = 1
        self.block[DEPTH_MAX] = depth_max
        self.block[HAS_VARS] = VAR0 in layout.kinds
        self.at = address(self.block)
        if len(self.index):
            rebuild_directory(pool.at, self.at, depth)
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
                stuck_at = self._help(int(code), done, stuck_at)
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
                stuck_at = self._help(int(code), done, stuck_at)
        if self.slots.block[LIVE] == 0 and len(self.index) > 1 and not self.slots.pages.block[ABSENT]:
            reset_index(self.pool.at, self.at)

    def remove_most(self, rids: NDArray[np.int64]) -> None:
        """Take records out that are nearly all there are. Taking each out of the index would cost several times as much
        as a new index of those that stay, which needs no more pages than the old one. The caller has made room for as
        many as snapshots hold of that."""
        self.slots.free(rids)
        reset_index(self.pool.at, self.at)
        stay = self.slots.rids()
        done, code = index_again(self.pool.at, self.at, stay, 0)
        check(code == 0, "an index could not be made again", f"{done} of {len(stay)} records, {code}")

    def place(self, rids: NDArray[np.int64], keys: Keys, identity: NDArray[np.int64]) -> None:
        """Make records of these keys at these very rids."""
        done, code, stuck_at = 0, -2, -1
        while code:
            done, code = place_records(self.pool.at, self.at, rids, keys.at, identity, done)
            if code:
                stuck_at = self._help(int(code), done, stuck_at)

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

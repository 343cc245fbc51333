"""What tests of the state engine share: keys from plain Python values, records back as plain Python values."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from numba import njit

from holdfast.state import checkpoint
from holdfast.state.hashmap import HashMap, MapLayout
from holdfast.state.heap import pack_value, value_copy_out, value_length
from holdfast.state.intrinsics import address, load, mix, store
from holdfast.state.keys import PLAIN, VAR0, VAR1, Keys, make_keys
from holdfast.state.pages import PagePool, Snapshot
from holdfast.state.pagetable import REFS

Column = int | str | bytes | None


def small_pool(pages: int = 64, page_bytes: int = 4096) -> PagePool:
    return PagePool(page_bytes=page_bytes, limit_bytes=pages * page_bytes)


# not cached: Numba would not notice when what is compiled into these changes


@njit
def set_words(addresses, offset, values):
    """Write value words of records; later rows of the same record win."""
    for i in range(len(addresses)):
        for w in range(values.shape[1]):
            store(addresses[i], offset + w, values[i, w])


@njit
def peek(at, n):
    return np.array([load(at, i) for i in range(n)], dtype=np.int64)


def as_bytes(value: Column) -> bytes:
    return value.encode() if isinstance(value, str) else value if isinstance(value, bytes) else b""


def keys_of(rows: Sequence[Sequence[Column]], kinds: tuple[int, ...]) -> Keys:
    """Pack rows of columns: an int takes a word, a string or bytes two, None sets the column's null bit."""
    words = np.zeros((len(rows), len(kinds)), np.int64)
    nulls = np.zeros(len(rows), np.int64)
    owner = []
    for i, row in enumerate(rows):
        j = 0
        for c, value in enumerate(row):
            if value is None:
                nulls[i] |= 1 << c
            elif kinds[j] == PLAIN:
                words[i, j] = value
            else:
                raw = np.frombuffer(as_bytes(value), np.uint8) if value else np.zeros(1, np.uint8)
                owner.append(raw)
                pack_value(address(raw), len(as_bytes(value)), address(words) + 8 * (i * len(kinds) + j))
            j += 1 if kinds[j] == PLAIN else 2
    return make_keys(words, nulls, kinds, owner)


def int_keys(values: Sequence[int]) -> Keys:
    words = np.array(values, np.int64).reshape(-1, 1)
    return make_keys(words, np.zeros(len(words), np.int64), (PLAIN,))


INT = MapLayout(kinds=(PLAIN,), value_words=1)
TWO = MapLayout(kinds=(PLAIN, PLAIN), value_words=1)
TEXT = MapLayout(kinds=(VAR0, VAR1), value_words=1)
MIXED = MapLayout(kinds=(PLAIN, VAR0, VAR1, PLAIN), value_words=2)
IDENTITY = np.zeros(1, np.int64)


def put(m: HashMap, keys: Keys, values: Sequence[int]) -> None:
    """Upsert and write the first value word."""
    addresses, _ = m.upsert(keys, np.zeros(m.layout.value_words, np.int64))
    set_words(addresses, 1 + m.layout.key_words, np.array(values, np.int64).reshape(-1, 1))


def remove(m: HashMap, keys: Keys) -> None:
    """Take out those of the keys that are there."""
    rids = np.unique(m.find(keys))
    m.remove(rids[rids >= 0])


def value_bytes(pool: PagePool, heap_at: int, w0: int, w1: int) -> bytes:
    out = np.zeros(value_length(w0) + 1, np.uint8)
    return out[: value_copy_out(pool.at, heap_at, w0, w1, address(out))].tobytes()


def columns_of(pool: PagePool, heap_at: int, row: np.ndarray, nulls: int, kinds: tuple[int, ...]) -> tuple[Column, ...]:
    """The key of a record as Python values; strings as bytes."""
    columns: list[Column] = []
    for j, kind in enumerate(kinds):
        if kind == VAR1:
            continue
        if nulls >> len(columns) & 1:
            columns.append(None)
        elif kind == PLAIN:
            columns.append(int(row[j]))
        else:
            columns.append(value_bytes(pool, heap_at, int(row[j]), int(row[j + 1])))
    return tuple(columns)


def contents(m: HashMap) -> dict[tuple[Column, ...], int]:
    """Keys and first value word of all records."""
    kw = m.layout.key_words
    rows = m.slots.gather(m.slots.rids(), 0, kw + 2)
    found = {
        columns_of(m.pool, m.slots.heap.at, r[1 : 1 + kw], int(r[0]) & 0xFFFFFFFF, m.layout.kinds): int(r[1 + kw])
        for r in rows
    }
    assert len(found) == len(m), "a key is in the map twice"
    return found


def save(snapshot: Snapshot, meta: bytes = b"") -> bytes:
    out = io.BytesIO()
    checkpoint.write(snapshot, out, meta)
    return out.getvalue()


def load_pool(*raws: bytes, pages: int = 1024, page_bytes: int = 4096, lazy: bool = False) -> PagePool:
    pool = small_pool(pages, page_bytes)
    checkpoint.restore([checkpoint.Checkpoint.of_bytes(raw) for raw in raws], pool, lazy=lazy)
    return pool


def check_pool(pool: PagePool) -> None:
    """Holders of every page, counted afresh, agree with the pool's own counts; nothing is lost, nothing held twice."""
    refs = np.zeros(pool.pages_max, np.int64)
    for page_set in pool.sets.values():
        physical = page_set.table[page_set.logical()]
        assert len(np.unique(physical[physical > 0])) == (physical > 0).sum(), "two logical pages share a physical one"
        refs[physical[physical > 0]] += 1
        assert len(physical) == len(page_set)
    for snapshot in pool._open:
        np.add.at(refs, snapshot.all_phys[snapshot.released :], 1)
    actual = peek(int(pool.block[REFS]), pool.pages_max)
    assert (actual == refs).all(), "reference counts differ from the holders"
    assert pool.stats().pages == (refs > 0).sum()


@njit
def colliding_words(n, first, constant):
    """Pairs of words that all have the same 64-bit hash: the second undoes what the first did to it."""
    out = np.empty((n, 2), np.int64)
    for i in range(n):
        out[i, 0] = first + i
        out[i, 1] = np.int64(
            mix(np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(first + i), np.uint64(0xE7037ED1A0B428DB))
            ^ np.uint64(constant)
        )
    return out


def colliding_keys(n: int, *, first: int = 0, constant: int = 1) -> Keys:
    """Different keys of the layout TWO, one hash. No stub: the map's own hash gives this."""
    keys = make_keys(colliding_words(n, first, constant), np.zeros(n, np.int64), (PLAIN, PLAIN))
    assert len(np.unique(keys.hashes)) <= 1, "the hash has changed; find its collisions anew"
    return keys

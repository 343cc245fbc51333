"""The list, queue and deque: rows of whole words in a row of pages, open at both ends.

sguard §4.3 uses a doubly linked list of pages. Here a page says in its header at which *position* it stands instead of
who its neighbours are, and a ring beside the pages maps positions to pages. Opening or releasing a page at one end then
writes no other page, row i is found by one division instead of a walk, and a restore needs nothing but the headers, in
any order. Positions only count (a queue that pops endlessly just counts up); page *numbers* are used again, so neither
runs out.

Rows are added and taken away at the ends only, so every page but the first and the last is full. Where the first page
begins and the last one ends is kept beside the pages: popping writes no page, and so clones none that a running
checkpoint holds. `flush` brings the two headers up to date; the pool calls it before a snapshot.

A restore reads the header of every page, so with lazy loading the pages of a deque are brought in when it is opened.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numba import njit
from numpy.typing import NDArray

from holdfast.errors import ConfigError, CorruptPageError, InputError
from holdfast.state.intrinsics import address, copy_words, load, store
from holdfast.state.pages import PagePool
from holdfast.state.pagetable import HEADER_WORDS, add_page, bump, drop_page, new_block, readable, writable

KIND_DEQUE = 5

#: Words of a page's header: its position, its first row, the end of its rows, and the words of a row.
P_POSITION, P_FIRST, P_END, P_ROW_WORDS = 2, 3, 4, 5
#: A deque's block: addresses of the page set and of the ring of page numbers; words of a row, rows of a page, mask of
#: the ring; position of the first page, number of pages, first row of the first one, end of the last one, rows.
PAGES, RING, ROW_WORDS, ROWS, MASK, HEAD, COUNT, FIRST, END, SIZE = range(10)


@njit(cache=True)
def _number(d, k):
    """Logical number of the k-th page."""
    return load(load(d, RING), (load(d, HEAD) + k) & load(d, MASK))


@njit(cache=True)
def _row(d, page, slot):
    return page + 8 * (HEADER_WORDS + slot * load(d, ROW_WORDS))


@njit(cache=True)
def _sign(d, page, k):
    """Write in the header of the k-th page, which may be written, what is on it."""
    store(page, P_POSITION, load(d, HEAD) + k)
    store(page, P_FIRST, load(d, FIRST) if k == 0 else 0)
    store(page, P_END, load(d, END) if k == load(d, COUNT) - 1 else load(d, ROWS))
    store(page, P_ROW_WORDS, load(d, ROW_WORDS))


@njit(cache=True)
def _is_signed(d, page, k):
    first = load(d, FIRST) if k == 0 else 0
    end = load(d, END) if k == load(d, COUNT) - 1 else load(d, ROWS)
    return load(page, P_FIRST) == first and load(page, P_END) == end


@njit(cache=True)
def _open(pool, d, at_front):
    """A page at one end, with no row on it yet: its address, or -2 at the limit."""
    lp = add_page(pool, load(d, PAGES), False)
    if lp < 0:
        return -2
    slot = load(d, ROWS) if at_front else 0
    if load(d, COUNT) == 0:
        store(d, FIRST, slot)
        store(d, END, slot)
    elif at_front:
        bump(d, HEAD, -1)
        store(d, FIRST, slot)
    else:
        store(d, END, slot)
    count = bump(d, COUNT, 1)
    k = 0 if at_front else count - 1
    store(load(d, RING), (load(d, HEAD) + k) & load(d, MASK), lp)
    return readable(pool, load(d, PAGES), lp)


@njit(cache=True, nogil=True)
def append_back(pool, d, rows, n, start):
    """Copy rows from an address to the back. (rows done, code): -2 when the pool is at its limit."""
    i = start
    while i < n:
        if load(d, COUNT) == 0 or load(d, END) == load(d, ROWS):
            page = _open(pool, d, False)
        else:
            page = writable(pool, load(d, PAGES), _number(d, load(d, COUNT) - 1))
        if page < 0:
            return i, page
        k = min(n - i, load(d, ROWS) - load(d, END))
        copy_words(_row(d, page, load(d, END)), rows + 8 * i * load(d, ROW_WORDS), k * load(d, ROW_WORDS))
        bump(d, END, k)
        bump(d, SIZE, k)
        _sign(d, page, load(d, COUNT) - 1)
        i += k
    return n, 0


@njit(cache=True, nogil=True)
def append_front(pool, d, rows, n, start):
    """Copy rows from an address to the front, the last one first. (rows done, code)."""
    i = start
    while i < n:
        if load(d, COUNT) == 0 or load(d, FIRST) == 0:
            page = _open(pool, d, True)
        else:
            page = writable(pool, load(d, PAGES), _number(d, 0))
        if page < 0:
            return i, page
        k = min(n - i, load(d, FIRST))
        bump(d, FIRST, -k)
        bump(d, SIZE, k)
        copy_words(_row(d, page, load(d, FIRST)), rows + 8 * (n - i - k) * load(d, ROW_WORDS), k * load(d, ROW_WORDS))
        _sign(d, page, 0)
        i += k
    return n, 0


@njit(cache=True, nogil=True)
def drop_front(pool, d, n):
    """Take away the first n rows, which must be there. Writes no page."""
    bump(d, SIZE, -n)
    bump(d, FIRST, n)
    while load(d, COUNT) > 0:
        end = load(d, END) if load(d, COUNT) == 1 else load(d, ROWS)
        if load(d, FIRST) < end:
            return
        drop_page(pool, load(d, PAGES), _number(d, 0))
        bump(d, FIRST, -end)
        bump(d, HEAD, 1)
        bump(d, COUNT, -1)


@njit(cache=True, nogil=True)
def drop_back(pool, d, n):
    """Take away the last n rows, which must be there. Writes no page."""
    bump(d, SIZE, -n)
    left = n
    while left > 0:
        first = load(d, FIRST) if load(d, COUNT) == 1 else 0
        k = min(left, load(d, END) - first)
        left -= k
        if bump(d, END, -k) == first:
            drop_page(pool, load(d, PAGES), _number(d, load(d, COUNT) - 1))
            bump(d, COUNT, -1)
            store(d, END, load(d, ROWS))


@njit(cache=True, nogil=True)
def copy_rows(pool, d, start, n, out):
    """Copy rows start .. start + n to an address."""
    i = 0
    while i < n:
        at = load(d, FIRST) + start + i
        k = at // load(d, ROWS)
        slot = at - k * load(d, ROWS)
        count = min(n - i, load(d, ROWS) - slot)
        page = readable(pool, load(d, PAGES), _number(d, k))
        copy_words(out + 8 * i * load(d, ROW_WORDS), _row(d, page, slot), count * load(d, ROW_WORDS))
        i += count


@njit(cache=True, nogil=True)
def set_rows(pool, d, start, n, rows):
    """Write over rows start .. start + n. 0; or -2 at the limit, before any row has changed."""
    first = (load(d, FIRST) + start) // load(d, ROWS)
    last = (load(d, FIRST) + start + n - 1) // load(d, ROWS)
    for k in range(first, last + 1):
        if writable(pool, load(d, PAGES), _number(d, k)) < 0:
            return -2
    i = 0
    while i < n:
        at = load(d, FIRST) + start + i
        k = at // load(d, ROWS)
        slot = at - k * load(d, ROWS)
        count = min(n - i, load(d, ROWS) - slot)
        page = readable(pool, load(d, PAGES), _number(d, k))
        copy_words(_row(d, page, slot), rows + 8 * i * load(d, ROW_WORDS), count * load(d, ROW_WORDS))
        i += count
    return 0


@njit(cache=True)
def sign_ends(pool, d):
    """Bring the headers of the first and the last page up to date. 0, or -2 at the limit."""
    for k in (0, load(d, COUNT) - 1):
        if k >= 0 and load(d, COUNT) > 0:
            page = readable(pool, load(d, PAGES), _number(d, k))
            if not _is_signed(d, page, k):
                page = writable(pool, load(d, PAGES), _number(d, k))
                if page < 0:
                    return page
                _sign(d, page, k)
    return 0


class Deque:
    """Rows of `row_words` words on pages, in order. `set_id` is its page set."""

    SETS = 1

    def __init__(self, pool: PagePool, set_id: int, row_words: int, *, dtype: np.dtype | None = None) -> None:
        self.pool = pool
        self.row_words = row_words
        self.dtype = dtype
        rows = (pool.page_words - HEADER_WORDS) // row_words if row_words > 0 else 0
        if rows == 0:
            raise ConfigError(
                "a row does not fit on a page",
                detail=f"A row takes {8 * row_words} bytes, a page holds {8 * (pool.page_words - HEADER_WORDS)}.",
                hint="Use larger pages, or rows of at least one word and fewer columns.",
            )
        self.pages = pool.create(set_id, KIND_DEQUE)
        ring = 1 << pool.pages_max.bit_length()  # more than there can be pages
        self._ring = np.zeros(ring, np.int64)
        self.block = new_block(PAGES, self.pages.block, self._ring)
        self.block[ROW_WORDS] = row_words
        self.block[ROWS] = rows
        self.block[MASK] = ring - 1
        self.at = address(self.block)
        self.pages.on_snapshot = self.flush
        if len(self.pages):
            self._attach()

    @classmethod
    def of(cls, pool: PagePool, set_id: int, dtype: np.dtype) -> Deque:
        """A deque of flat structured rows whose fields are all 8 bytes wide."""
        dtype = np.dtype(dtype)
        fields = [] if dtype.fields is None else [field[0] for field in dtype.fields.values()]
        if not fields or dtype.itemsize != 8 * len(fields) or any(f.itemsize != 8 or f.hasobject for f in fields):
            raise ConfigError(
                "the row type of a deque is not made of words",
                detail=f"It is {dtype}.",
                hint="Use a flat structured dtype whose fields all take 8 bytes (int64, float64, datetime64, ...).",
            )
        return cls(pool, set_id, len(fields), dtype=dtype)

    def _attach(self) -> None:
        """Put the pages of a restore in the order of their positions."""
        self.pages.load_all()
        lps = self.pages.logical()
        headers = np.array([self.pages.resolve(int(lp))[:HEADER_WORDS] for lp in lps])
        order = np.argsort(headers[:, P_POSITION])
        lps, headers = lps[order], headers[order]
        full = int(self.block[ROWS])
        if (
            (np.diff(headers[:, P_POSITION]) != 1).any()
            or (headers[:, P_ROW_WORDS] != self.row_words).any()
            or headers[1:, P_FIRST].any()
            or (headers[:-1, P_END] != full).any()
        ):
            raise CorruptPageError(
                "the pages of a deque do not fit together",
                detail=f"Set {self.pages.id}: {len(lps)} pages, opened with rows of {self.row_words} words.",
                hint="Open it with the row type it was written with, or restore from another checkpoint.",
            )
        head = int(headers[0, P_POSITION])
        self._ring[(head + np.arange(len(lps))) & int(self.block[MASK])] = lps
        self.block[HEAD] = head
        self.block[COUNT] = len(lps)
        self.block[FIRST] = headers[0, P_FIRST]
        self.block[END] = headers[-1, P_END]
        self.block[SIZE] = (headers[:, P_END] - headers[:, P_FIRST]).sum()

    def __len__(self) -> int:
        return int(self.block[SIZE])

    # -- the ends -----------------------------------------------------------------------------------------------

    def append(self, rows: NDArray) -> None:
        """Add rows at the back, in order. At the memory limit: none of them, and a MemoryLimitError."""
        self._add(append_back, drop_back, self._words_of(rows))

    def append_front(self, rows: NDArray) -> None:
        """Add rows before the first, in order: the first of them becomes the first of all. All or nothing too."""
        self._add(append_front, drop_front, self._words_of(rows))

    def _add(self, add, undo, words: NDArray[np.int64]) -> None:
        n = len(words)
        done, code = add(self.pool.at, self.at, address(words), n, 0)
        if code:
            self.pool.make_room()
            done, code = add(self.pool.at, self.at, address(words), n, done)
            if code:
                undo(self.pool.at, self.at, done)
                raise self.pool.limit_error()

    def pop(self, n: int) -> NDArray:
        """Take the first n rows (fewer if there are not so many) away; they are returned in order."""
        n = max(0, min(n, len(self)))
        rows = self.slice(0, n)
        drop_front(self.pool.at, self.at, n)
        return rows

    def pop_back(self, n: int) -> NDArray:
        """Take the last n rows (fewer if there are not so many) away; they are returned in order."""
        n = max(0, min(n, len(self)))
        rows = self.slice(len(self) - n, len(self))
        drop_back(self.pool.at, self.at, n)
        return rows

    def drop(self, n: int) -> None:
        """As `pop`, but nobody wants the rows."""
        drop_front(self.pool.at, self.at, max(0, min(n, len(self))))

    def clear(self) -> None:
        self.drop(len(self))

    # -- anywhere -----------------------------------------------------------------------------------------------

    def get(self, i: int) -> NDArray:
        """Row i; from the back if negative."""
        at = i + len(self) if i < 0 else i
        if not 0 <= at < len(self):
            raise IndexError(f"row {i} of a deque of {len(self)}")
        return self.slice(at, at + 1)[0]

    def slice(self, start: int = 0, stop: int | None = None) -> NDArray:
        """A copy of rows start .. stop, cut to what there is, as Python's slices are."""
        start, stop, _ = slice(start, stop).indices(len(self))
        out = np.empty((max(0, stop - start), self.row_words), np.int64)
        copy_rows(self.pool.at, self.at, start, len(out), address(out))
        return self.typed(out)

    def set(self, start: int, rows: NDArray) -> None:
        """Write over rows from `start` on, which must be there. All or nothing at the limit."""
        words = self._words_of(rows)
        if not 0 <= start <= len(self) - len(words):
            raise IndexError(f"rows {start} to {start + len(words)} of a deque of {len(self)}")
        if not len(words):
            return
        if set_rows(self.pool.at, self.at, start, len(words), address(words)):
            self.pool.make_room()
            if set_rows(self.pool.at, self.at, start, len(words), address(words)):
                raise self.pool.limit_error()

    def views(self) -> Iterator[NDArray]:
        """All rows, page by page, without copying. A view holds until the deque is changed."""
        count, full = int(self.block[COUNT]), int(self.block[ROWS])
        for k in range(count):
            lp = int(self._ring[(int(self.block[HEAD]) + k) & int(self.block[MASK])])
            first = int(self.block[FIRST]) if k == 0 else 0
            end = int(self.block[END]) if k == count - 1 else full
            words = self.pages.resolve(lp)[HEADER_WORDS : HEADER_WORDS + full * self.row_words]
            yield self.typed(words.reshape(full, self.row_words)[first:end])

    def typed(self, words: NDArray[np.int64]) -> NDArray:
        """Rows of words as rows of the deque's dtype, if it has one; the same memory."""
        return words if self.dtype is None else words.view(self.dtype).reshape(-1)

    def flush(self) -> None:
        """Bring the pages up to date with what is beside them; before a snapshot."""
        if sign_ends(self.pool.at, self.at) < 0:
            self.pool.make_room()
            if sign_ends(self.pool.at, self.at) < 0:
                raise self.pool.limit_error()

    def _words_of(self, rows: NDArray) -> NDArray[np.int64]:
        if self.dtype is not None and rows.dtype == self.dtype:
            return np.ascontiguousarray(rows).view(np.int64).reshape(-1, self.row_words)
        if rows.dtype != np.int64 or rows.ndim != 2 or rows.shape[1] != self.row_words:
            raise InputError(
                "rows of another shape than the deque's",
                detail=f"Given {rows.dtype} {rows.shape}; a row is {self.dtype or f'{self.row_words} int64 words'}.",
                hint="Give a two-dimensional int64 array, or a structured array of the deque's dtype.",
            )
        return np.ascontiguousarray(rows)

"""A pool of fixed-size pages in one mapping, and page sets that copy a page before they change a shared one.

This is the Page Manager of sguard §4.1 and §4.4. State lives in pages; a snapshot copies page *ids* and nothing
else; a page that a snapshot still holds is cloned by whoever writes to it first. The format in memory, on the wire
and on disk is the same, so a checkpoint serialises nothing.

How it works, and why this way:

* **One reservation.** The pool reserves its whole limit as address space at once (`MAP_NORESERVE`) and the kernel
  backs a page when it is first touched. So the mapping grows without ever moving: kernels may keep addresses.
* **Words.** A page is a power of two of 64-bit words. A record, a header field and an index bucket are all whole
  words, which keeps every kernel free of casts and unaligned loads.
* **Stamps instead of read-only bits.** The pool counts snapshots (`SEQ`). A page may be written freely while its
  stamp equals `SEQ`; taking a snapshot increments `SEQ` and thereby marks every page read-only in O(1). The first
  write afterwards takes the slow path once per page: clone if a snapshot still holds the page, then restamp. The
  same stamp answers "what changed since snapshot b" for incremental snapshots, for any number of bases.
* **One owner.** A pool belongs to one thread at a time. A background reader never touches the pool's tables: it
  only moves its snapshot's `read` counter, and the owner drops the references at its next `reclaim()`. No lock, no
  atomic, and nothing to wait for.

Never here: what is in a page (the structures know), files and sockets (`checkpoint.py` moves the bytes).
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigError, CorruptPageError, MemoryLimitError, StateError, check
from holdfast.state.intrinsics import address
from holdfast.state.pagetable import (
    ABSENT,
    CLONED,
    COUNT,
    FREE,
    HIGH,
    HOLE,
    ID,
    KIND,
    LAZY,
    LFREE,
    LIMIT,
    SEQ,
    SHIFT,
    TABLE,
    USED,
    USED_PEAK,
    WORDS,
    N,
    _holes,
    add_page,
    adopt_pages,
    alloc,
    drop_page,
    new_block,
    pin,
    unref,
    unref_many,
    writable,
)

PAGE_BYTES_MIN = 4096
PAGE_BYTES_MAX = 1 << 20
_MAP_NORESERVE = 0x4000  # Linux; the mmap module names it only from Python 3.13 on


@dataclass(frozen=True)
class PoolStats:
    """Where the memory is. `pages` counts pages with a holder: live ones, and old ones that snapshots still read."""

    page_bytes: int
    pages: int
    pages_peak: int
    pages_free: int
    pages_cloned: int
    pages_max: int
    snapshots_open: int

    @property
    def bytes(self) -> int:
        return self.pages * self.page_bytes

    @property
    def bytes_peak(self) -> int:
        return self.pages_peak * self.page_bytes


class PageSet:
    """The pages of one data structure: what a snapshot takes and a load brings back."""

    def __init__(self, pool: PagePool, set_id: int, kind: int) -> None:
        self.pool = pool
        self.id = set_id
        self.kind = kind
        n = pool.pages_max
        # calloc'ed, so the part that is never used is never backed by memory
        self.table = np.zeros(n, np.int64)
        self.stamps = np.zeros(n, np.int64)
        self._lfree = np.zeros(n, np.int64)
        self.block = new_block(TABLE, self.table, self.stamps, self._lfree)
        self.block[ID] = set_id
        self.block[KIND] = kind
        self.at = address(self.block)
        #: Called with the logical number of a page that a lazy restore has just brought in.
        self.on_load: Callable[[int], None] | None = None
        #: Called before a snapshot takes the set: the structure brings its pages up to date.
        self.on_snapshot: Callable[[], None] | None = None

    def __len__(self) -> int:
        """Pages in the set."""
        return int(self.block[COUNT])

    def logical(self) -> NDArray[np.int64]:
        """Logical numbers of all pages, ascending."""
        return np.flatnonzero(self.table[: self.block[N]] != HOLE)

    def allocate(self) -> int:
        """A new zeroed page; its logical number."""
        lp = add_page(self.pool.at, self.at, False)
        if lp < 0:
            self.pool.make_room()
            lp = add_page(self.pool.at, self.at, False)
            if lp < 0:
                raise self.pool.limit_error()
        return lp

    def release(self, lp: int) -> None:
        check(self.table[lp] != HOLE, "released a page that the set does not have", f"set {self.id}, page {lp}")
        if self.table[lp] == LAZY:
            self._forget_lazy(lp)
        else:
            drop_page(self.pool.at, self.at, lp)

    def resolve(self, lp: int, *, write: bool = False) -> NDArray[np.int64]:
        """The page's words; cloned first if it is to be written and a snapshot holds it."""
        check(self.table[lp] != HOLE, "resolved a page that the set does not have", f"set {self.id}, page {lp}")
        self._load_if_lazy(lp)
        if write and writable(self.pool.at, self.at, lp) == -2:
            self.pool.make_room()
            if writable(self.pool.at, self.at, lp) == -2:
                raise self.pool.limit_error()
        view = self.pool.page(int(self.table[lp]))
        if not write:
            view = view.view()
            view.flags.writeable = False
        return view

    def shared(self) -> int:
        """Pages that a snapshot holds too: as many as writing to all of them would clone."""
        phys = self.table[: self.block[N]]
        return int((self.pool._refs[phys[phys > 0]] > 1).sum())

    def clear(self) -> None:
        """Release every page."""
        for lp in self.logical():
            self.release(int(lp))
        self.block[N] = 0
        self.block[LFREE] = 0

    # -- loading ------------------------------------------------------------------------------------------------

    def load_all(self) -> None:
        """Bring in the pages of a lazy restore that nobody has touched yet."""
        if self.block[ABSENT]:
            for lp in np.flatnonzero(self.table[: self.block[N]] == LAZY):
                self.fault(int(lp))

    def fault(self, lp: int) -> None:
        """Load one absent page now."""
        check(self.pool.loader is not None, "a page is absent but nothing can load it", f"set {self.id}, page {lp}")
        assert self.pool.loader is not None
        phys = self.pool.take_page()
        try:
            self.pool.loader(self.id, lp, self.pool.page(phys))
            self.pool.adopt([self.id], np.zeros(1, np.int64), np.array([lp]), np.array([phys]))
        except BaseException:  # a file that cannot be read, too
            unref(self.pool.at, phys)
            raise
        self._no_longer_absent()  # only now: at the limit the page is still absent, and can be loaded later
        if self.on_load is not None:
            self.on_load(lp)

    def _no_longer_absent(self) -> None:
        self.block[ABSENT] -= 1
        if self.pool.lazy_pages() == 0:
            self.pool.loader = None  # lets go of the file

    def _forget_lazy(self, lp: int) -> None:
        """Release a page that was never loaded: there is nothing to let go but its number."""
        self.table[lp] = HOLE
        self._lfree[self.block[LFREE]] = lp
        self.block[LFREE] += 1
        self.block[COUNT] -= 1
        self._no_longer_absent()

    def expect_lazy(self, lps: NDArray[np.int64]) -> None:
        """Mark pages as present but not loaded."""
        if len(lps):
            self.check_fits(int(lps.max()))
        self.table[lps] = LAZY
        self.block[ABSENT] = len(lps)
        self.block[N] = int(lps.max()) + 1 if len(lps) else 0
        self.count_pages()

    def check_fits(self, lp: int) -> None:
        """Refuse a page number that this pool's tables cannot hold."""
        if lp >= len(self.table):
            raise ConfigError(
                "the pool is too small for this checkpoint",
                detail=f"Set {self.id} has a page number {lp}; the pool is limited to {self.pool.pages_max - 1} pages.",
                hint=f"Give the pool the limit under which the state was built, at least {lp + 1} pages.",
            )

    def count_pages(self) -> None:
        """After pages were adopted: how many there are, and which numbers are free."""
        _holes(self.at)

    def _load_if_lazy(self, lp: int) -> None:
        if self.table[lp] == LAZY:
            self.fault(lp)


@dataclass(eq=False)
class Snapshot:
    """Page ids of some sets at one moment. The pages stay as they are until `read` passes them or it is closed."""

    pool: PagePool
    seq: int
    base_seq: int  # -1: full
    set_ids: list[int]
    kinds: list[int]
    #: All logical pages that exist, per set: with an incremental snapshot, more than it carries.
    live: list[NDArray[np.int64]]
    #: Carried pages, per set.
    lps: list[NDArray[np.int64]]
    phys: list[NDArray[np.int64]]
    #: How many carried pages (in order over all sets) the reader is done with. Only the reader moves it.
    read: int = 0
    #: How many of those the owner has let go. Only the owner moves it.
    released: int = 0
    #: Set once, by either side, and never taken back: `read` cannot say it, since a reader that is still at work would
    #: move it down again.
    closed: bool = False
    all_phys: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        self.all_phys = np.concatenate(self.phys) if self.phys else np.zeros(0, np.int64)

    def __len__(self) -> int:
        """Pages that the snapshot carries."""
        return len(self.all_phys)

    @property
    def nbytes(self) -> int:
        return len(self) * self.pool.page_bytes

    def page(self, index: int) -> NDArray[np.int64]:
        """The words of a carried page. Valid until `read` moves past it or the snapshot is closed."""
        self.check_open()
        check(index >= self.read, "read a page of a snapshot after letting go of it", f"page {index}, read {self.read}")
        return self.pool.page(int(self.all_phys[index]))

    def check_open(self) -> None:
        """A reader asks again after it has looked at a page: only then was what it saw the snapshot's."""
        if self.closed:
            raise StateError(
                "the snapshot was closed while it was being read",
                detail=f"Snapshot {self.seq}, after {self.read} of {len(self)} pages.",
                hint="What was read so far is not a checkpoint: throw it away.",
            )

    def close(self) -> None:
        """Let go of every page; the owner frees them at its next `reclaim`."""
        self.closed = True


class PagePool:
    """Memory for one shard's state: `limit_bytes` of address space, backed as it is used.

    `origin` names the epoch of the shard: incremental checkpoints of two epochs never mix.
    """

    def __init__(self, *, page_bytes: int = 65536, limit_bytes: int = 1 << 30, origin: int = 0) -> None:
        if page_bytes & (page_bytes - 1) or not PAGE_BYTES_MIN <= page_bytes <= PAGE_BYTES_MAX:
            raise ConfigError(
                "page size cannot be used",
                detail=f"page_bytes is {page_bytes}.",
                hint=f"Choose a power of two from {PAGE_BYTES_MIN} to {PAGE_BYTES_MAX}; 65536 is a good start.",
            )
        if limit_bytes < 4 * page_bytes:
            raise ConfigError(
                "memory limit is too small for a page pool",
                detail=f"limit_bytes is {limit_bytes}, a page is {page_bytes}.",
                hint="A pool needs at least four pages.",
            )
        self.origin = origin
        self.page_bytes = page_bytes
        self.page_words = page_bytes // 8
        self.shift = self.page_words.bit_length() - 1
        self.pages_max = limit_bytes // page_bytes + 1  # page 0 stands for "none"
        self._mapping = mmap.mmap(
            -1, self.pages_max * page_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        )
        # random access over hundreds of megabytes misses the TLB as often as the cache; numpy asks for the same
        self._mapping.madvise(mmap.MADV_HUGEPAGE)
        self.words = np.frombuffer(self._mapping, np.int64)
        self._refs = np.zeros(self.pages_max, np.int64)
        self._free = np.zeros(self.pages_max, np.int64)
        self.block = new_block(WORDS, self.words, self._refs, self._free)
        self.block[SEQ] = 1
        self.block[HIGH] = 1
        self.block[LIMIT] = self.pages_max
        self.block[SHIFT] = self.shift
        self.at = address(self.block)
        self.sets: dict[int, PageSet] = {}
        #: Set by a lazy restore: reads (set id, logical page) into these words.
        self.loader: Callable[[int, int, NDArray[np.int64]], None] | None = None
        self._open: list[Snapshot] = []

    def page(self, phys: int) -> NDArray[np.int64]:
        """The words of a physical page."""
        base = phys << self.shift
        return self.words[base : base + self.page_words]

    def take_page(self) -> int:
        """A physical page to read something into."""
        phys = alloc(self.at)
        if phys == 0:
            self.make_room()
            phys = alloc(self.at)
            if phys == 0:
                raise self.limit_error()
        return phys

    def give_page(self, phys: int) -> None:
        """Give back a page that `take_page` gave and no set has adopted."""
        unref(self.at, phys)

    def adopt(
        self, set_ids: list[int], which: NDArray[np.int64], lps: NDArray[np.int64], phys: NDArray[np.int64]
    ) -> None:
        """Make pages that were read part of their sets: page i is number lps[i] of set set_ids[which[i]]."""
        blocks = np.array([self.sets[i].at for i in set_ids], np.int64)
        bad = adopt_pages(self.at, blocks, which, lps, phys)
        if bad >= 0:
            header = self.page(int(phys[bad]))
            raise CorruptPageError(
                "a loaded page belongs elsewhere",
                detail=f"set {set_ids[which[bad]]}, page {lps[bad]}: header {int(header[0]):#x}/{int(header[1])}",
                hint="The checkpoint was written by another structure or version; restore from another one.",
            )

    # -- page sets ----------------------------------------------------------------------------------------------

    def create(self, set_id: int, kind: int) -> PageSet:
        """The page set of this id: a new one, or the one that a restore brought back (sguard §4.4)."""
        existing = self.sets.get(set_id)
        if existing is not None:
            check(existing.kind == kind, "a page set was restored as another kind", f"set {set_id}")
            return existing
        check(0 <= set_id < 1 << 31 and 0 <= kind < 1 << 15, "page set id or kind out of range", f"{set_id}, {kind}")
        self.sets[set_id] = PageSet(self, set_id, kind)
        return self.sets[set_id]

    def destroy(self, set_id: int) -> None:
        """Release all pages of a set and forget it."""
        self.sets[set_id].clear()
        del self.sets[set_id]

    # -- snapshots ----------------------------------------------------------------------------------------------

    def snapshot(self, set_ids: list[int] | None = None, *, base: Snapshot | None = None) -> Snapshot:
        """Freeze these page sets (all: None) as they are now, or only what was written since snapshot `base`.

        A set that the base does not have is taken whole.
        """
        self.reclaim()
        ids = sorted(self.sets) if set_ids is None else list(set_ids)
        check(len(ids) == len(set(ids)), "a snapshot names a page set twice", f"{ids}")
        check(base is None or base.pool is self, "a snapshot builds on one of another pool")
        for set_id in ids:  # all that can fail comes first: a page once held has a snapshot that lets it go
            ps = self.sets[set_id]
            ps.load_all()
            if ps.on_snapshot is not None:
                ps.on_snapshot()
        snap = Snapshot(self, int(self.block[SEQ]), -1 if base is None else base.seq, ids, [], [], [], [])
        parts = []
        for set_id in ids:
            ps = self.sets[set_id]
            count = len(ps)
            lps = np.empty(count, np.int64)
            phys = np.empty(count, np.int64)
            since = base.seq if base is not None and set_id in base.set_ids else -1
            k = pin(self.at, ps.at, since, lps, phys)
            snap.kinds.append(ps.kind)
            snap.live.append(lps if k == count else ps.logical())
            snap.lps.append(lps[:k])
            parts.append(phys[:k])
        snap.phys = parts
        snap.__post_init__()
        self.block[SEQ] += 1
        self._open.append(snap)
        return snap

    def mark(self) -> Snapshot:
        """A base for incremental snapshots that holds no page: right after a restore, what is there needs no copy."""
        sets = sorted(self.sets.items())
        none = [np.zeros(0, np.int64) for _ in sets]
        marked = Snapshot(
            self, int(self.block[SEQ]), -1, [i for i, _ in sets], [s.kind for _, s in sets], none, none, none
        )
        marked.closed = True
        self.block[SEQ] += 1
        return marked

    def reclaim(self) -> None:
        """Drop the references that readers have finished with. The owner calls it between batches; cheap."""
        if not self._open:
            return
        for snap in self._open:
            read = len(snap) if snap.closed else snap.read  # one look: the reader may move it meanwhile
            if read > snap.released:
                unref_many(self.at, snap.all_phys, snap.released, read)
                snap.released = read
        self._open = [s for s in self._open if s.released < len(s)]

    def make_room(self) -> None:
        """What can be done before giving up: free what readers are done with."""
        self.reclaim()

    def trim(self) -> int:
        """Give the memory of free pages back to the operating system; the number of bytes."""
        free = np.sort(self._free[: self.block[FREE]])
        runs = np.split(free, np.flatnonzero(np.diff(free) != 1) + 1) if len(free) else []
        for run in runs:
            self._mapping.madvise(mmap.MADV_DONTNEED, int(run[0]) * self.page_bytes, len(run) * self.page_bytes)
        return len(free) * self.page_bytes

    def abandon(self) -> None:
        """Give all memory back to the operating system at once; nobody may use the pool any more.

        Pools, sets and structures refer to each other in circles, so that pages and tables would otherwise stay until
        the garbage collector comes by, beside those of the pool that takes its place.
        """
        for snap in self._open:
            snap.close()
        self._open.clear()
        for pages in self.sets.values():
            pages.on_load = pages.on_snapshot = None
        self.sets.clear()
        self._mapping.madvise(mmap.MADV_DONTNEED)

    # -- figures ------------------------------------------------------------------------------------------------

    def ensure_room(self, pages: int) -> None:
        """Make sure that this many pages can be allocated, for something that must not stop half-way."""
        if self.headroom() < pages:
            self.make_room()
            if self.headroom() < pages:
                raise self.limit_error()

    def lazy_pages(self) -> int:
        return sum(int(ps.block[ABSENT]) for ps in self.sets.values())

    def headroom(self) -> int:
        """Pages that can still be allocated."""
        ctl = self.block
        return int(ctl[LIMIT] - 1 - ctl[USED])

    def stats(self) -> PoolStats:
        ctl = self.block
        return PoolStats(
            page_bytes=self.page_bytes,
            pages=int(ctl[USED]),
            pages_peak=int(ctl[USED_PEAK]),
            pages_free=int(ctl[FREE]),
            pages_cloned=int(ctl[CLONED]),
            pages_max=self.pages_max - 1,
            snapshots_open=len(self._open),
        )

    def limit_error(self) -> MemoryLimitError:
        s = self.stats()
        held = sum(len(x) - x.released for x in self._open)
        return MemoryLimitError(
            "state has reached its memory limit",
            detail=(
                f"{s.pages} of {s.pages_max} pages of {s.page_bytes} bytes are in use; "
                f"{held} of them are held by {s.snapshots_open} open snapshots."
            ),
            hint="Raise the limit, use more shards, shorten the window, or let running checkpoints finish first.",
        )

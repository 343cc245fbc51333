"""Pages of a snapshot on their way into files, and back: which page is where, and its digest.

Writers share one list of pages and take the next megabyte of it whenever they are ready for more, so a slow one holds
nobody up and the snapshot lets go of its pages nearly in order (sguard §4.4: a page is writable again when it is
written). Readers read runs of pages straight into the pool's memory, check digests and enter them in the page table
as they come, in any order (§4.4), several at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.checkpoint.keys import file_key, file_name
from holdfast.checkpoint.manifest import CheckpointManifest, PageFile, SetPages, from32, from64, int32, int64
from holdfast.errors import CorruptPageError, check
from holdfast.state.pages import PagePool, Snapshot
from holdfast.state.transfer import copy_out, find_damage, pages_view, prepare
from holdfast.store.plan import ReadRanges

STAGE_BYTES = 1 << 20
#: What one read asks for at once.
READ_BYTES = 4 << 20


@dataclass(frozen=True)
class TableOfSet:
    """Where the pages of one set are: index into the list of files, place in the file; and digests."""

    kind: int
    numbers: NDArray[np.int64]
    files: NDArray[np.int64]
    places: NDArray[np.int64]
    digests: NDArray[np.int64]


@dataclass(frozen=True)
class PageTable:
    """Where every page of a checkpoint is. The next incremental one is made from it."""

    files: tuple[PageFile, ...]
    sets: dict[int, TableOfSet]

    @staticmethod
    def of(manifest: CheckpointManifest) -> PageTable:
        sets = {
            s.id: TableOfSet(s.kind, from32(s.numbers), from32(s.files), from32(s.places), from64(s.digests))
            for s in manifest.sets
        }
        return PageTable(manifest.files, sets)

    def for_manifest(self) -> tuple[SetPages, ...]:
        return tuple(
            SetPages(id_, t.kind, int32(t.numbers), int32(t.files), int32(t.places), int64(t.digests))
            for id_, t in sorted(self.sets.items())
        )

    def shrunk(self) -> PageTable:
        """Without files that have no page of it any more."""
        used = np.zeros(len(self.files), bool)
        for table in self.sets.values():
            used[table.files] = True
        new = np.cumsum(used) - 1
        sets = {id_: TableOfSet(t.kind, t.numbers, new[t.files], t.places, t.digests) for id_, t in self.sets.items()}
        return PageTable(tuple(f for f, keep in zip(self.files, used, strict=True) if keep), sets)

    @property
    def live_pages(self) -> int:
        return sum(len(t.numbers) for t in self.sets.values())

    @property
    def kept_pages(self) -> int:
        """Pages in all files that it needs: more than are live, once pages in them have newer versions."""
        return sum(f.pages for f in self.files)


class PageStreams:
    """The pages of a snapshot as several streams of chunks, one for each writer, which any threads may walk. `even`:
    each has its share, however fast the others are; else whoever is faster gets more."""

    def __init__(self, snapshot: Snapshot, writers: int, stage_bytes: int = STAGE_BYTES, *, even: bool = False) -> None:
        self.snapshot = snapshot
        self._at_once = max(1, stage_bytes // snapshot.pool.page_bytes)
        stages = -(-len(snapshot) // self._at_once)
        #: No more files than there is something to put into.
        self.writers = min(writers, stages)
        self._share = -(-stages // self.writers) if even and self.writers else 0
        if self._share:
            self.writers = -(-stages // self._share)
        self._next = itertools.count()  # `next` of it is one step, whichever thread asks
        self._done = np.zeros(stages + 1, bool)
        self._file = np.zeros(len(snapshot), np.int64)
        self._place = np.zeros(len(snapshot), np.int64)
        self._digest = np.zeros(len(snapshot), np.int64)
        self._pages = [0] * self.writers

    def stream(self, writer: int) -> Iterator[memoryview]:
        pool = self.snapshot.pool
        buffer = np.empty(self._at_once * pool.page_words, np.int64)
        mine = itertools.count(writer * self._share) if self._share else self._next
        end = min((writer + 1) * self._share, len(self._done) - 1) if self._share else len(self._done) - 1
        while (stage := next(mine)) < end:
            start = stage * self._at_once
            stop = min(len(self.snapshot), start + self._at_once)
            copy_out(self.snapshot, start, stop, buffer, self._digest)
            self._file[start:stop] = writer
            self._place[start:stop] = np.arange(self._pages[writer], self._pages[writer] + stop - start)
            self._pages[writer] += stop - start
            self._copied(stage)
            yield memoryview(buffer[: (stop - start) * pool.page_words]).cast("B")  # pyright: ignore[reportArgumentType]

    def _copied(self, stage: int) -> None:
        """Let go of what all writers have copied, and of nothing else: what is let go of may be written at once."""
        self._done[stage] = True
        low = int(self._done.argmin())  # the last one is never done
        self.snapshot.read = min(len(self.snapshot), low * self._at_once)  # of two at once it may be the lower: no harm

    def table(self, sequence: int, base: PageTable | None) -> PageTable:
        """Where every live page is, once all streams have ended: those that were written now, the others as before."""
        check(sum(self._pages) == len(self.snapshot), "a checkpoint was not written to its end")
        before = base.files if base else ()
        files = (*before, *(PageFile(file_name(sequence, i), n) for i, n in enumerate(self._pages)))
        sets: dict[int, TableOfSet] = {}
        at = 0
        snap = self.snapshot
        for set_id, kind, live, lps in zip(snap.set_ids, snap.kinds, snap.live, snap.lps, strict=True):
            now = slice(at, at + len(lps))
            at += len(lps)
            fresh = TableOfSet(kind, lps, self._file[now] + len(before), self._place[now], self._digest[now])
            sets[set_id] = _merged(live, fresh, base.sets.get(set_id) if base else None, set_id)
        return PageTable(files, sets).shrunk()


def _merged(live: NDArray[np.int64], fresh: TableOfSet, old: TableOfSet | None, set_id: int) -> TableOfSet:
    """Every live page: from `fresh` if it is there, else from `old`."""
    order = np.argsort(fresh.numbers)
    where = np.searchsorted(fresh.numbers[order], live)
    known = where < len(order)
    known[known] = fresh.numbers[order][where[known]] == live[known]
    columns = [np.zeros(len(live), np.int64) for _ in range(3)]
    mine = order[where[known]]
    for column, values in zip(columns, (fresh.files, fresh.places, fresh.digests), strict=True):
        column[known] = values[mine]
    rest = live[~known]
    if len(rest):
        check(old is not None, "an incremental checkpoint lacks its base", f"set {set_id}")
        assert old is not None
        at = np.searchsorted(old.numbers, rest)
        fits = (at < len(old.numbers)).all() and (old.numbers[at] == rest).all()
        check(bool(fits), "an incremental checkpoint lacks pages", f"set {set_id}")
        for column, values in zip(columns, (old.files, old.places, old.digests), strict=True):
            column[~known] = values[at]
    return TableOfSet(fresh.kind, live, *columns)


# --- reading


@dataclass(frozen=True)
class _Run:
    """Pages that follow on each other in a file, and the index of the first in the order of reading."""

    file: int
    place: int
    count: int
    at: int


class PageReads:
    """The pages of a checkpoint as operations that read them, each a few megabytes of one file."""

    def __init__(self, manifest: CheckpointManifest, read_bytes: int = READ_BYTES) -> None:
        self.manifest = manifest
        self._table = PageTable.of(manifest)
        self._words = manifest.fit.page_bytes // 8
        ids = sorted(self._table.sets)
        tables = [self._table.sets[i] for i in ids]
        counts = [len(t.numbers) for t in tables]
        self.set_ids = ids
        owner = np.repeat(np.arange(len(ids)), counts)
        files, places, numbers, digests = (
            np.concatenate([getattr(t, name) for t in tables] or [np.zeros(0, np.int64)])
            for name in ("files", "places", "numbers", "digests")
        )
        order = np.lexsort((places, files))
        #: In the order of reading: by file and place.
        self._owner, self._numbers, self._digests = owner[order], numbers[order], digests[order]
        self._files, self._places = files[order], places[order]
        self._given_up = False
        self._groups = list(self._grouped(max(1, read_bytes // manifest.fit.page_bytes)))

    def _grouped(self, most: int) -> Iterator[list[_Run]]:
        """Runs of one file, together at most `most` pages."""
        n = len(self._places)
        breaks = np.flatnonzero((np.diff(self._files) != 0) | (np.diff(self._places) != 1)) + 1
        starts = [0, *breaks.tolist()] if n else []
        group: list[_Run] = []
        room = most
        for start, stop in itertools.pairwise([*starts, n]):
            while start < stop:
                if group and (room == 0 or group[0].file != self._files[start]):
                    yield group
                    group, room = [], most
                count = min(stop - start, room)
                group.append(_Run(int(self._files[start]), int(self._places[start]), count, start))
                start, room = start + count, room - count
        if group:
            yield group

    def into(self, pool: PagePool) -> list[ReadRanges]:
        """Operations that fill an empty pool and rebuild its page tables. `finish` comes after the last."""
        sets = [(i, self._table.sets[i].kind, self._table.sets[i].numbers) for i in self.set_ids]
        phys = prepare(pool, sets)
        first = int(phys[0]) if len(phys) else 0
        return [
            self._read(group, pages_view(pool, first + group[0].at, _count(group)), pool, phys)
            for group in self._groups
        ]

    def give_up(self) -> None:
        """The pool will not be used: a read that comes late must not enter pages in it."""
        self._given_up = True

    def finish(self, pool: PagePool) -> None:
        for page_set in pool.sets.values():
            page_set.count_pages()

    def checks(self) -> Iterator[list[ReadRanges]]:
        """Operations that read and check every page and keep none; in turns, so that few buffers are enough."""
        most = max((_count(group) for group in self._groups), default=0)
        buffers = [np.empty(most * self._words, np.int64) for _ in range(min(4, len(self._groups)))]
        for at in range(0, len(self._groups), max(1, len(buffers))):
            turn = self._groups[at : at + len(buffers)]
            yield [
                self._read(group, memoryview(buffer[: _count(group) * self._words]).cast("B"), None, None)  # pyright: ignore[reportArgumentType]
                for group, buffer in zip(turn, buffers, strict=False)
            ]

    def _read(
        self, group: list[_Run], view: memoryview, pool: PagePool | None, phys: NDArray[np.int64] | None
    ) -> ReadRanges:
        """Runs of a group follow on each other in the order of reading, so one piece of memory takes them all."""
        name = self._table.files[group[0].file].name
        key = file_key(self.manifest.shard, name)
        page_bytes = self.manifest.fit.page_bytes
        ranges = []
        at = 0
        for run in group:
            ranges.append((run.place * page_bytes, view[at : at + run.count * page_bytes]))
            at += run.count * page_bytes
        start, count = group[0].at, _count(group)

        def then() -> None:
            words = np.frombuffer(view, np.int64)
            bad = find_damage(words, self._words, self._digests, start)
            if bad >= 0:
                raise CorruptPageError(
                    f"{key} has a damaged page",
                    detail=f"Page {self._numbers[start + bad]} of set {self.set_ids[self._owner[start + bad]]}: "
                    "its checksum does not match.",
                    hint="Restore from an earlier checkpoint or from another copy.",
                )
            if pool is not None and phys is not None and not self._given_up:
                pages = slice(start, start + count)
                pool.adopt(self.set_ids, self._owner[pages], self._numbers[pages], phys[pages])

        return ReadRanges(key, ranges, then)


def _count(group: list[_Run]) -> int:
    return sum(run.count for run in group)

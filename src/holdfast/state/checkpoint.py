"""Snapshots as bytes: streamed while the owner writes on, and loaded back in any order, or only as needed.

    file   = head · frame · frame · …
    head   = "HFCP" · version · length · manifest (msgpack) · xxh3-64 of the manifest
    frame  = page set · logical page · digest of the page · the page, byte for byte as it was in memory

The manifest says which pages exist, so that a missing, doubled or foreign one is an error, and (for an incremental
checkpoint) which pages to take from the checkpoint before it. Nothing is serialised: a frame is 24 bytes and a view
of the page. Whatever was torn, cut off or flipped on the way is found before an operator sees it.

Only bytes move here; where they go (file, socket, another node's memory) is the caller's.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
import xxhash
from numba import njit
from numpy.typing import NDArray

from holdfast.errors import ConfigError, CorruptPageError, check
from holdfast.state.intrinsics import address, copy_words, load, mix, store
from holdfast.state.pages import PagePool, Snapshot
from holdfast.state.pagetable import SHIFT, page_address

MAGIC = b"HFCP"
VERSION = 1
_HEAD = struct.Struct("<4sIQ")
_FRAME = struct.Struct("<IIQ8x")
_SUM = struct.Struct("<Q")
#: A manifest larger than this is garbage, not a manifest: 16 bytes a page allow for hundreds of gigabytes of state.
_MANIFEST_BYTES_MAX = 1 << 28


_K = tuple(np.uint64(k) for k in (0xA0761D6478BD642F, 0xE7037ED1A0B428DB, 0x8EBC6AF09C88C6E3, 0x589965CC75374CC3))
_K0, _K1, _K2, _K3 = _K


@njit(cache=True, nogil=True)
def digest_words(at, n):
    """A 64-bit digest of n words (a multiple of four) at an address: four lanes of `mix`, folded."""
    a, b, c, d = _K0, _K1, _K2, _K3
    for i in range(0, n, 4):
        a = mix(a ^ np.uint64(load(at, i)), _K1)
        b = mix(b ^ np.uint64(load(at, i + 1)), _K2)
        c = mix(c ^ np.uint64(load(at, i + 2)), _K3)
        d = mix(d ^ np.uint64(load(at, i + 3)), _K0)
    return mix(mix(a ^ _K3, b ^ _K2) ^ np.uint64(n), mix(c ^ _K1, d ^ _K0))


@njit(cache=True, nogil=True)
def stage_frames(pool, phys, owners, lps, start, stop, out):
    """Frames of pages start..stop, one after the other, as they go to the file."""
    words = 1 << load(pool, SHIFT)
    at = out.ctypes.data
    for i in range(start, stop):
        copy_words(at + 24, page_address(pool, phys[i]), words)
        store(at, 0, owners[i] | (lps[i] << 32))
        store(at, 1, np.int64(digest_words(at + 24, words)))
        store(at, 2, 0)
        at += 24 + 8 * words


class SetManifest(msgspec.Struct, frozen=True, array_like=True):
    """One page set of a checkpoint; page numbers as little-endian int32."""

    id: int
    kind: int
    #: All pages of the set.
    live: bytes
    #: Those that this checkpoint carries.
    carried: bytes


class Manifest(msgspec.Struct, frozen=True):
    page_bytes: int
    seq: int
    base_seq: int  # -1: full
    sets: list[SetManifest]
    #: Whatever the operator adds: its schema, positions, counters.
    meta: bytes = b""
    #: Of the pool: every life of a pool counts its snapshots from 1, so `seq` alone does not say whose they are.
    origin: int = 0


def _numbers(raw: bytes) -> NDArray[np.int64]:
    return np.frombuffer(raw, "<i4").astype(np.int64)


def _bytes(numbers: NDArray[np.int64]) -> bytes:
    return numbers.astype("<i4").tobytes()


def manifest_of(snapshot: Snapshot, meta: bytes = b"") -> Manifest:
    sets = [
        SetManifest(set_id, kind, _bytes(live), _bytes(lps))
        for set_id, kind, live, lps in zip(snapshot.set_ids, snapshot.kinds, snapshot.live, snapshot.lps, strict=True)
    ]
    return Manifest(snapshot.pool.page_bytes, snapshot.seq, snapshot.base_seq, sets, meta, snapshot.pool.origin)


def stream(snapshot: Snapshot, meta: bytes = b"", *, stage_bytes: int = 1 << 20) -> Iterator[bytes | memoryview]:
    """The checkpoint as a sequence of buffers. Use each before asking for the next; any thread may do this.

    Pages are copied and digested `stage_bytes` at a time, without the interpreter's lock, which the owner needs between
    its kernels. A page is let go as soon as it is copied. The snapshot is closed at the end, also on an error.
    """
    try:
        body = msgspec.msgpack.encode(manifest_of(snapshot, meta))
        yield _HEAD.pack(MAGIC, VERSION, len(body)) + body + _SUM.pack(xxhash.xxh3_64_intdigest(body))
        pool = snapshot.pool
        frame_words = _FRAME.size // 8 + pool.page_words
        at_once = max(1, stage_bytes // (8 * frame_words))
        buffer = np.empty(min(at_once, len(snapshot)) * frame_words, np.int64)
        owners = np.repeat(np.array(snapshot.set_ids, np.int64), [len(lps) for lps in snapshot.lps])
        lps = np.concatenate(snapshot.lps) if snapshot.lps else np.zeros(0, np.int64)
        for start in range(0, len(snapshot), at_once):
            stop = min(len(snapshot), start + at_once)
            snapshot.check_open()
            stage_frames(pool.at, snapshot.all_phys, owners, lps, start, stop, buffer)
            snapshot.check_open()  # else a page may have been another's when it was copied
            snapshot.read = stop
            yield memoryview(buffer).cast("B")[: 8 * (stop - start) * frame_words]  # pyright: ignore[reportArgumentType]
    finally:
        snapshot.close()


def write(snapshot: Snapshot, out: BinaryIO, meta: bytes = b"") -> int:
    """Stream a snapshot to a file; the number of bytes. The caller syncs and closes."""
    return sum(out.write(part) for part in stream(snapshot, meta))


class Checkpoint:
    """A checkpoint to read: its manifest, and its pages by name."""

    def __init__(self, source: BinaryIO, name: str = "checkpoint") -> None:
        self._source = source
        self.name = name
        head = self._exactly(_HEAD.size, "head")
        magic, version, length = _HEAD.unpack(head)
        if magic != MAGIC or version != VERSION:
            raise self._corrupt("is not a checkpoint of this version", f"starts with {head[:8]!r}")
        if length > _MANIFEST_BYTES_MAX:
            raise self._corrupt("has an impossible manifest", f"{length} bytes long")
        body = self._exactly(length, "manifest")
        (digest,) = _SUM.unpack(self._exactly(_SUM.size, "manifest"))
        if xxhash.xxh3_64_intdigest(body) != digest:
            raise self._corrupt("has a damaged manifest", "its checksum does not match")
        try:
            self.manifest = msgspec.msgpack.decode(body, type=Manifest)
        except msgspec.DecodeError as error:
            raise self._corrupt("has a manifest that cannot be read", str(error)) from error
        self._pages_from = source.tell() if source.seekable() else -1

    @classmethod
    def open(cls, path: Path | str) -> Checkpoint:
        return cls(Path(path).open("rb"), str(path))  # closed with the object: a lazy restore keeps it for a while

    @classmethod
    def of_bytes(cls, raw: bytes, name: str = "checkpoint") -> Checkpoint:
        return cls(io.BytesIO(raw), name)

    def close(self) -> None:
        self._source.close()

    def read_pages(self, pool: PagePool, wanted: set[tuple[int, int]]) -> tuple[list[tuple[int, int]], list[int]]:
        """Read every page, verified, in whatever order they come; names and physical pages of those that are wanted.

        A frame's own name is not covered by its checksum. If it were believed, a page that has lost its name would
        be passed over, and an older version of it taken from the checkpoint before: so each carried page must come
        exactly once.
        """
        if self._pages_from >= 0:
            self._source.seek(self._pages_from)
        expected = {(s.id, int(lp)) for s in self.manifest.sets for lp in _numbers(s.carried)}
        names: list[tuple[int, int]] = []
        pages: list[int] = []
        unwanted = np.empty(pool.page_words, np.int64)  # to verify in: the pool may be full of what is wanted
        while expected:
            name, digest = self._frame_head()
            if name not in expected:
                raise self._corrupt("has a page that is doubled or foreign", f"page {name[1]} of set {name[0]}")
            expected.discard(name)
            if name in wanted:
                names.append(name)
                pages.append(pool.take_page())
            self._frame_page(name, digest, pool.page(pages[-1]) if name in wanted else unwanted)
        if self._source.read(1):
            raise self._too_long()
        return names, pages

    def offsets(self) -> dict[tuple[int, int], int]:
        """Where each page is in the file, from the manifest alone; the file must be as long as that says."""
        check(self._pages_from >= 0, "a lazy restore needs a source that can seek", self.name)
        step = _FRAME.size + self.manifest.page_bytes
        place = self._pages_from
        found: dict[tuple[int, int], int] = {}
        for set_ in self.manifest.sets:
            for lp in _numbers(set_.carried):
                found[set_.id, int(lp)] = place
                place += step
        end = self._source.seek(0, io.SEEK_END)
        if end < place:
            raise self._corrupt("ends too early", f"wanted {place} bytes, got {end}")
        if end > place:
            raise self._too_long()
        return found

    def read_page(self, offset: int, set_id: int, lp: int, into: NDArray[np.int64]) -> None:
        """Read the page at this place; it must be the one that is expected there."""
        self._source.seek(offset)
        found, digest = self._frame_head()
        if found != (set_id, lp):
            raise self._corrupt("has a page in the wrong place", f"set {found[0]} page {found[1]} at byte {offset}")
        self._frame_page(found, digest, into)

    def _frame_head(self) -> tuple[tuple[int, int], int]:
        """Name and digest of the next page."""
        set_id, lp, digest = _FRAME.unpack(self._exactly(_FRAME.size, "page"))
        return (set_id, lp), digest

    def _frame_page(self, name: tuple[int, int], digest: int, into: NDArray[np.int64]) -> None:
        """Read the page after a frame's head, straight to where it will be."""
        view = into.data.cast("B")
        page = f"page {name[1]} of set {name[0]}"
        got = self._source.readinto(view)  # type: ignore[attr-defined]
        if got != len(view):
            raise self._corrupt("ends too early", f"wanted {len(view)} bytes for {page}, got {got}")
        if digest_words(address(into), len(into)) != digest:
            raise self._corrupt("has a damaged page", f"{page}: its checksum does not match")

    def _exactly(self, n: int, what: str) -> bytes:
        raw = self._source.read(n)
        if len(raw) != n:
            raise self._corrupt("ends too early", f"wanted {n} bytes for the {what}, got {len(raw)}")
        return raw

    def _too_long(self) -> CorruptPageError:
        return self._corrupt("has bytes after its last page", "it was appended to or is another file")

    def _corrupt(self, what: str, detail: str) -> CorruptPageError:
        return CorruptPageError(
            f"{self.name} {what}", detail=detail, hint="Restore from an earlier checkpoint or from another copy."
        )


def restore(checkpoints: Iterable[Checkpoint], pool: PagePool, *, lazy: bool = False) -> bytes:
    """Fill an empty pool from a full checkpoint and the incremental ones after it; the last one's meta.

    Structures then find their page sets by id (sguard §4.4). With `lazy`, pages stay in the files until something
    touches them, and the files stay open until then.
    """
    chain = list(checkpoints)
    check(not pool.sets, "restored into a pool that is in use")
    _check_chain(chain, pool)
    wanted = {s.id: _numbers(s.live) for s in chain[-1].manifest.sets}
    missing = {(set_id, int(lp)) for set_id, lps in wanted.items() for lp in lps}
    for s in chain[-1].manifest.sets:
        pool.create(s.id, s.kind).check_fits(int(wanted[s.id].max(initial=0)))
    if lazy:
        pool.loader = _lazy_loader(chain, missing)
        for set_id, lps in wanted.items():
            pool.sets[set_id].expect_lazy(lps)
    else:
        _load(chain, pool, missing)
    return chain[-1].manifest.meta


def _load(chain: list[Checkpoint], pool: PagePool, missing: set[tuple[int, int]]) -> None:
    """Read all pages, the newest version of each, and then rebuild the page tables in one go."""
    names: list[tuple[int, int]] = []
    pages: list[int] = []
    for checkpoint in reversed(chain):
        found, read = checkpoint.read_pages(pool, missing)
        missing.difference_update(found)
        names += found
        pages += read
    _none_missing(chain, missing)
    set_ids = sorted(pool.sets)
    index = {set_id: i for i, set_id in enumerate(set_ids)}
    which = np.array([index[set_id] for set_id, _ in names], np.int64)
    pool.adopt(set_ids, which, np.array([lp for _, lp in names], np.int64), np.array(pages, np.int64))
    for page_set in pool.sets.values():
        page_set.count_pages()


def _lazy_loader(
    chain: list[Checkpoint], missing: set[tuple[int, int]]
) -> Callable[[int, int, NDArray[np.int64]], None]:
    places: dict[tuple[int, int], tuple[Checkpoint, int]] = {}
    for checkpoint in chain:
        places.update((name, (checkpoint, at)) for name, at in checkpoint.offsets().items())
    _none_missing(chain, missing - places.keys())

    def load(set_id: int, lp: int, into: NDArray[np.int64]) -> None:
        checkpoint, offset = places[set_id, lp]
        checkpoint.read_page(offset, set_id, lp, into)

    return load


def _none_missing(chain: list[Checkpoint], missing: set[tuple[int, int]]) -> None:
    if missing:
        set_id, lp = min(missing)
        raise CorruptPageError(
            f"{chain[-1].name} lacks {len(missing)} pages",
            detail=f"The first is page {lp} of set {set_id}; looked in {', '.join(c.name for c in chain)}.",
            hint="Restore from an earlier full checkpoint.",
        )


def _check_chain(chain: list[Checkpoint], pool: PagePool) -> None:
    check(bool(chain), "nothing to restore from")
    expected = -1
    origin = chain[0].manifest.origin
    for checkpoint in chain:
        manifest = checkpoint.manifest
        if manifest.base_seq != expected or manifest.origin != origin:
            raise CorruptPageError(
                f"{checkpoint.name} does not continue the checkpoint before it",
                detail=(
                    f"It builds on snapshot {manifest.base_seq} of origin {manifest.origin}; "
                    f"the one before is {expected} (-1: none) of origin {origin}."
                ),
                hint="Give a full checkpoint and then every incremental one after it, in order.",
            )
        if manifest.page_bytes != pool.page_bytes:
            raise ConfigError(
                "page size of the checkpoint and of the pool differ",
                detail=f"{checkpoint.name} has pages of {manifest.page_bytes} bytes, the pool of {pool.page_bytes}.",
                hint=f"Restore into PagePool(page_bytes={manifest.page_bytes}).",
            )
        expected = manifest.seq

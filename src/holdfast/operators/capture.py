"""What changed in an operator since the last capture, as one message, and how an image takes it in.

cooperative-ha §7.1: a window that is new since the last capture goes in full (key and state), one that was only
updated goes as its state and the number of its record, and what has expired goes as one bound. An image keeps every
record under the number it has at the primary, so pasting an update is a store and needs no look-up.

A capture fits only where it starts: it carries the number of the capture before it, and an image that stands
elsewhere refuses it and has to be given a whole one. It also fits only the layout it was made for (columns, aggregates,
page size: a record's number is its page and its slot), and its bytes carry a checksum: words of a capture end up as
addresses, so none may be taken on trust.
"""

from __future__ import annotations

import struct

import msgspec
import numpy as np
import xxhash
from numba import njit
from numpy.typing import NDArray

from holdfast.errors import InputError
from holdfast.state.hashmap import HashMap
from holdfast.state.heap import extract_long, heap_free, is_long, long_length, own_value, point_to
from holdfast.state.intrinsics import load, store
from holdfast.state.keys import Keys, make_keys
from holdfast.state.slots import HEAP, SLOT_BITS, SlotStore, record_writable

_LOW4 = 0xFFFFFFFF
#: What the bytes of a capture start with: "HFCA" and the xxh3-64 of the rest.
_HEAD = struct.Struct("<4sQ")
_MAGIC = b"HFCA"


class Part(msgspec.Struct, frozen=True):
    """Changes of one set of records. Numbers are little-endian; rows are whole words."""

    #: New records: their rids (uint32), all their words, and the long values those refer to.
    new: bytes
    new_words: bytes
    new_blob: bytes
    #: Updated records: rids, value words, long values.
    updated: bytes
    updated_words: bytes
    updated_blob: bytes
    #: Panes below this are gone; and records that went one by one.
    drop_below: int
    removed: bytes = b""

    @property
    def n_new(self) -> int:
        return len(self.new) // 4

    @property
    def n_updated(self) -> int:
        return len(self.updated) // 4

    @property
    def nbytes(self) -> int:
        return sum(len(b) for b in (self.new, self.new_words, self.new_blob)) + sum(
            len(b) for b in (self.updated, self.updated_words, self.updated_blob, self.removed)
        )


class Capture(msgspec.Struct, frozen=True):
    """One capture of an operator."""

    operator: str
    #: Number of the capture that this one continues; -1: a whole one, which replaces whatever is there.
    base: int
    number: int
    #: Rows taken so far, and the watermark.
    rows: int
    watermark: int
    parts: list[Part]
    #: A hash of all that shapes the records.
    layout: int
    #: Further numbers of the operator (bounds, watermarks of single inputs).
    extra: dict[str, int] = {}

    @property
    def whole(self) -> bool:
        return self.base < 0

    @property
    def n_new(self) -> int:
        return sum(p.n_new for p in self.parts)

    @property
    def n_updated(self) -> int:
        return sum(p.n_updated for p in self.parts)

    @property
    def nbytes(self) -> int:
        return sum(p.nbytes for p in self.parts)

    def to_bytes(self) -> bytearray:
        raw = bytearray(_HEAD.size + self.nbytes + 1024)  # large enough in one piece: growing it would copy it
        _encoder.encode_into(self, raw, _HEAD.size)
        _HEAD.pack_into(raw, 0, _MAGIC, xxhash.xxh3_64_intdigest(memoryview(raw)[_HEAD.size :]))
        return raw

    @staticmethod
    def from_bytes(raw: bytes | bytearray | memoryview) -> Capture:
        if len(raw) < _HEAD.size:
            raise _unreadable(f"It has {len(raw)} bytes.")
        magic, digest = _HEAD.unpack_from(raw)
        body = memoryview(raw)[_HEAD.size :]
        if magic != _MAGIC or xxhash.xxh3_64_intdigest(body) != digest:
            raise _unreadable("Its checksum does not match.")
        try:
            return _decoder.decode(body)
        except msgspec.DecodeError as error:
            raise _unreadable(str(error)) from error


def _unreadable(detail: str) -> InputError:
    return InputError("a capture cannot be read", detail=detail, hint="Ask the primary for a whole capture.")


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Capture)


def _rids_to_bytes(rids: NDArray[np.int64]) -> bytes:
    return rids.astype("<u4").tobytes()


def rids_from(raw: bytes) -> NDArray[np.int64]:
    return np.frombuffer(raw, "<u4").astype(np.int64)


def take_part(store_: SlotStore, *, whole: bool, drop_below: int, removed: NDArray[np.int64] | None = None) -> Part:
    """Changes since the last call (or everything), which then count as captured."""
    pool = store_.pool.at
    new, updated = store_.changed()
    if whole:
        new, updated = store_.rids(), np.zeros(0, np.int64)
    new_words = store_.gather(new, 0, store_.record_words)
    new_words[:, 0] &= _LOW4  # lists are made anew by the image
    new_blob = extract_long(pool, store_.heap.at, new_words, store_.var_at)
    first = 1 + store_.key_words
    updated_words = store_.gather(updated, first, store_.record_words - first)
    value_vars = store_.var_at[store_.var_at >= first] - first
    updated_blob = extract_long(pool, store_.heap.at, updated_words, value_vars)
    return Part(
        new=_rids_to_bytes(new),
        new_words=new_words.tobytes(),
        new_blob=new_blob.tobytes(),
        updated=_rids_to_bytes(updated),
        updated_words=updated_words.tobytes(),
        updated_blob=updated_blob.tobytes(),
        drop_below=drop_below,
        removed=_rids_to_bytes(removed) if removed is not None else b"",
    )


class Incoming:
    """The rows of a part, ready to be put into an image of the same layout."""

    def __init__(self, part: Part, store_: SlotStore, operator: str) -> None:
        first = 1 + store_.key_words
        self.new = rids_from(part.new)
        self.updated = rids_from(part.updated)
        self._blobs = [np.frombuffer(b, np.uint8) for b in (part.new_blob, part.updated_blob)]
        self.words = self._rows(part.new_words, len(self.new), store_.record_words, operator)
        self.updates = self._rows(part.updated_words, len(self.updated), store_.record_words - first, operator)
        point_to(self.words, store_.var_at, self._blobs[0])
        self._value_vars = store_.var_at[store_.var_at >= first] - first
        point_to(self.updates, self._value_vars, self._blobs[1])
        self._store = store_
        for rids in (self.new, self.updated, rids_from(part.removed)):
            if len(rids) and rids.max() >> store_.block[SLOT_BITS] >= store_.pool.pages_max:
                raise store_.pool.limit_error()  # the primary may have more memory

    @staticmethod
    def _rows(raw: bytes, n: int, width: int, operator: str) -> NDArray[np.int64]:
        if len(raw) != 8 * n * width:
            raise InputError(
                f"{operator}: a capture does not fit the operator's layout",
                detail=f"{len(raw)} bytes for {n} records of {width} words.",
                hint="Primary and backup must run the same pipeline; ask for a whole capture.",
            )
        return np.frombuffer(raw, np.int64).reshape(n, width).copy()

    def keys(self, map_: HashMap) -> Keys:
        kw = map_.layout.key_words
        nulls = np.ascontiguousarray(self.words[:, 0])
        return make_keys(self.words[:, 1 : 1 + kw], nulls, map_.layout.kinds, self)

    def write_values(self) -> None:
        """Fill in the values of the new records, and overwrite those of the updated ones."""
        first = 1 + self._store.key_words
        pool = self._store.pool
        values = np.ascontiguousarray(self.words[:, first:])
        for rids, rows, fresh in ((self.new, values, True), (self.updated, self.updates, False)):
            if _write_values(pool.at, self._store.at, rids, rows, first, self._value_vars, fresh) < 0:
                raise pool.limit_error()


@njit(cache=True, nogil=True)
def _write_values(pool, s, rids, rows, first, value_vars, fresh):
    heap = load(s, HEAP)
    for i in range(len(rids)):
        at = record_writable(pool, s, rids[i])
        if at < 0:
            return -2
        at += 8 * first
        if not fresh:
            for v in value_vars:
                if is_long(load(at, v)):
                    heap_free(pool, heap, load(at, v + 1), long_length(load(at, v)))
                store(at, v, 0)
        for w in range(rows.shape[1]):
            store(at, w, rows[i, w])
        for v in value_vars:
            place = own_value(pool, heap, rows[i, v], rows[i, v + 1])
            if is_long(rows[i, v]) and place < 0:
                store(at, v, 0)
                return -2
            store(at, v + 1, place)
    return 0

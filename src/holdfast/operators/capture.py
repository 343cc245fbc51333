"""What changed in an operator since the last capture, as one message, and how an image takes it in.

cooperative-ha §7.1: a window that is new since the last capture goes in full (key and state), one that was only
updated goes as its state and the number of its record, and what has expired goes as one bound. An image keeps every
record under the number it has at the primary, so pasting an update is a store and needs no look-up.

A capture fits only where it starts: it carries the number of the capture before it, and an image that stands
elsewhere refuses it and has to be brought up anew, chunk by chunk (`chunk.py`). The number is a digest of the capture
and of the number before it, not a count: two copies that captured on their own from the same beginning may have put
the same records into different slots, and a count could not tell them apart. A capture also fits only the layout it was
made for (columns, aggregates, page size: a record's number is its page and its slot), and its bytes carry a checksum:
words of a capture end up as addresses, so none may be taken on trust.

The bytes of a part are views, of arrays where it was taken and of the message where it arrived: nothing is copied
between the state and the message but once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec
import numpy as np
import xxhash
from numba import njit
from numpy.typing import NDArray

from holdfast.errors import InputError
from holdfast.state.hashmap import HashMap
from holdfast.state.heap import extract_long, heap_free, is_long, long_fit, long_length, own_value, point_to
from holdfast.state.intrinsics import load, store
from holdfast.state.keys import Keys, make_keys
from holdfast.state.records import HEAP, RPP, SLOT_BITS, record_writable
from holdfast.state.slots import SlotStore

#: What of a record's first word travels: the null bits of a map's keys (an image links its records itself), or the next
#: record of a list (an image takes the lists as they are).
NULL_BITS = 0xFFFFFFFF
LINKS = ~0xFFFFFFFF
#: No rid is as high: a part without a bound.
RIDS_END = 1 << 32
#: What the bytes of a capture start with: "HFCA" and the xxh3-64 of the rest.
_HEAD = struct.Struct("<4sQ")
_MAGIC = b"HFCA"

T = TypeVar("T")


class Part(msgspec.Struct, frozen=True):
    """Changes of one set of records. Numbers are little-endian; rows are whole words."""

    #: New records: their rids (uint32), all their words, and the long values those refer to.
    new: memoryview
    new_words: memoryview
    new_blob: memoryview
    #: Updated records: rids, value words, long values.
    updated: memoryview
    updated_words: memoryview
    updated_blob: memoryview
    #: Panes below this are gone; and records that went one by one.
    drop_below: int
    removed: memoryview

    @property
    def n_new(self) -> int:
        return len(self.new) // 4

    @property
    def n_updated(self) -> int:
        return len(self.updated) // 4

    @property
    def buffers(self) -> tuple[memoryview, ...]:
        new = (self.new, self.new_words, self.new_blob)
        return (*new, self.updated, self.updated_words, self.updated_blob, self.removed)

    @property
    def nbytes(self) -> int:
        return sum(len(b) for b in self.buffers)


class StateCapture(msgspec.Struct, frozen=True):
    """One capture of an operator."""

    operator: str
    #: Number of the capture that this one continues; -1: none, it starts from nothing.
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
    def n_new(self) -> int:
        return sum(p.n_new for p in self.parts)

    @property
    def n_updated(self) -> int:
        return sum(p.n_updated for p in self.parts)

    @property
    def nbytes(self) -> int:
        return sum(p.nbytes for p in self.parts)

    def to_bytes(self) -> bytearray:
        return sealed(_MAGIC, self, self.nbytes)

    @staticmethod
    def from_bytes(raw: bytes | bytearray | memoryview) -> StateCapture:
        """The capture that these bytes are; it keeps them."""
        return opened(_MAGIC, raw, _decoder, "a capture")


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(StateCapture)


def sealed(magic: bytes, value: msgspec.Struct, nbytes: int) -> bytearray:
    """A struct as bytes: magic, checksum, msgpack. `nbytes` is what its buffers have."""
    raw = bytearray(_HEAD.size + nbytes + 1024)  # large enough in one piece: growing it would copy it
    _encoder.encode_into(value, raw, _HEAD.size)
    _HEAD.pack_into(raw, 0, magic, xxhash.xxh3_64_intdigest(memoryview(raw)[_HEAD.size :]))
    return raw


def opened(magic: bytes, raw: bytes | bytearray | memoryview, decoder: msgspec.msgpack.Decoder[T], what: str) -> T:
    """What `sealed` made, as views of these bytes; an InputError if they are not that."""
    if len(raw) < _HEAD.size:
        raise _unreadable(what, f"It has {len(raw)} bytes.")
    found, digest = _HEAD.unpack_from(raw)
    body = memoryview(raw)[_HEAD.size :]
    if found != magic or xxhash.xxh3_64_intdigest(body) != digest:
        raise _unreadable(what, "Its checksum does not match.")
    try:
        return decoder.decode(body)
    except msgspec.DecodeError as error:
        raise _unreadable(what, str(error)) from error


def _unreadable(what: str, detail: str) -> InputError:
    return InputError(f"{what} cannot be read", detail=detail, hint="The primary will bring up the image anew.")


def digest_of(base: int, numbers: tuple[int, ...], buffers: Iterable[memoryview]) -> int:
    """The number of a capture: of all that was captured before, and of what it carries itself."""
    digest = xxhash.xxh3_64()
    digest.update(struct.pack(f"<{1 + len(numbers)}q", base, *numbers))
    for buffer in buffers:
        digest.update(buffer)
    return digest.intdigest() >> 1  # fits a signed word, and is never -1


def bytes_of(array: NDArray[Any]) -> memoryview:
    """A view of an array's bytes."""
    return array.reshape(-1).view(np.uint8).data


def _rids_to_bytes(rids: NDArray[np.int64]) -> memoryview:
    return bytes_of(rids.astype("<u4"))


def _rids_from(raw: memoryview) -> NDArray[np.int64]:
    return np.frombuffer(raw, "<u4").astype(np.int64)


_NONE = np.zeros(0, np.int64)


def take_part(store_: SlotStore, *, keep: int, drop_below: int, removed: NDArray[np.int64] = _NONE) -> Part:
    """Changes since the last call, which then count as captured."""
    new, updated = store_.changed()
    return part_of(store_, new, updated, keep=keep, drop_below=drop_below, removed=removed)


def part_of(
    store_: SlotStore,
    new: NDArray[np.int64],
    updated: NDArray[np.int64] = _NONE,
    *,
    keep: int,
    drop_below: int,
    removed: NDArray[np.int64] = _NONE,
) -> Part:
    """These records: the new ones in full, of the updated ones their values. `keep`: see `NULL_BITS`, `LINKS`."""
    pool = store_.pool.at
    new_words = store_.gather(new, 0, store_.record_words)
    new_words[:, 0] &= keep
    new_blob = extract_long(pool, store_.heap.at, new_words, store_.var_at)
    first = 1 + store_.key_words
    updated_words = store_.gather(updated, first, store_.record_words - first)
    value_vars = store_.var_at[store_.var_at >= first] - first
    updated_blob = extract_long(pool, store_.heap.at, updated_words, value_vars)
    return Part(
        new=_rids_to_bytes(new),
        new_words=bytes_of(new_words),
        new_blob=bytes_of(new_blob),
        updated=_rids_to_bytes(updated),
        updated_words=bytes_of(updated_words),
        updated_blob=bytes_of(updated_blob),
        drop_below=drop_below,
        removed=_rids_to_bytes(removed),
    )


class Incoming:
    """The rows of a part, ready to be put into an image of the same layout.

    `below`: an image that is still being brought up takes only records with a lower number. The others are not there
    yet, and a later chunk brings them as they are then.
    """

    def __init__(self, part: Part, store_: SlotStore, operator: str, below: int = RIDS_END) -> None:
        first = 1 + store_.key_words
        self._store = store_
        self._operator = operator
        self._blobs = [np.frombuffer(b, np.uint8) for b in (part.new_blob, part.updated_blob)]
        self.new, self.words = self._rows(part.new, part.new_words, store_.record_words, below)
        self.updated, self.updates = self._rows(part.updated, part.updated_words, store_.record_words - first, below)
        self.removed = self._rids(part.removed)
        self.removed = self.removed[self.removed < below]
        self._value_vars = store_.var_at[store_.var_at >= first] - first
        self._point(self.words, store_.var_at, self._blobs[0])
        self._point(self.updates, self._value_vars, self._blobs[1])

    def _rids(self, raw: memoryview) -> NDArray[np.int64]:
        if len(raw) % 4:
            raise self._misfit(f"{len(raw)} bytes of record numbers.")
        rids = _rids_from(raw)
        self.check_rids(rids)
        return rids

    def check_rids(self, rids: NDArray[np.int64]) -> None:
        """Numbers become addresses: each must be a slot that the store could have."""
        if not len(rids):
            return
        slot_bits = int(self._store.block[SLOT_BITS])
        if rids.max() >> slot_bits >= self._store.pool.pages_max:
            raise self._store.pool.limit_error()  # the primary may have more memory
        if rids.min() < 0 or (rids & ((1 << slot_bits) - 1)).max() >= self._store.block[RPP]:
            raise self._misfit("A record number names a slot that no page has.")

    def _rows(
        self, rids_raw: memoryview, raw: memoryview, width: int, below: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        rids = self._rids(rids_raw)
        if len(raw) != 8 * len(rids) * width:
            raise self._misfit(f"{len(raw)} bytes for {len(rids)} records of {width} words.")
        words = np.frombuffer(raw, np.int64).reshape(len(rids), width)
        if below < RIDS_END:
            kept = rids < below
            return rids[kept], words[kept]
        return rids, words.copy()

    def _point(self, words: NDArray[np.int64], columns: NDArray[np.int64], blob: NDArray[np.uint8]) -> None:
        if not long_fit(words, columns, len(blob)):
            raise self._misfit("A long value lies outside the bytes that came with it.")
        point_to(words, columns, blob)

    def _misfit(self, detail: str) -> InputError:
        return InputError(
            f"{self._operator}: a capture does not fit the operator's layout",
            detail=detail,
            hint="Primary and backup must run the same pipeline.",
        )

    def keys(self, map_: HashMap) -> Keys:
        kw = map_.layout.key_words
        nulls = np.ascontiguousarray(self.words[:, 0])
        return make_keys(self.words[:, 1 : 1 + kw], nulls, map_.layout.kinds, self)

    def write_values(self) -> None:
        """Fill in the values of the new records, and overwrite those of the updated ones."""
        first = 1 + self._store.key_words
        pool = self._store.pool
        write_values(self._store, self.new, self.words, self._value_vars)
        if _write_values(pool.at, self._store.at, self.updated, self.updates, 0, first, self._value_vars) < 0:
            raise pool.limit_error()


def write_values(
    store_: SlotStore, rids: NDArray[np.int64], rows: NDArray[np.int64], value_vars: NDArray[np.int64]
) -> None:
    """Fill in the values of new records from whole rows, whose long values are pointed to."""
    first = 1 + store_.key_words
    if _write_values(store_.pool.at, store_.at, rids, rows, first, first, value_vars) < 0:
        raise store_.pool.limit_error()


@njit(cache=True, nogil=True)
def _write_values(pool, s, rids, rows, skip, first, value_vars):
    """`skip`: so many words of a row come before its values. A row that has them is of a new record."""
    heap = load(s, HEAP)
    for i in range(len(rids)):
        at = record_writable(pool, s, rids[i])
        if at < 0:
            return -2
        at += 8 * first
        if skip == 0:
            for v in value_vars:
                if is_long(load(at, v)):
                    heap_free(pool, heap, load(at, v + 1), long_length(load(at, v)))
                store(at, v, 0)
        for w in range(rows.shape[1] - skip):
            store(at, w, rows[i, skip + w])
        for v in value_vars:
            place = own_value(pool, heap, rows[i, skip + v], rows[i, skip + v + 1])
            if is_long(rows[i, skip + v]) and place < 0:
                store(at, v, 0)
                return -2
            store(at, v + 1, place)
    return 0

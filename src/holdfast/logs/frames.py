"""The bytes of an output log: segments of entries, each with a checksum.

    HFO1, lengths, number, base, before, edge, digest | head, meta, rows, digest, length | head, meta, …

An entry is one stream event (cec §II and appendix): a block of an edge, its rows as they are sent, beside what the
block says of itself. Nothing here reads a file.

What a checksum alone would not show is in it. The digest starts from the segment's own digest, so an entry of another
segment or another edge does not count here; entries are numbered, so one that is doubled or out of order is found; and
each says how much of its segment was synced before it was written (`safe`). That tells damage from a torn write: what
a process or a machine that dies leaves behind lies beyond `safe` of every whole entry.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import msgspec
import xxhash

from holdfast.model.ids import Edge

_MAGIC = b"HFO1"
_MARK = b"\xf7HF\n"
#: Magic, length of the edge's name, number, base, before.
_SEGMENT = struct.Struct("<4sIQqq")
#: Mark, length of the meta, of the rows, number, safe, start, end, time.
_HEAD = struct.Struct("<4sIQQQqqq")
#: Digest of head, meta and rows; length of the whole entry.
_TAIL = struct.Struct("<QQ")
_DIGEST = struct.Struct("<Q")
#: An entry's number, offset, length, meta, start, end, time, safe; CRC of these.
_INDEX = struct.Struct("<QQQIqqqQ")
INDEX_BYTES = _INDEX.size + _DIGEST.size
FRAME_BYTES = _HEAD.size + _TAIL.size
#: Edges have short names; a longer one is damage.
_NAME_MAX = 4096

#: (offset, length) -> the bytes there; fewer where the log ends.
Read = Callable[[int, int], bytes | bytearray | memoryview]


class SegmentHead(msgspec.Struct, frozen=True):
    """What a segment says of itself before its first entry."""

    edge: Edge
    #: Of the segments of one log, a later one has a larger number; what it holds stands instead of what earlier ones
    #: have at the same positions.
    number: int
    #: Position of its first entry.
    base: int
    #: Where the log ended when this segment began, or -1 if it was empty. Positions from there to `base` were never
    #: written: nobody needed them on disk.
    before: int

    def encode(self) -> bytes:
        name = self.edge.encode()
        raw = _SEGMENT.pack(_MAGIC, len(name), self.number, self.base, self.before) + name
        return raw + _DIGEST.pack(xxhash.xxh3_64_intdigest(raw))

    @property
    def nbytes(self) -> int:
        return _SEGMENT.size + len(self.edge.encode()) + _DIGEST.size

    @property
    def identity(self) -> int:
        return _DIGEST.unpack_from(self.encode(), self.nbytes - _DIGEST.size)[0]


def decode_head(read: Read) -> SegmentHead | None:
    """None: it is not whole."""
    raw = bytes(read(0, _SEGMENT.size))
    if len(raw) < _SEGMENT.size:
        return None
    magic, length, number, base, before = _SEGMENT.unpack(raw)
    if magic != _MAGIC or length > _NAME_MAX:
        return None
    raw += bytes(read(_SEGMENT.size, length + _DIGEST.size))
    if len(raw) < _SEGMENT.size + length + _DIGEST.size:
        return None
    body = raw[: -_DIGEST.size]
    if _DIGEST.unpack_from(raw, len(body))[0] != xxhash.xxh3_64_intdigest(body):
        return None
    return SegmentHead(Edge(body[_SEGMENT.size :].decode()), number, base, before)


class LogEntry(msgspec.Struct, frozen=True, array_like=True):
    """Where one entry of a segment is, and what it holds: what an index has of it."""

    number: int
    #: Of its first byte in the segment, and of all its bytes.
    offset: int
    length: int
    #: Bytes of what the block says of itself; the rest are its rows.
    meta: int
    #: Elements [start, end) of the edge.
    start: int
    end: int
    #: No row up to here lies beyond this event time. Never goes back within a log.
    time: int
    #: So much of the segment was synced before this was written.
    safe: int

    @property
    def next_offset(self) -> int:
        return self.offset + self.length

    def pack(self) -> bytes:
        """As a record of the index."""
        raw = _INDEX.pack(*msgspec.structs.astuple(self))
        return raw + _DIGEST.pack(xxhash.xxh3_64_intdigest(raw))


def unpack_index(raw: bytes) -> Iterator[LogEntry]:
    """The whole records at the beginning of an index."""
    for at in range(0, len(raw) - INDEX_BYTES + 1, INDEX_BYTES):
        body = raw[at : at + _INDEX.size]
        if _DIGEST.unpack_from(raw, at + _INDEX.size)[0] != xxhash.xxh3_64_intdigest(body):
            return
        yield LogEntry(*_INDEX.unpack(body))


def encode_entry(
    identity: int, entry: LogEntry, meta: bytes, rows: memoryview
) -> tuple[bytes, bytes, memoryview, bytes]:
    """The pieces of an entry as they are written one after the other: rows are not copied."""
    head = _HEAD.pack(_MARK, entry.meta, len(rows), entry.number, entry.safe, entry.start, entry.end, entry.time)
    return head, meta, rows, _TAIL.pack(_digest(identity, head, meta, rows), entry.length)


def _digest(identity: int, *parts: bytes | memoryview) -> int:
    digest = xxhash.xxh3_64(seed=identity)
    for part in parts:
        digest.update(part)
    return digest.intdigest()


def entry_at(read: Read, offset: int, identity: int) -> LogEntry | None:
    """The whole entry that begins here; None: there is none."""
    entry = entry_of(read(offset, _HEAD.size), offset)
    if entry is None:
        return None
    raw = read(offset, entry.length)
    return entry if _is_whole(raw, entry, identity) else None


def entry_of(raw: bytes | bytearray | memoryview, offset: int) -> LogEntry | None:
    """What an entry that begins with these bytes says of itself: nothing of it has been checked. None: none begins."""
    if len(raw) < _HEAD.size:
        return None
    mark, meta, rows, number, safe, start, end, time = _HEAD.unpack_from(raw)
    if mark != _MARK:
        return None
    return LogEntry(number, offset, FRAME_BYTES + meta + rows, meta, start, end, time, safe)


def _is_whole(raw: bytes | bytearray | memoryview, entry: LogEntry, identity: int) -> bool:
    if len(raw) != entry.length:
        return False
    view = memoryview(raw)
    digest, length = _TAIL.unpack_from(view, entry.length - _TAIL.size)
    return length == entry.length and digest == _digest(identity, view[: -_TAIL.size])


def parts_of(
    raw: bytes | bytearray | memoryview, entry: LogEntry, identity: int
) -> tuple[memoryview, memoryview] | None:
    """Meta and rows of an entry from its bytes; None: these are not the bytes that were written."""
    if entry_of(raw, entry.offset) != entry or not _is_whole(raw, entry, identity):
        return None
    view = memoryview(raw)[_HEAD.size : -_TAIL.size]
    return view[: entry.meta], view[entry.meta :]


def marks_in(raw: bytes | bytearray | memoryview) -> Iterator[int]:
    """Where in these bytes an entry may begin."""
    body = bytes(raw)
    at = body.find(_MARK)
    while at >= 0:
        yield at
        at = body.find(_MARK, at + 1)

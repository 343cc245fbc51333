"""Rows from the network take as much memory as they have bytes: looked at before Arrow decodes any of them.

Nothing here compresses rows, so a compressed batch comes from somebody else: 24 KB of one can become 765 MB.
Arrow says in the metadata of a batch whether it is compressed, and how many rows it has; pyarrow shows neither before
it decodes, so both are read from the metadata itself. (It is a flatbuffer: a table begins with the distance back to its
vtable, which has a 16-bit offset for every field.) A row takes a bit at the least, so their number is bounded as well.
"""

from __future__ import annotations

import struct

import pyarrow as pa

from holdfast.errors import InputError

#: Fields of Arrow's tables, by their number: Message.fbs.
_HEADER_TYPE, _HEADER = 1, 2
_LENGTH, _COMPRESSION = 0, 3
_DATA = 1
#: Kinds of a message's header.
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
#: As many rows of booleans are in a byte; rows of fewer bytes are refused.
ROWS_PER_BYTE_MAX = 8


def check_plain(stream: pa.Buffer) -> None:
    """Refuse a stream with a compressed batch, or with more rows than it has bits."""
    rows = 0
    for message in pa.ipc.MessageReader.open_stream(stream):
        try:
            rows += _rows_of(message.metadata.to_pybytes())
        except struct.error:
            raise InputError("rows cannot be read", detail="The metadata of a batch is cut.") from None
    if not 0 <= rows <= ROWS_PER_BYTE_MAX * stream.size:
        raise InputError(
            "rows cannot be read",
            detail=f"{stream.size} bytes say that they are {rows} rows; a byte has {ROWS_PER_BYTE_MAX} at most.",
        )


def _rows_of(raw: bytes) -> int:
    """Rows of the message with this metadata; 0 for a schema."""
    table = struct.unpack_from("<I", raw)[0]
    kind = _field(raw, table, _HEADER_TYPE)
    header = _field(raw, table, _HEADER)
    if not kind or not header or raw[kind] not in (_DICTIONARY_BATCH, _RECORD_BATCH):
        return 0
    batch = _followed(raw, header)
    if raw[kind] == _DICTIONARY_BATCH:
        data = _field(raw, batch, _DATA)
        if not data:
            return 0
        batch = _followed(raw, data)
    if _field(raw, batch, _COMPRESSION):
        raise InputError("rows cannot be read", detail="They are compressed, which no node does.")
    length = _field(raw, batch, _LENGTH)
    return struct.unpack_from("<q", raw, length)[0] if length else 0


def _field(raw: bytes, table: int, number: int) -> int:
    """Where a field of a table is; 0: it is left out."""
    vtable = table - struct.unpack_from("<i", raw, table)[0]
    if not 0 <= vtable < len(raw):
        raise struct.error
    at = 4 + 2 * number
    if at >= struct.unpack_from("<H", raw, vtable)[0]:
        return 0
    offset = struct.unpack_from("<H", raw, vtable + at)[0]
    if table + offset >= len(raw):
        raise struct.error
    return table + offset if offset else 0


def _followed(raw: bytes, at: int) -> int:
    return at + struct.unpack_from("<I", raw, at)[0]

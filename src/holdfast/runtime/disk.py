"""What a node must not forget: its lives, its votes, the record, its ledgers. One file, appended and synced.

Each entry has a length and a CRC; a torn tail (the process or the machine died while writing) is cut off at the next
start, and nothing that was synced before it can be lost. When the file has grown, the living entries are written to
a new one, which then takes its name. If the disk takes no more, the node says so and waits: it must not speak of
what it has not written, and the others take over from a node that is silent.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from holdfast.errors import StateError
from holdfast.model.messages import LedgerPage
from holdfast.model.record import Record

_HEAD = struct.Struct("<II")
_MAGIC = b"HFJ1"
COMPACT_BYTES = 1 << 20
RETRY_S = 0.5

_encoder = msgspec.msgpack.Encoder()
_TYPES: dict[str, Any] = {
    "life": msgspec.msgpack.Decoder(tuple[str, int]),
    "vote": msgspec.msgpack.Decoder(tuple[str, tuple[int, str | None]]),
    "record": msgspec.msgpack.Decoder(tuple[str, Record]),
    "ledger": msgspec.msgpack.Decoder(tuple[str, tuple[int, LedgerPage]]),
}
_key = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])


class Journal:
    """The node's memory on disk: `content` is what was found and what was written since."""

    def __init__(self, path: Path, on_full: Callable[[str], None] = lambda text: None) -> None:
        self.path = path
        self._on_full = on_full
        self.content: dict[str, object] = {}
        self._compact_from = COMPACT_BYTES
        path.parent.mkdir(parents=True, exist_ok=True)
        self._size = self._read()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        if self._size < len(_MAGIC):
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, _MAGIC, 0)
            self._size = len(_MAGIC)
        os.ftruncate(self._file, self._size)  # a torn tail
        os.fsync(self._file)
        _sync_directory(path.parent)

    def _read(self) -> int:
        """Take in every whole entry; where the good part ends."""
        try:
            raw = self.path.read_bytes()
        except FileNotFoundError:
            return 0
        if len(raw) < len(_MAGIC):
            return 0
        if raw[: len(_MAGIC)] != _MAGIC:
            raise StateError(
                "this is no journal of a node",
                detail=f"{self.path} starts with {raw[:4]!r}.",
                hint="Give the node another directory, or a new name.",
            )
        at = len(_MAGIC)
        while at + _HEAD.size <= len(raw):
            length, crc = _HEAD.unpack_from(raw, at)
            body = raw[at + _HEAD.size : at + _HEAD.size + length]
            if len(body) < length or zlib.crc32(body) != crc:
                break
            key, value = self._decode(body)
            self.content[key] = value
            at += _HEAD.size + length
        return at

    def _decode(self, body: bytes) -> tuple[str, object]:
        key, _ = _key.decode(body)
        try:
            return _TYPES[key.partition("/")[0]].decode(body)
        except (KeyError, msgspec.MsgspecError) as error:
            raise StateError(
                "a journal's entry cannot be understood",
                detail=f"{self.path}, {key!r}: {error}",
                hint="It was written by another release. Start the node with that one, or under a new name.",
            ) from error

    def write(self, items: list[tuple[str, object]]) -> None:
        """Append and sync. Waits for as long as the disk is full."""
        parts: list[bytes] = []
        for item in items:
            body = _encoder.encode(item)
            parts += [_HEAD.pack(len(body), zlib.crc32(body)), body]
            self.content[item[0]] = item[1]
        raw = b"".join(parts)
        while not self._append(raw):
            time.sleep(RETRY_S)
        if self._size > self._compact_from:
            self._compact()

    def _append(self, raw: bytes) -> bool:
        try:
            done = 0
            while done < len(raw):
                done += os.pwrite(self._file, raw[done:], self._size + done)
            os.fdatasync(self._file)
        except OSError as error:
            self._on_full(
                f"The journal {self.path} cannot be written: {error.strerror}. The node waits and says nothing."
            )
            return False
        self._size += len(raw)
        return True

    def _compact(self) -> None:
        """Write what lives to a new file, and let it take the old one's place. If that fails, the old one goes on."""
        fresh = self.path.with_suffix(".new")
        raw = bytearray(_MAGIC)
        for item in self.content.items():
            body = _encoder.encode(item)
            raw += _HEAD.pack(len(body), zlib.crc32(body)) + body
        handle = -1
        try:
            handle = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
            done = 0
            while done < len(raw):
                done += os.pwrite(handle, raw[done:], done)
            os.fsync(handle)
            os.rename(fresh, self.path)
        except OSError as error:
            self._compact_from = self._size + COMPACT_BYTES  # not at every write
            with contextlib.suppress(OSError):
                if handle >= 0:
                    os.close(handle)
                os.unlink(fresh)  # it may hold the very blocks that the journal needs
            self._on_full(f"The journal {self.path} cannot be compacted: {error.strerror}.")
            return
        os.close(self._file)
        self._file, self._size, self._compact_from = handle, len(raw), max(COMPACT_BYTES, 2 * len(raw))
        _sync_directory(self.path.parent)

    def close(self) -> None:
        os.close(self._file)


def write_whole(path: Path, raw: bytes) -> None:
    """All of it or nothing, whenever the process or the machine dies."""
    fresh = path.with_suffix(".new")
    with open(fresh, "wb") as file:
        file.write(raw)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
    _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

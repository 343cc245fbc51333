"""What a node must not forget: its lives, its votes, the record, its ledgers. One file, appended and synced.

    HFJ2 | mark, length, CRC, [(key, value), …] | mark, length, CRC, […] | …

One frame for each write, however much it holds, and no write begins before the last one is synced. So a frame that
does not match its CRC is the torn tail of a process or a machine that died while writing if no other begins after it:
nobody was told of it, and it is cut off at the next start. If one does, it had been synced and was damaged later: votes
and lives may be gone that others know of, so the node refuses to start and leaves the file alone. (Damage to the very
last frame, and to nothing else, looks like a torn one.)

Beside it lies `lives`, the number of the last life that was written to the journal. A journal that is gone, or that
knows of fewer lives, has lost what was safe in it, however whole it looks.

When the file has grown, the living entries are written to a new one, which then takes its name. If the disk takes no
more, the node says so and waits: it must not speak of what it has not written, and the others take over from a node
that is silent.
"""

from __future__ import annotations

import contextlib
import os
import struct
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable
from io import FileIO
from pathlib import Path

import msgspec

from holdfast.errors import ConfigError, DamagedJournalError, StateError
from holdfast.model.found import VALUES, kind_of

#: Mark, length of the body, CRC of that length and the body.
_HEAD = struct.Struct("<4sII")
_MAGIC, _MARK = b"HFJ2", b"\xf5HF\n"
COMPACT_BYTES = 1 << 20
RETRY_S = 0.5

_encoder = msgspec.msgpack.Encoder()
_decoders = {kind: msgspec.msgpack.Decoder(tuple[str, value]) for kind, value in VALUES.items()}
_items = msgspec.msgpack.Decoder(list[msgspec.Raw])
_key = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])


def _frame(items: Iterable[tuple[str, object]]) -> bytes:
    body = _encoder.encode(list(items))
    return _HEAD.pack(_MARK, len(body), _crc(body)) + body


def _crc(body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(len(body).to_bytes(4, "little")))


def _body(raw: bytes, at: int) -> bytes | None:
    """Of the frame that begins here; None: there is no whole one."""
    if at + _HEAD.size > len(raw):
        return None
    mark, length, crc = _HEAD.unpack_from(raw, at)
    body = raw[at + _HEAD.size : at + _HEAD.size + length]
    return body if mark == _MARK and len(body) == length and _crc(body) == crc else None


class Journal:
    """The node's memory on disk: `content` is what was found and what was written since."""

    def __init__(self, path: Path, on_full: Callable[[str], None] = lambda text: None) -> None:
        self.path = path
        self._on_full = on_full
        self.content: dict[str, object] = {}
        self._compact_from = COMPACT_BYTES
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lives = path.with_name("lives")
        lives = self._read_lives()
        try:
            if not path.exists() and not lives:
                write_whole(path, _MAGIC)
            self._size = self._read()
            self._file = FileIO(path, "r+")
        except (FileNotFoundError, IsADirectoryError) as error:
            raise self._lost(
                f"{path}: {error.strerror}; {self._lives.name} says that it has lived {lives} times"
            ) from None
        except PermissionError as error:
            raise ConfigError("this node's journal cannot be read", detail=str(error)) from None
        known = self.content.get("life", 0)
        if isinstance(known, int) and known < lives:
            raise self._lost(f"{path} knows of life {known}, {self._lives.name} of life {lives}")
        self._file.truncate(self._size)  # a torn tail
        os.fsync(self._file.fileno())
        _sync_directory(path.parent)

    def _read(self) -> int:
        """Take in every whole frame; where the good part ends."""
        raw = self.path.read_bytes()
        if raw[: len(_MAGIC)] != _MAGIC:
            other = raw[:3] == _MAGIC[:3] and len(raw) >= len(_MAGIC)
            raise (StateError if other else DamagedJournalError)(
                "this node's journal is of another release" if other else "this node's journal is damaged",
                detail=f"{self.path} starts with {raw[:4]!r}.",
                hint="The others go on without it. Start a node with a new name and an empty directory in its place.",
            )
        at = len(_MAGIC)
        while (body := _body(raw, at)) is not None:
            try:
                items = [self._decode(item) for item in _items.decode(body)]
            except msgspec.MsgspecError as error:
                raise self._lost(f"{self.path}: at byte {at} there are other things than entries ({error})") from None
            self.content.update(items)
            at += _HEAD.size + len(body)
        self._check_tail(raw, at)
        return at

    def _read_lives(self) -> int:
        try:
            return int(self._lives.read_bytes())
        except (
            FileNotFoundError,
            ValueError,
        ):  # a first start; or what is left of it says nothing, and is written again
            return 0
        except OSError as error:
            hint = "Check the disk. It holds the number of the node's last life."
            raise ConfigError(f"{self._lives} cannot be read", detail=str(error), hint=hint) from None

    def _lost(self, detail: str) -> DamagedJournalError:
        return DamagedJournalError(
            "this node has lost its journal, or a part of it, and must not go on under its name",
            detail=f"{detail}. Votes, lives or commits are lost, and whoever acts without them could undo what was "
            "decided.",
            hint="The other nodes go on without it. Check the disk, and start a node with a new name and an empty "
            "directory in its place.",
        )

    def _check_tail(self, raw: bytes, at: int) -> None:
        """What was being written when the node died has nothing after it."""
        later = raw.find(_MARK, at + 1)
        if later < 0 and at + _HEAD.size <= len(raw):
            mark, length, _ = _HEAD.unpack_from(raw, at)
            end = at + _HEAD.size + length
            # zeros are none: a file may have grown before its bytes were written, the length among them
            later = end if mark == _MARK and raw[end:].strip(b"\0") else -1
        if later < 0:
            return
        raise DamagedJournalError(
            "this node's journal is damaged, and the node must not go on under its name",
            detail=f"{self.path}: what was written at byte {at} cannot be read, and more was written at byte {later}: "
            "so it had been safe on this disk. Votes, lives or commits are lost with it, and whoever acts without them "
            "could undo what was decided. The file was left as it is.",
            hint="The other nodes go on without it. Check the disk, and start a node with a new name and an empty "
            "directory in its place.",
        )

    def _decode(self, item: msgspec.Raw) -> tuple[str, object]:
        key, _ = _key.decode(item)
        try:
            return _decoders[kind_of(key)].decode(item)
        except (KeyError, msgspec.MsgspecError) as error:
            raise StateError(
                "a journal's entry cannot be understood",
                detail=f"{self.path}, {key!r}: {error}",
                hint="It was written by another release. Start the node with that one, or under a new name.",
            ) from error

    def write(self, items: list[tuple[str, object]]) -> None:
        """Append and sync. Waits for as long as the disk is full."""
        raw = _frame(items)
        self.content.update(items)
        while not self._append(raw):
            time.sleep(RETRY_S)
        for key, value in items:
            while key == "life" and not self._note_life(value):
                time.sleep(RETRY_S)
        if self._size > self._compact_from:
            self._compact()

    def _append(self, raw: bytes) -> bool:
        try:
            done = 0
            while done < len(raw):
                done += os.pwrite(self._file.fileno(), raw[done:], self._size + done)
            os.fdatasync(self._file.fileno())
        except OSError as error:
            self._on_full(
                f"The journal {self.path} cannot be written: {error.strerror}. The node waits and says nothing."
            )
            return False
        self._size += len(raw)
        return True

    def _note_life(self, life: object) -> bool:
        """After the journal has it, and before anybody hears of it."""
        try:
            write_whole(self._lives, str(life).encode())
        except OSError as error:
            self._on_full(f"{self._lives} cannot be written: {error.strerror}. The node waits and says nothing.")
            return False
        return True

    def _compact(self) -> None:
        """Write what lives to a new file, and let it take the old one's place. If that fails, the old one goes on."""
        fresh = self.path.with_suffix(".new")
        raw = _MAGIC + _frame(self.content.items()) + _frame(())  # the second says that the first was not torn
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
        self._file.close()
        self._file = FileIO(handle, "r+")
        self._size, self._compact_from = len(raw), max(COMPACT_BYTES, 2 * len(raw))
        _sync_directory(self.path.parent)

    def close(self) -> None:
        self._file.close()


def write_whole(path: Path, raw: bytes) -> None:
    """All of it or nothing, whenever the process or the machine dies; for nobody else to read.

    Several may do so at once (nodes that share a directory): each has a file of its own until it is whole.
    """
    handle, fresh = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")
    try:
        with open(handle, "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(handle)
        os.replace(fresh, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(fresh)
        raise
    _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

"""A store in a directory: `file:///var/holdfast`. On a disk of this machine, or on NFS for all of them.

    put    .writing/<random> is written and synced, gets its name by link(2), which one of several can do, and then the
           folder is synced. So a name is either not there or has all its bytes, whenever the machine loses its power.
    swap   numbered objects (`numbered.py`)

What a process that was killed has left in `.writing` is removed a day later, by whoever opens the store then: nothing
points there.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NoReturn

from holdfast.errors import (
    ConfigError,
    HoldfastError,
    ObjectExistsError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreRefusedError,
    StoreUnreachableError,
)
from holdfast.store import numbered
from holdfast.store.files import FileCalls
from holdfast.store.port import (
    Buffer,
    Range,
    StoredObject,
    Version,
    check_key,
    check_prefix,
    folder_of,
    missing,
    too_long,
    too_short,
)

WRITING = ".writing"
ABANDONED_S = 86_400.0

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK)


class LocalStore:
    """The folder is made by the first write, so that a look at a path that is not there leaves nothing."""

    def __init__(self, folder: Path | str, calls: FileCalls | None = None) -> None:
        self._root = str(folder)
        self.url = f"file://{self._root}"
        self._calls = calls or FileCalls()
        #: Folders that are known to be on the disk, not only in the kernel's memory.
        self._synced: set[str] = set()
        if not os.path.isabs(self._root):
            raise ConfigError(f"the path of a store must be absolute: {self._root!r}", hint="file:///var/holdfast")
        try:
            self._sweep()
        except OSError as error:
            self._raise(error, "open", "")

    # --- writing

    def put(self, key: str, chunks: Iterable[Buffer]) -> int:
        check_key(key)
        beside = os.path.join(self._root, WRITING, uuid.uuid4().hex)
        try:
            self._make_folders(os.path.dirname(beside))
            nbytes = self._write(beside, chunks)
            self._publish(beside, self._path(key))
            return nbytes
        except OSError as error:
            if isinstance(error, FileExistsError):
                raise ObjectExistsError(f"{key} is in {self.url} already") from None
            self._raise(error, "write", key)
        finally:
            with contextlib.suppress(OSError):
                self._calls.unlink(beside)

    def _write(self, path: str, chunks: Iterable[Buffer]) -> int:
        calls, nbytes = self._calls, 0
        handle = calls.create(path)
        try:
            for chunk in chunks:
                view = memoryview(chunk).cast("B")
                calls.write(handle, view)
                nbytes += len(view)
            calls.sync(handle)
        finally:
            calls.close(handle)
        return nbytes

    def _publish(self, beside: str, path: str) -> None:
        """Folders that lost their last object are removed, so one may go between our look and our link."""
        folder = os.path.dirname(path)
        for _ in range(5):
            self._make_folders(folder)
            try:
                self._calls.link(beside, path)
                break
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                raise ConfigError(
                    f"{self.url} cannot hold a store",
                    detail=f"Its file system has no hard links ({error.strerror}), so no write could be exclusive.",
                    hint="Use ext4, xfs, btrfs or NFS.",
                ) from None
        else:
            raise FileNotFoundError(errno.ENOENT, "the folder is removed again and again", folder)
        self._calls.sync_folder(folder)

    def _make_folders(self, folder: str) -> None:
        """Each one is synced in the one above it: a file in a folder that is gone is gone too. Also one that is there:
        whoever has made it may have died before it was synced. What is above the root is somebody else's."""
        if folder in self._synced:
            return
        if not (self._calls.is_folder(folder) and len(folder) < len(self._root)):
            above = os.path.dirname(folder)
            self._make_folders(above)
            with contextlib.suppress(FileExistsError):
                self._calls.make_folder(folder)
            with contextlib.suppress(PermissionError) if folder == self._root else contextlib.nullcontext():
                self._calls.sync_folder(above)  # a folder above the root may not be ours to open
        self._synced.add(folder)

    def delete(self, keys: Sequence[str]) -> None:
        folders: dict[str, None] = {}
        for key in keys:
            check_key(key)
            try:
                self._calls.unlink(self._path(key))
            except FileNotFoundError:
                continue
            except OSError as error:
                self._raise(error, "delete", key)
            folders[os.path.dirname(self._path(key))] = None
        for folder in folders:
            with contextlib.suppress(OSError):  # what comes back after a crash is deleted again
                self._calls.sync_folder(folder)
                self._calls.remove_folder(folder)
                self._synced.discard(folder)

    def swap(self, key: str, data: bytes, version: Version | None) -> Version:
        check_key(key)
        return numbered.swap(self, key, data, version)

    # --- reading

    def look(self, key: str) -> tuple[bytes, Version] | None:
        check_key(key)
        return numbered.look(self, key)

    def read(self, key: str, ranges: Sequence[Range]) -> None:
        check_key(key)
        pieces = [(offset, into.cast("B")) for offset, into in ranges]
        try:
            came = self._calls.read(self._path(key), pieces)
        except OSError as error:
            self._raise(error, "read", key)
        for (offset, into), got in zip(pieces, came, strict=True):
            if got != len(into):
                raise too_short(self.url, key, offset, len(into), got)

    def get(self, key: str, bytes_max: int) -> bytes:
        nbytes = self.size(key)
        if nbytes > bytes_max:
            raise too_long(self.url, key, nbytes, bytes_max)
        raw = bytearray(nbytes)
        self.read(key, [(0, memoryview(raw))])
        return bytes(raw)

    def size(self, key: str) -> int:
        check_key(key)
        try:
            return self._calls.size(self._path(key))
        except OSError as error:
            self._raise(error, "read", key)

    def list(self, prefix: str) -> list[StoredObject]:
        check_prefix(prefix)
        folder = folder_of(prefix)
        try:
            found = list(self._calls.walk(os.path.join(self._root, folder)))
        except FileNotFoundError:
            return []
        except OSError as error:
            self._raise(error, "list", prefix)
        keys = [StoredObject(os.path.join(folder, path), size, at) for path, size, at in found]
        return sorted(one for one in keys if one.key.startswith(prefix) and not one.key.startswith(WRITING))

    def close(self) -> None:
        """Nothing is kept open."""

    def _path(self, key: str) -> str:
        return os.path.join(self._root, *key.split("/"))

    def _sweep(self) -> None:
        """Leave nothing behind forever of processes that were killed while they wrote."""
        folder = os.path.join(self._root, WRITING)
        now = time.time()
        for path, _, modified in self._calls.walk(folder):
            if now - modified > ABANDONED_S:
                with contextlib.suppress(OSError):
                    self._calls.unlink(os.path.join(folder, path))

    def _raise(self, error: OSError, what: str, key: str) -> NoReturn:
        raise _error_of(error, self.url, what, key) from error


def _error_of(error: OSError, url: str, what: str, key: str) -> HoldfastError:
    says = f"{error.strerror or error}."
    if error.errno in _FULL:
        return StoreFullError(f"{url} is full", detail=f"{key}: {says}", hint="Make room there; it is tried again.")
    if error.errno == errno.EROFS:
        return StoreReadOnlyError(f"{url} takes no writes", detail=f"{key}: {says}", hint="It is mounted read-only.")
    if error.errno in (errno.EACCES, errno.EPERM):
        hint = "The user of the nodes must own the folder."
        return StoreRefusedError(f"{url} may not be used: {what} {key}".rstrip(), detail=says, hint=hint)
    if error.errno == errno.ENOENT and what == "read":
        return missing(url, key)
    if error.errno in (errno.ENOTDIR, errno.EISDIR):
        return ConfigError(f"{url} is not a folder for a store", detail=f"{key}: {says}")
    if error.errno in (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENXIO, errno.ENODEV):
        return StoreUnreachableError(f"{url} does not answer: {what} {key}".rstrip(), detail=says)
    return StoreError(f"{url} cannot {what} {key}".rstrip(), detail=says)

"""At most one process at a time: a run in its directory, a node in its own. Who holds the lock stands in its file.

The kernel keeps the lock (flock) and lets go of it with the process, however that ends: a file that kill -9 left behind
holds nobody up. Over NFS the same call locks for all machines. Whoever lets go in order removes the file first, so one
that was opened before may be a file without a name by the time it is locked: then the next one counts.

What is locked is never waited for: whoever comes second is refused, with the name of the first. (For a moment it looks
again. A process that is ending, or one that only looked, may be gone by then.)
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import time
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from holdfast.errors import ConfigError

#: How long and how often it is looked again before somebody is refused.
AGAIN_S, LOOK_S = 0.3, 0.02
_HELD = (errno.EWOULDBLOCK, errno.EACCES)


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds a lock, as its file says."""

    what: str
    pid: int
    host: str
    since: str

    def __str__(self) -> str:
        return f"{self.what} (process {self.pid} on {self.host}) has held it since {self.since}"


_UNKNOWN = "Another process holds it"


class Lock:
    """A lock that this process holds until `release`, or until it ends."""

    def __init__(self, path: Path, handle: int) -> None:
        self.path = path
        self._handle = handle

    def release(self) -> None:
        if self._handle < 0:
            return
        with contextlib.suppress(OSError):
            self.path.unlink()  # while it is held: nobody else's can be removed by this
        os.close(self._handle)
        self._handle = -1


def take(path: Path, what: str, refusal: str, hint: str) -> Lock:
    """Hold this lock as `what`; a ConfigError that says who does if it is held already. Its directory must exist."""
    until = time.monotonic() + AGAIN_S
    while (handle := _open(path)) is None:
        if time.monotonic() > until:
            raise ConfigError(refusal, detail=f"{_holder(path) or _UNKNOWN}: {path}.", hint=hint)
        time.sleep(LOOK_S)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    holder = Holder(what=what, pid=os.getpid(), host=socket.gethostname(), since=now)
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, msgspec.json.encode(holder), 0)
    except OSError:  # a full disk: the lock holds all the same
        pass
    return Lock(path, handle)


def held_by(path: Path) -> str:
    """Who holds this lock now, in words; "": nobody."""
    if not path.exists():
        return ""
    handle = _open(path, create=False)
    if handle is None:
        return str(_holder(path) or _UNKNOWN)
    if handle >= 0:
        os.close(handle)
    return ""


def _open(path: Path, *, create: bool = True) -> int | None:
    """The locked file; None: somebody else holds it; -1: it is not there, and was not to be made."""
    try:
        handle = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o600)
    except FileNotFoundError:
        if create:
            raise
        return -1
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_same(handle, path):
            return handle
    except OSError as error:
        os.close(handle)
        if error.errno in _HELD:
            return None
        raise ConfigError(
            f"{path} cannot be locked",
            detail=f"{error.strerror}.",
            hint="Use a directory on a file system that has locks: two processes there would write over each other.",
        ) from None
    os.close(handle)
    return None  # its name is another file's by now, or nobody's


def _is_same(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _holder(path: Path) -> Holder | None:
    """None: it has not said yet, or has let go of it."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Holder)
    except (OSError, msgspec.MsgspecError):
        return None

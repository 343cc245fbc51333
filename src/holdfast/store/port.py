"""What a stable store must be able to do, and nothing else: one small interface with few adapters behind it.

A store holds objects: bytes under a key, which never change once they are there. Two kinds of writing are enough for
checkpoints. `put` makes a new object, whole or not at all. `swap` replaces one small object if it is still what it was
when it was looked at; that is the only fence there is (sguard leaves this to its coordinator; trap 9 of our design).

Every adapter promises, and `tests/conformance/test_store_conformance.py` asks each of them:

* What `put` and `swap` have returned for is durable: it outlives this process, and on a disk also the machine.
* Whoever finds an object finds all of it. A writer that dies half-way leaves nothing that `list` shows.
* Of several who `put` the same key at once one wins and the others get ObjectExistsError. (Object stores promise this
  for objects that fit one request; the keys of larger ones are never contested, see `checkpoint/head.py`.)
* Of several who `swap` the same version one wins and the others get SwapConflictError.
* What is listed after a `put` has returned includes it.
* An error is one of `StoreError`'s children. After StoreUnreachableError a write may or may not have been done.
* Memory is bounded: a chunk is asked for when the one before it has been taken, and adapters keep a few megabytes.

A chunk may be used until the next one is asked for: whoever keeps it longer copies it. Methods may be called from any
thread. Adapters do not retry for long and do not wait for long; `store/service.py` does, and says what for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from holdfast.errors import HoldfastError, ObjectMissingError, check

Buffer = bytes | bytearray | memoryview
#: What a small object was when it was looked at. Opaque; never the same for two different contents of one key.
Version = str
#: (offset in the object, where its bytes go).
Range = tuple[int, memoryview]

#: A small object, one that is looked at and swapped, is never larger.
SMALL_BYTES_MAX = 4 << 20
_PART = re.compile(r"[A-Za-z0-9_%+=@-][A-Za-z0-9._%+=@-]{0,240}")


class StoredObject(NamedTuple):
    """One line of a listing. `modified_s` is the store's clock, in seconds since 1970; good for ages, not for order."""

    key: str
    nbytes: int
    modified_s: float


class Store(Protocol):
    #: As the user wrote it, without anything secret.
    url: str

    def put(self, key: str, chunks: Iterable[Buffer]) -> int:
        """Make a new object from these chunks; its length. An exception of the iterator ends it: nothing is left."""
        ...

    def read(self, key: str, ranges: Sequence[Range]) -> None:
        """Fill every range from the object. One that the object does not have is an ObjectMissingError."""
        ...

    def get(self, key: str, bytes_max: int) -> bytes:
        """A whole object of at most this length. A longer one is refused: ObjectMissingError, it is not that object."""
        ...

    def size(self, key: str) -> int: ...

    def list(self, prefix: str) -> list[StoredObject]:
        """Everything whose key starts with these letters, by key."""
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """These are gone, also if they were not there."""
        ...

    def look(self, key: str) -> tuple[bytes, Version] | None:
        """A small object that is swapped, and its version; None: there is none."""
        ...

    def swap(self, key: str, data: bytes, version: Version | None) -> Version:
        """Put `data` in the place of that version (None: of nothing); the new version."""
        ...

    def close(self) -> None: ...


def check_key(key: str) -> None:
    """Keys become paths: a key of ours has plain parts, and nothing in it leads elsewhere."""
    fine = all(_PART.fullmatch(part) for part in key.split("/"))
    check(fine and len(key) <= 900, "a key cannot be a path in a store", repr(key))


def check_prefix(prefix: str) -> None:
    """A prefix is the beginning of a key, or nothing."""
    if prefix:
        check_key(prefix + ("x" if prefix.endswith("/") else ""))


def folder_of(prefix: str) -> str:
    """The innermost folder that has all keys with this prefix; "": the root."""
    return prefix.rpartition("/")[0]


def missing(url: str, key: str, detail: str = "") -> HoldfastError:
    return ObjectMissingError(f"{key} is not in {url}", detail=detail)


def too_short(url: str, key: str, offset: int, wanted: int, got: int) -> HoldfastError:
    return ObjectMissingError(f"{key} in {url} ends too early", detail=f"Wanted {wanted} bytes at {offset}, got {got}.")


def too_long(url: str, key: str, nbytes: int, bytes_max: int) -> HoldfastError:
    return ObjectMissingError(f"{key} in {url} is too long", detail=f"It has {nbytes} bytes, at most {bytes_max}.")

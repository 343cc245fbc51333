"""Compare-and-set where a store has only an exclusive create: the versions of a small object are numbered objects.

    head/u1/000000000012        the version before, kept for whoever is reading it
    head/u1/000000000013        the present one: the highest number counts

To swap version 13 is to make 14, which one of several succeeds in. Older ones are deleted, so a writer that slept for
two versions could make a 14 again that had come and gone. So it looks once more: if there is a higher number by then,
that is a conflict, whatever it has made; the highest number never goes away, and nobody counts a lower one.

File systems have no better primitive (HDFS has none at all that replaces on a condition), and a lock would have to be
taken from its holder when that dies.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Protocol

from holdfast.errors import ObjectExistsError, ObjectMissingError, StoreError, StoreUnreachableError, SwapConflictError
from holdfast.store.port import SMALL_BYTES_MAX, Buffer, StoredObject, Version

_DIGITS = 12
#: How often somebody looks who finds a version that is deleted before it is read.
_LOOKS = 20


class _Objects(Protocol):
    url: str

    def put(self, key: str, chunks: Iterable[Buffer]) -> int: ...
    def get(self, key: str, bytes_max: int) -> bytes: ...
    def list(self, prefix: str) -> list[StoredObject]: ...
    def delete(self, keys: Sequence[str]) -> None: ...


def _name(key: str, number: int) -> str:
    return f"{key}/{number:0{_DIGITS}d}"


def _numbers(store: _Objects, key: str) -> list[int]:
    names = (found.key.rpartition("/")[2] for found in store.list(key + "/"))
    return sorted(int(name) for name in names if len(name) == _DIGITS and name.isdigit())


def look(store: _Objects, key: str) -> tuple[bytes, Version] | None:
    for _ in range(_LOOKS):
        numbers = _numbers(store, key)
        if not numbers:
            return None
        try:
            return store.get(_name(key, numbers[-1]), SMALL_BYTES_MAX), str(numbers[-1])
        except ObjectMissingError:
            if numbers == _numbers(store, key):  # nobody has swapped it: it is damaged, not gone
                raise
    raise StoreUnreachableError(
        f"{key} in {store.url} changes faster than it can be read", detail=f"Looked {_LOOKS} times."
    )


def swap(store: _Objects, key: str, data: bytes, version: Version | None) -> Version:
    last = int(version) if version is not None else 0
    conflict = SwapConflictError(f"{key} in {store.url} has changed", detail=f"It is no longer version {last}.")
    if max(_numbers(store, key), default=0) != last:
        raise conflict
    try:
        store.put(_name(key, last + 1), [data])
    except ObjectExistsError:
        raise conflict from None
    numbers = _numbers(store, key)
    if numbers[-1] != last + 1:
        raise conflict
    with contextlib.suppress(StoreError):  # the next one deletes them
        store.delete([_name(key, number) for number in numbers if number < last])
    return str(last + 1)

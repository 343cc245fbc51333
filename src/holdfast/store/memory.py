"""A store in memory that keeps every promise of the port, until it is told to break one: for simulations and tests.

Trouble is asked for by the operation it strikes. `trouble(op, key)` is called before each one and may

* raise: the operation is refused, and nothing is done;
* return a `Trouble`: `LOST_ANSWER` does it and then does not answer (the caller cannot know), `NOT_KEPT` says yes and
  keeps nothing (a store that lies), `TORN` keeps only the first half of an object that it has promised to keep.

How late an answer comes is not decided here: whoever runs the plan of operations (`store/plan.py`) decides when each
one is done, and may do others in between.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from enum import Enum

from holdfast.errors import ObjectExistsError, StoreFullError, StoreUnreachableError, SwapConflictError
from holdfast.store.port import (
    Buffer,
    Range,
    StoredObject,
    Version,
    check_key,
    check_prefix,
    missing,
    too_long,
    too_short,
)


class Trouble(Enum):
    NONE = "none"
    LOST_ANSWER = "it was done, and nobody was told"
    NOT_KEPT = "it was promised, and not kept"
    TORN = "it was promised, and half of it kept"


def _no_trouble(op: str, key: str) -> Trouble:
    del op, key
    return Trouble.NONE


class MemoryStore:
    """`bytes_max` is its room; `objects` and `small` are what it holds, for whoever wants to damage them."""

    def __init__(self, bytes_max: int = 1 << 40, trouble: Callable[[str, str], Trouble] = _no_trouble) -> None:
        self.url = "memory://"
        self.objects: dict[str, bytes] = {}
        self.small: dict[str, tuple[bytes, int]] = {}
        self.bytes_max = bytes_max
        self.trouble = trouble
        self._swaps = 0
        self._lock = threading.Lock()

    def put(self, key: str, chunks: Iterable[Buffer]) -> int:
        check_key(key)
        trouble = self.trouble("put", key)
        room = self.bytes_max - sum(map(len, self.objects.values()))
        raw = bytearray()
        for chunk in chunks:
            raw += chunk
            if len(raw) > room:
                raise StoreFullError(f"{self.url} is full", detail=f"{key}: it may hold {self.bytes_max} bytes.")
        if self.objects.setdefault(key, kept := bytes(raw)) is not kept:  # one step: several threads may come
            raise ObjectExistsError(f"{key} is in {self.url} already")
        if trouble is Trouble.NOT_KEPT:
            del self.objects[key]
        elif trouble is Trouble.TORN:
            self.objects[key] = kept[: len(kept) // 2]
        self._answer(trouble, key)
        return len(kept)

    def read(self, key: str, ranges: Sequence[Range]) -> None:
        raw = self._object("read", key)
        for offset, into in ranges:
            view = into.cast("B")
            found = raw[offset : offset + len(view)]
            if len(found) != len(view):
                raise too_short(self.url, key, offset, len(view), len(found))
            view[:] = found

    def get(self, key: str, bytes_max: int) -> bytes:
        raw = self._object("get", key)
        if len(raw) > bytes_max:
            raise too_long(self.url, key, len(raw), bytes_max)
        return raw

    def size(self, key: str) -> int:
        return len(self._object("size", key))

    def list(self, prefix: str) -> list[StoredObject]:
        check_prefix(prefix)
        self.trouble("list", prefix)
        return [StoredObject(k, len(self.objects[k]), 0.0) for k in sorted(self.objects) if k.startswith(prefix)]

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)
            trouble = self.trouble("delete", key)
            if trouble is not Trouble.NOT_KEPT:
                self.objects.pop(key, None)
            self._answer(trouble, key)

    def look(self, key: str) -> tuple[bytes, Version] | None:
        check_key(key)
        self.trouble("look", key)
        found = self.small.get(key)
        return (found[0], str(found[1])) if found else None

    def swap(self, key: str, data: bytes, version: Version | None) -> Version:
        check_key(key)
        trouble = self.trouble("swap", key)
        with self._lock:
            present = self.small.get(key)
            if (str(present[1]) if present else None) != version:
                raise SwapConflictError(f"{key} in {self.url} has changed")
            self._swaps += 1
            made = self._swaps
            self.small[key] = (data, made)
        self._answer(trouble, key)
        return str(made)

    def close(self) -> None:
        """Nothing is kept open."""

    def _object(self, op: str, key: str) -> bytes:
        check_key(key)
        self.trouble(op, key)
        if key not in self.objects:
            raise missing(self.url, key)
        return self.objects[key]

    def _answer(self, trouble: Trouble, key: str) -> None:
        if trouble is Trouble.LOST_ANSWER:
            raise StoreUnreachableError(f"{self.url} does not answer", detail=key)

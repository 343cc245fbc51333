"""The way to the store: opened by whoever first needs it, on a thread that may wait, and again if it could not be.

A store that is away must not keep a node from starting: its shards may have all they need in the memory of others.
Reads have workers of their own, so that who waits for a state does not wait behind a checkpoint that is being written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from holdfast.store.port import Store
from holdfast.store.service import IoService
from holdfast.store.url import open_store


class StoreDoor:
    """Of one process. Safe to use from any thread."""

    def __init__(
        self, open_: Callable[[], Store], on_wait: Callable[[str], None] = lambda text: None, again_s: float = 30.0
    ) -> None:
        self._open = open_
        self._on_wait = on_wait
        self._again_s = again_s
        self._lock = threading.Lock()
        self._store: Store | None = None
        self._services: dict[str, IoService] = {}

    @classmethod
    def of(
        cls, url: str, settings: dict[str, str], log: Path, on_wait: Callable[[str], None] = lambda text: None
    ) -> StoreDoor:
        """`log` is of a JVM beside it, where the store needs one."""
        return cls(lambda: open_store(url, settings, log=log), on_wait)

    def service(self, kind: str = "write") -> IoService:
        """May take long, and fail: then the next one tries again."""
        with self._lock:
            if self._store is None:
                self._store = self._open()
            if kind not in self._services:
                self._services[kind] = IoService(self._store, on_wait=self._on_wait, again_s=self._again_s)
            return self._services[kind]

    def close(self) -> None:
        """Waits for nobody."""
        if self._lock.acquire(timeout=1.0):  # else it is being opened, and ends with the process
            try:
                for service in self._services.values():
                    service.close()
            finally:
                self._lock.release()

"""The way to the store: opened by whoever first needs it, on a thread that may wait, and again if it could not be.

A store that is away must not keep a node from starting: its shards may have all they need in the memory of others.
Reads have workers of their own, so that who waits for a state does not wait behind a checkpoint that is being written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from holdfast.runtime.stable.peace import PeaceWriter
from holdfast.store.port import Store
from holdfast.store.service import IoService, WriteGate
from holdfast.store.url import open_store


class StoreDoor:
    """Of one process. Safe to use from any thread."""

    def __init__(
        self,
        open_: Callable[[], Store],
        on_wait: Callable[[str], None] = lambda text: None,
        again_s: float = 30.0,
        gate: WriteGate | None = None,
    ) -> None:
        self._open = open_
        #: Of checkpoints: whatever else is written is small, and somebody waits for it.
        self._gate = gate
        self._on_wait = on_wait
        self._again_s = again_s
        self._lock = threading.Lock()
        self._store: Store | None = None
        self._services: dict[str, IoService] = {}

    @classmethod
    def of(
        cls,
        url: str,
        settings: dict[str, str],
        log: Path,
        on_wait: Callable[[str], None] = lambda text: None,
        peace: PeaceWriter | None = None,
    ) -> StoreDoor:
        """`log` is of a JVM beside it, where the store needs one. `peace`: checkpoints are written when it says so."""
        favoured = peace.favoured if peace is not None else None
        return cls(lambda: open_store(url, settings, log=log, favoured=favoured), on_wait, gate=peace)

    def nodes_of(self, key: str) -> list[list[str]] | None:
        """Where each block of an object is; None: this store does not say."""
        with self._lock:
            found = getattr(self._store, "block_nodes", None)
        return found(key) if found is not None else None

    def service(self, kind: str = "write") -> IoService:
        """May take long, and fail: then the next one tries again."""
        with self._lock:
            if self._store is None:
                self._store = self._open()
            if kind not in self._services:
                gate = self._gate if kind == "write" else None
                self._services[kind] = IoService(self._store, on_wait=self._on_wait, again_s=self._again_s, gate=gate)
            return self._services[kind]

    def close(self) -> None:
        """Waits for nobody."""
        if self._lock.acquire(timeout=1.0):  # else it is being opened, and ends with the process
            try:
                for service in self._services.values():
                    service.close()
            finally:
                self._lock.release()

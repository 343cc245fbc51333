"""`holdfast peace calibrate`: measure what one writer can send and one disk can take, as the paper did (sguard §6.2).

More and more writers start at once, and the capacity is the number from which on the total does not grow any more. What
was written is deleted. A store that cannot be told where to write shows no disks: there only the total is measured.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from holdfast.errors import ConfigError, HoldfastError
from holdfast.store.port import Store
from holdfast.store.url import can_place, check_url, open_store

#: A total that is within this share of the best one has stopped growing.
ENOUGH = 0.9
_PIECE = 1 << 20
FOLDER = "calibrate"


def writers_of(most: int) -> list[int]:
    """1, 2, 4, … up to so many."""
    found = [1]
    while found[-1] * 2 <= most:
        found.append(found[-1] * 2)
    return found


def capacity(totals: dict[int, float]) -> int:
    """The fewest writers that reach about as much as any number of them."""
    best = max(totals.values())
    return min(writers for writers, total in totals.items() if total >= ENOUGH * best)


def measure(store: Store, writers: int, nbytes: int, *, clock: Callable[[], float] = time.monotonic) -> float:
    """Bytes per second of so many writers at once, one object each, from the first start to the last end."""
    names = [f"{FOLDER}/{uuid.uuid4().hex}" for _ in range(writers)]
    errors: list[BaseException] = []

    def write(key: str) -> None:
        try:
            store.put(key, _pieces(nbytes))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(name,)) for name in names]
    began = clock()
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took = clock() - began
    finally:
        store.delete(names)
    if errors:
        raise errors[0]
    return writers * nbytes / max(took, 1e-9)


def _pieces(nbytes: int) -> Iterator[bytes]:
    piece = bytes(range(256)) * (_PIECE // 256)
    for at in range(0, nbytes, _PIECE):
        yield piece[: min(_PIECE, nbytes - at)]


class Aimed:
    """Where everything goes that is written: nowhere in particular, or to one data node."""

    def __init__(self) -> None:
        self.node = ""

    def __call__(self, key: str) -> Sequence[str]:
        return [self.node] if self.node else []


def calibrate(url: str, settings: dict[str, str], chunk_bytes: int, most: int, log: Path) -> dict[str, Any]:
    """Totals by number of writers, and the capacities that follow from them."""
    check_url(url)
    counts = writers_of(most)
    store = open_store(url, settings, log=log)
    try:
        measure(store, 1, min(chunk_bytes, _PIECE))  # connections and classes are there from now on
        totals = {count: measure(store, count, chunk_bytes) for count in counts}
        node = _a_data_node(store) if can_place(url) else ""
    finally:
        store.close()
    found: dict[str, Any] = {"chunk_bytes": chunk_bytes, "sent": totals, "send": capacity(totals)}
    if node:
        found |= _one_disk(url, settings, chunk_bytes, counts, node, log)
    return found


def _a_data_node(store: Any) -> str:
    key = f"{FOLDER}/{uuid.uuid4().hex}"
    store.put(key, [b"where?"])
    try:
        blocks = store.block_nodes(key)
    finally:
        store.delete([key])
    if not blocks or not blocks[0]:
        raise HoldfastError(f"{store.url} does not say where its blocks are", hint="Is a data node up?")
    return blocks[0][0]


def _one_disk(
    url: str, settings: dict[str, str], chunk_bytes: int, counts: list[int], node: str, log: Path
) -> dict[str, Any]:
    """The same towards one data node, one copy each."""
    aimed = Aimed()
    store = open_store(url, {**settings, "dfs.replication": "1"}, log=log, favoured=aimed)
    try:
        aimed.node = node
        totals = {count: measure(store, count, chunk_bytes) for count in counts}
    finally:
        store.close()
    receive = capacity(totals)
    return {
        "data_node": node,
        "taken": totals,
        "receive": receive,
        "timestep_s": receive * chunk_bytes / totals[receive],
    }


def check_sizes(chunk_bytes: int, most: int) -> None:
    if not 1 << 20 <= chunk_bytes <= 1 << 30:
        raise ConfigError("--chunk must be 1 MB to 1 GB", detail=f"It is {chunk_bytes} bytes.")
    if not 1 <= most <= 64:
        raise ConfigError("--writers must be 1 to 64", detail=f"It is {most}.")

"""The log of a stage: every try of a batch that it began to hand over, as an object in the store.

    log/<stage>/<batch in thousands>/<batch>-<epoch>-<attempt>

A try is there before its batch counts, so whatever a ledger says is committed can be had again, row for row and in the
same order: rows are kept as the Arrow bytes that were handed over, and a commit has their digest. That is why a restart
is exact also for what depends on the order of rows inside a batch (first, last, windows that count rows, sums of
doubles), which Spark does not promise to give again.

A batch that every consumer has in the oldest of its checkpoints is not needed any more (`forget`).
"""

from __future__ import annotations

import queue
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from holdfast.checkpoint import head as heads
from holdfast.checkpoint import keys
from holdfast.core.ready import Done, LoadBatches, LogBatch
from holdfast.errors import HoldfastError, ObjectExistsError, one_line
from holdfast.model.block import digest_of
from holdfast.model.ids import Asset, Edge, stage_edge
from holdfast.model.parts import CommitRecord, HeldBatch, LoggedBatch
from holdfast.runtime.net.wire import FRAME_BYTES_MAX, pack_value, unpack_value
from holdfast.store.plan import DeleteKeys, GetWhole, ListKeys, LookAt, PutNew, Steps
from holdfast.store.port import StoredObject
from holdfast.store.service import IoService
from holdfast.store.url import open_store

MAGIC = b"HFLG"
FORMAT = 1
#: One answer has at most about this many bytes; whoever wants more asks again.
LOAD_BYTES = 64 << 20
_FOLDER = 1_000
_KEY = re.compile(r"log/[^/]+/[0-9]+/([0-9]{1,18})-([0-9]{1,18})-([0-9]{1,18})")


class LoggedTry(msgspec.Struct, frozen=True, array_like=True):
    """One object of the log. The parts are read one by one: a shard wants only its own."""

    stage: Asset
    batch: int
    epoch: int
    attempt: int
    last: CommitRecord | None
    parts: dict[Edge, msgspec.Raw]


def folder_of(stage: Asset) -> str:
    return f"log/{quote(stage, safe='')}/"


def key_of(stage: Asset, batch: int, epoch: int, attempt: int) -> str:
    return f"{folder_of(stage)}{batch // _FOLDER}/{batch}-{epoch}-{attempt}"


def write(effect: LogBatch) -> Steps[None]:
    """Keep one try. It has a name of its own, so one that is there already is this one."""
    parts = {edge: msgspec.Raw(pack_value(rows)) for edge, rows in effect.parts.items()}
    one = LoggedTry(effect.stage, effect.batch, effect.epoch, effect.attempt, effect.last, parts)
    raw = heads.pack(msgspec.msgpack.encode(one), MAGIC, FORMAT)
    try:
        yield PutNew(key_of(effect.stage, effect.batch, effect.epoch, effect.attempt), [raw], again=True)
    except ObjectExistsError:
        return


def read(stage: Asset, wanted: LoadBatches) -> Steps[tuple[LoggedBatch, ...]]:
    """Every try of these batches, of as many of them as one answer may hold; the first batch in any case."""
    found: list[LoggedBatch] = []
    held = 0
    for batch, tries in (yield from _tries(stage, wanted.first, wanted.last)):
        if found and held + sum(one.nbytes for one in tries) > LOAD_BYTES:
            break
        for one in tries:
            held += one.nbytes
            raw = yield GetWhole(one.key, FRAME_BYTES_MAX)
            found.append(_decode(raw, one.key, batch, wanted.edge))
    return tuple(found)


def _tries(stage: Asset, first: int, last: int) -> Steps[list[tuple[int, list[StoredObject]]]]:
    tries: dict[int, list[StoredObject]] = {}
    for folder in range(first // _FOLDER, last // _FOLDER + 1):
        for one in (yield ListKeys(f"{folder_of(stage)}{folder}/")):
            match = _KEY.fullmatch(one.key)
            if match is not None and first <= int(match[1]) <= last:
                tries.setdefault(int(match[1]), []).append(one)
    return sorted(tries.items())


def _decode(raw: bytes, key: str, batch: int, edge: Edge) -> LoggedBatch:
    what = f"{key} in the log"
    body = heads.unpack(raw, MAGIC, FORMAT, what)
    try:
        one = msgspec.msgpack.decode(body, type=LoggedTry)
        rows = unpack_value(one.parts[edge], what)
    except (msgspec.DecodeError, KeyError) as error:
        raise heads.damaged(what, repr(error)) from None
    if one.batch != batch:
        raise heads.damaged(what, f"It says that it is batch {one.batch}.")
    return LoggedBatch(HeldBatch(one.batch, one.epoch, one.attempt, rows, digest_of(rows)), one.last)


def forget(stage: Asset, shards: tuple[Asset, ...]) -> Steps[int]:
    """Delete what no checkpoint that is kept needs; up to which batch. The last batch that all of them have stays: the
    commit of the one before it is in it."""
    least: int | None = None
    for shard in shards:
        found = yield LookAt(keys.head_key(shard))
        entries = heads.decode(found[0], f"the head of {shard}").entries if found else ()
        if not entries:
            return -1
        mine = min(entry.batches.get(stage_edge(stage, shard), -1) for entry in entries)
        least = mine if least is None else min(least, mine)
    if least is None or least < 1:
        return -1
    doomed = []
    for one in (yield ListKeys(folder_of(stage))):
        match = _KEY.fullmatch(one.key)
        if match is not None and int(match[1]) < least:
            doomed.append(one.key)
    if doomed:
        yield DeleteKeys(tuple(doomed))
    return least


class BatchLog:
    """Writes the log for the stages of one driver process: each has a thread, since one batch waits for one write."""

    def __init__(self, service: IoService, answer: Callable[[Done], None]) -> None:
        self._service = service
        self._answer = answer
        self._wanted: queue.SimpleQueue[LogBatch | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="batch log", daemon=True).start()

    def want(self, effect: LogBatch) -> None:
        self._wanted.put(effect)

    def close(self) -> None:
        """Ends after the write that is under way. The service is its maker's."""
        self._wanted.put(None)

    def _work(self) -> None:
        while (effect := self._wanted.get()) is not None:
            try:
                self._service.run(write(effect))
                self._answer(Done(ticket=effect.ticket, ok=True))
            except HoldfastError as error:
                self._answer(Done(ticket=effect.ticket, ok=False, why=one_line(error)))
            except Exception as error:  # whatever it is: the core waits for an answer
                self._answer(Done(ticket=effect.ticket, ok=False, why=repr(error)))


def open_service(store: dict[str, Any], log: Path, on_wait: Callable[[str], None] = lambda text: None) -> IoService:
    """The store of a node's settings (`NodeConfig.stored`)."""
    return IoService(open_store(store["url"], store["settings"], log=log), on_wait=on_wait)

"""The log of a stage: every try of a batch that it began to hand over, as an object in the store.

    log/<deployment>/<stage>/<batch in thousands>/<batch>-<epoch>-<attempt>

A try is there before its batch counts, so whatever a ledger says is committed can be had again, row for row and in the
same order: rows are kept as the Arrow bytes that were handed over, and a commit has their digest. That is why a restart
is exact also for what depends on the order of rows inside a batch (first, last, windows that count rows, sums of
doubles), which Spark does not promise to give again.

Where the ledgers are lost, too, the log has the last commit (`last_commit`). A driver logs a try only after it has
opened the ledger, which keeps earlier drivers from writing to it, and gives up its own earlier tries first. So of the
tries of the last batch only the latest can have been committed. If it was not, nobody has seen any of it, and it may
just as well be: its rows are those of the batch that Spark has planned.

A batch that every consumer has in the oldest of its checkpoints is not needed any more (`forget`).
"""

from __future__ import annotations

import queue
import re
import threading
from collections.abc import Callable
from urllib.parse import quote

import msgspec

from holdfast.checkpoint import head as heads
from holdfast.checkpoint import keys
from holdfast.core.ready import Done, LoadBatches, LogBatch
from holdfast.errors import HoldfastError, InputError, ObjectExistsError, one_line
from holdfast.model.block import digest_of
from holdfast.model.ids import Asset, Edge, stage_edge
from holdfast.model.parts import CommitRecord, HeldBatch, LoggedBatch
from holdfast.runtime.net.wire import FRAME_BYTES_MAX, pack_value, unpack_value
from holdfast.runtime.stable.door import StoreDoor
from holdfast.store.plan import DeleteKeys, GetWhole, ListKeys, LookAt, PutNew, Steps
from holdfast.store.port import StoredObject

MAGIC = b"HFLG"
FORMAT = 2
#: One answer has at most about this many bytes; whoever wants more asks again.
LOAD_BYTES = 64 << 20
_FOLDER = 1_000
_KEY = re.compile(r"log/[^/]+/[^/]+/[0-9]+/([0-9]{1,18})-([0-9]{1,18})-([0-9]{1,18})")


class LoggedTry(msgspec.Struct, frozen=True, array_like=True):
    """One object of the log. The parts are read one by one: a shard wants only its own."""

    stage: Asset
    batch: int
    epoch: int
    attempt: int
    commit: CommitRecord
    last: CommitRecord | None
    parts: dict[Edge, msgspec.Raw]


def folder_of(deployment: str, stage: Asset) -> str:
    return f"log/{quote(deployment, safe='')}/{quote(stage, safe='')}/"


def key_of(deployment: str, stage: Asset, batch: int, epoch: int, attempt: int) -> str:
    return f"{folder_of(deployment, stage)}{batch // _FOLDER}/{batch}-{epoch}-{attempt}"


def write(deployment: str, effect: LogBatch) -> Steps[None]:
    """Keep one try. It has a name of its own, so one that is there already is this one."""
    parts = {edge: msgspec.Raw(pack_value(rows)) for edge, rows in effect.parts.items()}
    one = LoggedTry(effect.stage, effect.batch, effect.epoch, effect.attempt, effect.commit, effect.last, parts)
    raw = heads.pack(msgspec.msgpack.encode(one), MAGIC, FORMAT)
    if len(raw) > FRAME_BYTES_MAX:
        raise InputError(
            f"batch {effect.batch} of {effect.stage} is too large for the log",
            detail=f"It has {len(raw) >> 20} MB; at most {FRAME_BYTES_MAX >> 20} MB could be read back.",
            hint="Limit what a micro-batch may take (maxFilesPerTrigger).",
        )
    key = key_of(deployment, effect.stage, effect.batch, effect.epoch, effect.attempt)
    try:
        yield PutNew(key, [raw], again=True)
    except ObjectExistsError:
        return


def read(deployment: str, stage: Asset, wanted: LoadBatches) -> Steps[tuple[LoggedBatch, ...]]:
    """Every try of these batches, of as many of them as one answer may hold; the first two in any case, since the
    commit of the first is in the second."""
    found: list[LoggedBatch] = []
    held = 0
    for number, (batch, tries) in enumerate((yield from _tries(deployment, stage, wanted.first, wanted.last))):
        if number >= 2 and held + sum(one.nbytes for one in tries) > LOAD_BYTES:
            break
        for one in tries:
            held += one.nbytes
            raw = yield GetWhole(one.key, FRAME_BYTES_MAX)
            found.append(_decode(raw, one.key, batch, wanted.edge))
    return tuple(found)


def _tries(deployment: str, stage: Asset, first: int, last: int) -> Steps[list[tuple[int, list[StoredObject]]]]:
    tries: dict[int, list[StoredObject]] = {}
    for folder in range(first // _FOLDER, last // _FOLDER + 1):
        for one in (yield ListKeys(f"{folder_of(deployment, stage)}{folder}/")):
            match = _KEY.fullmatch(one.key)
            if match is not None and first <= int(match[1]) <= last:
                tries.setdefault(int(match[1]), []).append(one)
    return sorted(tries.items())


def last_commit(deployment: str, stage: Asset) -> Steps[CommitRecord | None]:
    """Of everything that the stage has handed over, if its ledger is lost; None: it never did."""
    newest: tuple[tuple[int, ...], StoredObject] | None = None
    for one in (yield ListKeys(folder_of(deployment, stage))):
        match = _KEY.fullmatch(one.key)
        if match is not None:
            rank = tuple(int(number) for number in match.groups())
            newest = max(newest, (rank, one)) if newest else (rank, one)
    if newest is None:
        return None
    (batch, *_), found = newest
    raw = yield GetWhole(found.key, FRAME_BYTES_MAX)
    return _try_of(raw, found.key, batch).commit


def first_kept(deployment: str, stage: Asset) -> Steps[int | None]:
    """The oldest batch that the log still has; None: it has none."""
    matches = [_KEY.fullmatch(one.key) for one in (yield ListKeys(folder_of(deployment, stage)))]
    return min((int(match[1]) for match in matches if match is not None), default=None)


def _decode(raw: bytes, key: str, batch: int, edge: Edge) -> LoggedBatch:
    one = _try_of(raw, key, batch)
    try:
        rows = unpack_value(one.parts[edge], key)
    except (msgspec.DecodeError, KeyError) as error:
        raise heads.damaged(f"{key} in the log", repr(error)) from None
    return LoggedBatch(HeldBatch(one.batch, one.epoch, one.attempt, rows, digest_of(rows)), one.last)


def _try_of(raw: bytes, key: str, batch: int) -> LoggedTry:
    what = f"{key} in the log"
    body = heads.unpack(raw, MAGIC, FORMAT, what)
    try:
        one = msgspec.msgpack.decode(body, type=LoggedTry)
    except msgspec.DecodeError as error:
        raise heads.damaged(what, str(error)) from None
    if one.batch != batch:
        raise heads.damaged(what, f"It says that it is batch {one.batch}.")
    return one


def forget(deployment: str, stage: Asset, shards: tuple[Asset, ...], keep: int) -> Steps[int]:
    """Delete what no checkpoint that is kept needs; up to which batch. The last batch that all of them have stays: the
    commit of the one before it is in it. A checkpoint that only a pin keeps counts for nothing here: it is a savepoint,
    which needs no log, or is only read."""
    least: int | None = None
    for shard in shards:
        found = yield LookAt(keys.head_key(shard))
        entries = heads.needing_log(heads.decode(found[0], f"the head of {shard}"), keep) if found else ()
        if not entries:
            return -1
        mine = min(entry.batches.get(stage_edge(stage, shard), -1) for entry in entries)
        least = mine if least is None else min(least, mine)
    if least is None or least < 1:
        return -1
    doomed = []
    for one in (yield ListKeys(folder_of(deployment, stage))):
        match = _KEY.fullmatch(one.key)
        if match is not None and int(match[1]) < least:
            doomed.append(one.key)
    if doomed:
        yield DeleteKeys(tuple(doomed))
    return least


def ended(ticket: int, work: Callable[[], Done]) -> Done:
    """Whatever goes wrong is an answer: the core waits for one."""
    try:
        return work()
    except HoldfastError as error:
        return Done(ticket=ticket, ok=False, why=one_line(error).removeprefix("error: "))
    except Exception as error:
        return Done(ticket=ticket, ok=False, why=repr(error))


class BatchLog:
    """Writes the log of one life of a stage: on a thread of its own, since one batch waits for one write."""

    def __init__(self, door: StoreDoor, deployment: str, answer: Callable[[Done], None]) -> None:
        self._door = door
        self._deployment = deployment
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
            self._answer(ended(effect.ticket, lambda effect=effect: self._write(effect)))

    def _write(self, effect: LogBatch) -> Done:
        self._door.service().run(write(self._deployment, effect))
        return Done(ticket=effect.ticket, ok=True)

"""What a store knows of the run whose store it is, beside its checkpoints and logs.

    run/description                            the plan, the pipeline's file, settings: before anything counts
    run/record/<deployment>/<term>-<version>   the latest placement records: epochs, modes, skips
    run/began                                  it came from another run, and has taken over its sinks

With these, a run goes on whose directory is lost with the disks of all nodes. Spark's settings are not in it, and
neither are those of the store's client: they may hold keys. Only the names of the former are, so that whoever goes on
is told which to give again.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

import msgspec

from holdfast.checkpoint import head as heads
from holdfast.errors import ObjectExistsError
from holdfast.model.ids import Name
from holdfast.model.record import Record
from holdfast.store.plan import DeleteKeys, GetWhole, ListKeys, PutNew, Steps

DESCRIPTION, BEGAN = "run/description", "run/began"
RECORDS = "run/record/"
#: The last one counts; one more, since whoever reads may have listed it a moment before.
RECORDS_KEPT = 2
BYTES_MAX = 64 << 20
_MAGIC, _FORMAT = b"HFRD", 1
_RECORD = re.compile(r"([0-9]{1,18})-([0-9]{1,18})")


class RunDescription(msgspec.Struct, frozen=True, kw_only=True):
    deployment: str
    pipeline: str
    #: The user's file, and the directory that relative paths start in.
    source: str
    cwd: str
    names: tuple[Name, ...]
    plan: bytes
    file: bytes
    explain: str
    #: Of the nodes, without the store's and Spark's.
    settings: dict[str, Any]
    #: Names of Spark's settings.
    conf: tuple[str, ...]
    #: Where the run came from (`pipeline/origins.py`), as JSON; empty: from nothing.
    origins: bytes = b""


def put_description(given: RunDescription) -> Steps[None]:
    raw = heads.pack(msgspec.msgpack.encode(given), _MAGIC, _FORMAT)
    try:
        yield PutNew(DESCRIPTION, [raw], again=True)
    except ObjectExistsError:
        known = yield from read_description()
        if known is None or known.deployment != given.deployment:  # else a first try was done that nobody heard of
            raise


def read_description() -> Steps[RunDescription | None]:
    """None: no run has begun here."""
    found = yield ListKeys(DESCRIPTION)
    if not found:
        return None
    raw = yield GetWhole(DESCRIPTION, BYTES_MAX)
    return _decoded(raw, DESCRIPTION, RunDescription)


def drop_description() -> Steps[None]:
    """The run did not begin after all."""
    yield DeleteKeys((DESCRIPTION,))


def put_began() -> Steps[None]:
    """From now on nobody has to ask the store of the run that it came from, which may be deleted some day."""
    try:
        yield PutNew(BEGAN, [b"yes"], again=True)
    except ObjectExistsError:
        return


def has_begun() -> Steps[bool]:
    return any(one.key == BEGAN for one in (yield ListKeys(BEGAN)))


def drop_began() -> Steps[None]:
    yield DeleteKeys((BEGAN,))


def put_record(deployment: str, record: Record) -> Steps[None]:
    """Every node does this, so what is there already is the same."""
    raw = heads.pack(msgspec.msgpack.encode(record), _MAGIC, _FORMAT)
    try:
        yield PutNew(f"{_folder(deployment)}{record.term}-{record.version}", [raw], again=True)
    except ObjectExistsError:
        return
    older = (yield from _records(deployment))[:-RECORDS_KEPT]
    if older:
        yield DeleteKeys(tuple(key for _, key in older))


def last_record(deployment: str) -> Steps[Record | None]:
    found = yield from _records(deployment)
    if not found:
        return None
    _, key = found[-1]
    raw = yield GetWhole(key, BYTES_MAX)
    return _decoded(raw, key, Record)


def _folder(deployment: str) -> str:
    return f"{RECORDS}{quote(deployment, safe='')}/"


def _records(deployment: str) -> Steps[list[tuple[tuple[int, int], str]]]:
    listed = yield ListKeys(_folder(deployment))
    matches = ((_RECORD.fullmatch(one.key.removeprefix(_folder(deployment))), one.key) for one in listed)
    return sorted(((int(match[1]), int(match[2])), key) for match, key in matches if match is not None)


def _decoded(raw: bytes, what: str, kind: type[Any]) -> Any:
    body = heads.unpack(raw, _MAGIC, _FORMAT, what)
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise heads.damaged(what, str(error)) from None

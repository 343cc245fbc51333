"""Savepoints: a clean point of a run with a name, kept until somebody deletes it.

    savepoint/<name>/files    Spark's own checkpoints and the rows that were set aside, as a tar; written first
    savepoint/<name>/point    which checkpoint of every shard, the last commit of every stage, the plan; written last
    run/next                  the run that has gone on from one of them with the same sinks: there can be one, whichever
                              savepoint it took, and the run of the savepoints goes on no more

A savepoint counts when its `point` is there. The checkpoints that it names are pinned in the heads of their shards
before that, so retention passes them over, and nothing of a savepoint is ever written again. Since it is a clean point
(`clean.py`) it needs neither the log of the stages nor what output queues held.

Pins of a savepoint whose `point` was never written do no harm but take up room; `delete` removes them as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from holdfast.checkpoint import head as heads
from holdfast.checkpoint import keys
from holdfast.checkpoint.inspect import pin, unpin
from holdfast.errors import ConfigError, ObjectExistsError, ObjectMissingError
from holdfast.model.ids import Asset, Consumer, Edge
from holdfast.model.parts import CommitRecord
from holdfast.store.plan import DeleteKeys, GetWhole, ListKeys, PutNew, Steps
from holdfast.store.port import Buffer

SAVEPOINTS, NEXT = "savepoint/", "run/next"
#: A tar larger than this is not read into memory: a run that has set aside so much has another problem.
FILES_BYTES_MAX = 4 << 30
_POINT_BYTES_MAX = 64 << 20
_NAME_BYTES_MAX = 4096
_MAGIC, _FORMAT = b"HFSP", 1
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,63}")
_KEY = re.compile(r"savepoint/([a-zA-Z0-9][a-zA-Z0-9_.-]{0,63})/point")


class Savepoint(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    made_ms: int
    #: Whose it is; and where that run lived, for whoever wants to know whether it went on.
    deployment: str
    pipeline: str
    directory: str
    plan: bytes
    #: Checkpoint of each shard; one that is not named has consumed nothing.
    shards: dict[Asset, int]
    commits: dict[Asset, CommitRecord]
    #: Up to where each reader has read: (position, watermark) by edge.
    reads: dict[Consumer, dict[Edge, tuple[int, int]]]
    #: The last batch of each sink, by Spark's number.
    written: dict[Consumer, int]
    state_bytes: int = 0
    files_bytes: int = 0


def check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot be the name of a savepoint",
            hint="Letters, digits, dots, hyphens and underscores; at most 64, a letter or a digit first.",
        )


def pin_name(name: str) -> str:
    return f"{SAVEPOINTS}{name}"


def put(point: Savepoint, files: Iterable[Buffer]) -> Steps[None]:
    """Pin, write the files, write the point. `files` may be walked again."""
    check_name(point.name)
    yield from check_unused(point.name)
    for shard, sequence in sorted(point.shards.items()):
        yield from pin(shard, pin_name(point.name), sequence)
    try:
        yield PutNew(_key(point.name, "files"), files, again=True)
        raw = heads.pack(msgspec.msgpack.encode(point), _MAGIC, _FORMAT)
        yield PutNew(_key(point.name, "point"), [raw], again=True)
    except ObjectExistsError:
        raise _exists(point.name) from None


def check_unused(name: str) -> Steps[None]:
    """Not there, as a whole. What is left of one that was never completed goes."""
    names = {one.key for one in (yield ListKeys(f"{SAVEPOINTS}{name}/"))}
    if _key(name, "point") in names:
        raise _exists(name)
    if names:
        yield DeleteKeys(tuple(sorted(names)))


def _exists(name: str) -> ConfigError:
    return ConfigError(
        f"there is a savepoint {name!r} already",
        hint=f"Choose another name, or `holdfast savepoint delete {name}` first.",
    )


def names() -> Steps[list[str]]:
    found = (_KEY.fullmatch(one.key) for one in (yield ListKeys(SAVEPOINTS)))
    return sorted(match[1] for match in found if match is not None)


def read(name: str) -> Steps[Savepoint]:
    check_name(name)
    try:
        raw = yield GetWhole(_key(name, "point"), _POINT_BYTES_MAX)
    except ObjectMissingError:
        there = ", ".join((yield from names())) or "none"
        raise ConfigError(f"the store has no savepoint {name!r}", hint=f"There are: {there}.") from None
    what = f"savepoint {name}"
    body = heads.unpack(raw, _MAGIC, _FORMAT, what)
    try:
        return msgspec.msgpack.decode(body, type=Savepoint)
    except msgspec.DecodeError as error:
        raise heads.damaged(what, str(error)) from None


def read_files(name: str) -> Steps[bytes]:
    return (yield GetWhole(_key(name, "files"), FILES_BYTES_MAX))


def go_on_from(deployment: str) -> Steps[None]:
    """This run goes on from a savepoint in this store, and no other can: two would write to the same sinks."""
    try:
        yield PutNew(NEXT, [deployment.encode()], again=True)
    except ObjectExistsError:
        other = yield from successor()
        if other == deployment:
            return  # a first try was done that nobody heard of
        raise ConfigError(
            f"{other} has gone on from a savepoint of this run",
            detail="What came after the savepoint is in its sinks, and would be written once more.",
            hint="Make a savepoint of that run, and go on from there; or give the sinks other names and paths.",
        ) from None


def successor() -> Steps[str]:
    """The run that has gone on from a savepoint in this store, with its sinks; "": none has."""
    try:
        return (yield GetWhole(NEXT, _NAME_BYTES_MAX)).decode()
    except ObjectMissingError:
        return ""


def let_go(deployment: str) -> Steps[None]:
    """This run wanted to go on, and did not start."""
    if (yield from successor()) == deployment:
        yield DeleteKeys((NEXT,))


def delete(name: str) -> Steps[bool]:
    """Whether there was anything of it. The point goes first: what is half deleted must not look whole."""
    check_name(name)
    there = sorted((one.key for one in (yield ListKeys(f"{SAVEPOINTS}{name}/"))), reverse=True)
    for key in there:
        yield DeleteKeys((key,))
    listed = yield ListKeys(keys.HEADS)
    pinned = False
    for shard in sorted({keys.shard_of_head(one.key) for one in listed}):
        pinned = (yield from unpin(shard, pin_name(name))) or pinned
    return bool(there) or pinned


def _key(name: str, part: str) -> str:
    return f"{SAVEPOINTS}{name}/{part}"

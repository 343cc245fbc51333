"""Files of a run that its store keeps where it is not a folder: what Spark and the stages write, before it counts.

    run/files/<deployment>/<path in the run's directory>      lists of files that sources have read, rows set aside
    run/plans/<deployment>/<sink>/<batch>-<committed + 1>     what a sink is about to write, and what it has written

A file of the first kind is there before the batch counts that needs it. What a source stage's own checkpoint has beside
that is in its ledger, which is in the log.

A plan of a sink is there before the sink writes anything of it. Its sink may have written that batch or not: it is run
again under the same number, from the same rows, and whoever writes exactly once goes by that number. A commit is there
before the nodes hear that its rows are not needed any more: what would be run again can be had again. Both go in one
object, since a sink's next plan usually comes with the commit of the last.
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

import msgspec

from holdfast.checkpoint import head as heads
from holdfast.errors import ObjectExistsError, StateError
from holdfast.model.ids import Asset
from holdfast.model.parts import SinkPlan
from holdfast.store.plan import DeleteKeys, GetWhole, ListKeys, PutNew, Steps

FILES, PLANS = "run/files/", "run/plans/"
FILE_BYTES_MAX = 1 << 30
PLAN_BYTES_MAX = 64 << 20
#: The last one counts; one more, for whoever has listed it a moment before. Older ones go now and then.
PLANS_KEPT, TIDY_EVERY = 2, 8
_MAGIC, _FORMAT = b"HFSP", 1
_PLAN = re.compile(r"([0-9]{1,18})-([0-9]{1,18})")


def files_folder(deployment: str) -> str:
    return f"{FILES}{_part(deployment)}/"


def file_key(deployment: str, path: str) -> str:
    return files_folder(deployment) + "/".join(map(_part, path.split("/")))


def path_of(deployment: str, key: str) -> str:
    return "/".join(map(unquote, key.removeprefix(files_folder(deployment)).split("/")))


def _part(name: str) -> str:
    """A part of a key must not begin with a dot."""
    quoted = quote(name, safe="")
    return f"%2E{quoted[1:]}" if quoted.startswith(".") else quoted


def put_file(deployment: str, path: str, raw: bytes) -> Steps[None]:
    """Keep a file. One that is there with other bytes is replaced: it is of a kind that may change."""
    key = file_key(deployment, path)
    try:
        yield PutNew(key, [raw], again=True)
    except ObjectExistsError:
        listed = [one for one in (yield ListKeys(key)) if one.key == key]
        if listed and listed[0].nbytes == len(raw) and (yield GetWhole(key, len(raw))) == raw:
            return
        yield DeleteKeys((key,))
        yield PutNew(key, [raw], again=True)


def drop_files(deployment: str, paths: tuple[str, ...]) -> Steps[None]:
    yield DeleteKeys(tuple(file_key(deployment, path) for path in paths))


def list_files(deployment: str, folder: str = "") -> Steps[dict[str, int]]:
    """Path of every file that is kept, and its length."""
    found = yield ListKeys(file_key(deployment, folder) + "/" if folder else files_folder(deployment))
    return {path_of(deployment, one.key): one.nbytes for one in found}


def get_file(deployment: str, path: str, nbytes: int) -> Steps[bytes]:
    return (yield GetWhole(file_key(deployment, path), nbytes))


# --- sinks


def _plans_folder(deployment: str, sink: Asset) -> str:
    return f"{PLANS}{_part(deployment)}/{_part(sink)}/"


def put_plan(deployment: str, sink: Asset, plan: SinkPlan) -> Steps[None]:
    """Of two that plan the same batch differently, the second is refused: the first may have written it."""
    key = f"{_plans_folder(deployment, sink)}{plan.batch}-{plan.committed + 1}"
    raw = heads.pack(msgspec.msgpack.encode(plan), _MAGIC, _FORMAT)
    try:
        yield PutNew(key, [raw], again=True)
    except ObjectExistsError:
        known = _decoded((yield GetWhole(key, PLAN_BYTES_MAX)), key)
        if known.plans.get(plan.batch) != plan.plans.get(plan.batch):
            raise StateError(
                f"{sink}: batch {plan.batch} was planned differently before",
                detail=f"{key} in the store has another plan of it.",
                hint="Two runs use one store, or files of Spark's checkpoint were changed by hand.",
            ) from None
    if plan.batch % TIDY_EVERY == 0:
        older = (yield from _listed(deployment, sink))[:-PLANS_KEPT]
        if older:
            yield DeleteKeys(tuple(name for _, name in older))


def last_plan(deployment: str, sink: Asset) -> Steps[SinkPlan | None]:
    """What a sink has to go on from; None: it never planned anything."""
    found = yield from _listed(deployment, sink)
    if not found:
        return None
    key = found[-1][1]
    return _decoded((yield GetWhole(key, PLAN_BYTES_MAX)), key)


def _listed(deployment: str, sink: Asset) -> Steps[list[tuple[tuple[int, int], str]]]:
    folder = _plans_folder(deployment, sink)
    matches = ((_PLAN.fullmatch(one.key.removeprefix(folder)), one.key) for one in (yield ListKeys(folder)))
    return sorted(((int(match[1]), int(match[2])), key) for match, key in matches if match is not None)


def _decoded(raw: bytes, key: str) -> SinkPlan:
    body = heads.unpack(raw, _MAGIC, _FORMAT, key)
    try:
        return msgspec.msgpack.decode(body, type=SinkPlan)
    except msgspec.DecodeError as error:
        raise heads.damaged(key, str(error)) from None

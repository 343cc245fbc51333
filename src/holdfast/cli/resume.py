"""A run in its store: what `run` leaves there, and the directory of a run made again from it.

`holdfast run DIRECTORY` goes on with what the nodes have on their disks; `--resume URL` is for when those are lost. The
directory is made as it would have been found: the plan, the pipeline's file, and for every node a journal with the
placement record and the ledgers. From there on it is a restart like any other. Of the record the store has the last one
that a node could write there, so epochs are taken from wherever a later one may be known, and raised: whoever acted
under an earlier one cannot claim anything any more.

Spark's own checkpoints, and rows that were set aside, are files. Where the store is a folder, they are in it from the
beginning, and the run's directory has links to them. In any other store a copy of what is needed of them is put before
it counts (`runtime/stable/kept.py`), and brought back here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from msgspec.structs import replace

from holdfast.checkpoint import savepoint as savepoints
from holdfast.checkpoint.keys import HEADS, shard_of_head
from holdfast.checkpoint.look import heads_of
from holdfast.errors import ConfigError
from holdfast.model import found
from holdfast.model.config import Config
from holdfast.model.ids import Asset, Name, ledger_of, name_of
from holdfast.model.parts import GAPS, CommitRecord, LedgerPage
from holdfast.model.plan import Plan
from holdfast.model.protection import MODES
from holdfast.model.record import Place, Record
from holdfast.pipeline.origins import FROM, read_origins
from holdfast.runtime.config import make_config, read_plan
from holdfast.runtime.disk.journal import Journal, write_whole
from holdfast.runtime.node.past import Past
from holdfast.runtime.stable import batches, description, kept
from holdfast.runtime.stable.description import RunDescription
from holdfast.runtime.stable.door import StoreDoor
from holdfast.spark.checkpoint import make_again
from holdfast.store.plan import ListKeys, Steps
from holdfast.store.service import IoService
from holdfast.store.url import is_folder

from .runs import RunFile

#: What of a run's directory is files of Spark's, or rows.
FILES = ("checkpoints", "late", "bad", "gaps", "dead")
#: So many epochs of an asset may have been decided, at most, of which the store has not heard.
EPOCHS_UNKNOWN = 16
#: Settings that may hold keys: not written to the store.
_PRIVATE = ("conf", "store", "store_conf")


def open_door(settings: dict[str, Any], scratch: Path) -> StoreDoor:
    return StoreDoor.of(settings["store"], settings.get("store_conf", {}), scratch / "store.log")


@contextmanager
def opened_store(run: RunFile) -> Iterator[IoService]:
    """The store of a run."""
    door = open_door(run.settings, run.path)
    try:
        yield door.service()
    finally:
        door.close()


# --- a new run


def check_unused(settings: dict[str, Any], scratch: Path) -> None:
    """A new run needs a store, or a path in it, of its own: what another one has left there is not to be mixed up."""
    known, shards = _run(settings, scratch, _used_by())
    if known is None and not shards:
        return
    goes_on = "`holdfast run DIRECTORY` goes on with the other one; if its directory is lost, add --resume URL."
    raise ConfigError(
        f"{settings['store']} has checkpoints of another run",
        detail=f"It is the store of {known.deployment}." if known else f"There are some of {sorted(shards)[0]}.",
        hint=f"Give this run a path of its own. {goes_on if known else 'They are left of one that failed to start.'}",
    )


def check_not_followed(settings: dict[str, Any], scratch: Path) -> None:
    """A run from which another one has gone on has no sinks any more: the other one writes to them."""
    other = _run(settings, scratch, savepoints.successor())
    if other:
        raise ConfigError(
            f"{other} has gone on from a savepoint of this run",
            detail="Its sinks are the sinks of this run; both would write to them.",
            hint="`holdfast run` with the directory of that one goes on with it.",
        )


def check_began(settings: dict[str, Any], directory: Path, deployment: str) -> None:
    """A run that takes over the sinks of another one may do so only once the store says that it has gone on from it:
    the command that was to start it may have been killed before, and then the other run may have gone on."""
    origins = read_origins(directory)
    if origins is None or not origins.sinks or _run(settings, directory, description.has_begun()):
        return
    gone_on = _run({**settings, "store": origins.store}, directory, savepoints.successor())
    if gone_on != deployment:
        raise ConfigError(
            f"{deployment} never began: the command that was to start it was ended before",
            detail=f"The sinks {', '.join(origins.sinks)} are still those of {gone_on or origins.deployment}.",
            hint=f"`holdfast run {origins.directory}` goes on with that one, and `holdfast upgrade` starts over."
            if not gone_on
            else "Remove this directory.",
        )
    mark_begun(settings, directory)


def mark_begun(settings: dict[str, Any], directory: Path) -> None:
    """It has taken over the sinks, and knows that by itself from now on."""
    _run(settings, directory, description.put_began())


def _used_by() -> Steps[tuple[RunDescription | None, set[Asset]]]:
    known = yield from description.read_description()
    listed = yield ListKeys(HEADS)
    return known, {shard_of_head(one.key) for one in listed}


def describe(directory: Path, plan: Plan, file: Path, cwd: str, names: list[Name], settings: dict[str, Any]) -> None:
    """Leave in the store what a run goes on from if its directory is lost; before anything of it counts."""
    given = RunDescription(
        deployment=plan.query,
        pipeline=plan.pipeline,
        source=str(file.resolve()),
        cwd=cwd,
        names=tuple(names),
        plan=(directory / "plan.json").read_bytes(),
        file=file.read_bytes(),
        explain=(directory / "explain.txt").read_text(),
        settings={key: value for key, value in settings.items() if key not in _PRIVATE},
        conf=tuple(sorted(settings["conf"])),
        origins=(directory / FROM).read_bytes() if (directory / FROM).exists() else b"",
    )
    _run(settings, directory, description.put_description(given))


def withdraw(settings: dict[str, Any], directory: Path) -> None:
    """A start that failed leaves nothing that a later one would take for a run."""
    _run(settings, directory, description.drop_description())
    _run(settings, directory, description.drop_began())


def _run(settings: dict[str, Any], scratch: Path, plan: Steps[Any]) -> Any:
    door = open_door(settings, scratch)
    try:
        return door.service().run(plan)
    finally:
        door.close()


def link_files(directory: Path, store: str, deployment: str) -> None:
    """Where the store is a folder, files that must outlive the run's directory are in it."""
    if not is_folder(store):
        return
    parts = urlsplit(store)
    for name in FILES:
        kept = Path(unquote(parts.path)) / "run" / "files" / deployment / name
        try:
            _make_private(kept)
            os.symlink(kept, directory / name)
        except OSError as error:
            raise ConfigError(f"{kept} cannot be used", detail=str(error), hint="Give another --store.") from None


def _make_private(folder: Path) -> None:
    """Rows are in it: like the run's directory it is nobody else's."""
    for path in (*reversed(folder.parents), folder):
        if not path.exists():
            path.mkdir(mode=0o700)


# --- one whose directory is lost


def rebuild(
    directory: Path, given: dict[str, Any], tell: Callable[[str], None]
) -> tuple[RunDescription, Plan, dict[str, Any]]:
    """Make the run's directory again from its store; what that knows, and the settings of the nodes. Of those `given`
    has the ones that a store does not: `_PRIVATE`."""
    settings = {key: given[key] for key in _PRIVATE if key in given}
    tell(f"reading what {settings['store']} knows of its run")
    door = open_door(settings, directory)
    try:
        service = door.service()
        known = service.run(description.read_description())
        if known is None:
            raise ConfigError(
                f"{settings['store']} is not the store of a run",
                detail=f"It has no {description.DESCRIPTION}.",
                hint="Give the URL that the run was started with.",
            )
        _check(known, settings)
        settings = {**known.settings, **settings}
        plan = _files_of(directory, known, settings["store"])
        check_kept(plan, settings, has_disks=False)
        if not is_folder(settings["store"]):
            _bring_files(directory, plan, service)
        commits = service.run(_commits(plan))
        check_not_followed(settings, directory)
        check_began(settings, directory, plan.query)
        epochs = {shard: head.epoch for shard, head in service.run(heads_of(plan.topology.shard)).items()}
        record = service.run(description.last_record(plan.query)) or _first_record(plan, known.names, settings)
    finally:
        door.close()
    epochs |= {stage: commit.epoch for stage, commit in commits.items()}
    _journals(directory, plan, raised(record, known.names, epochs), commits)
    return known, plan, settings


def _bring_files(directory: Path, plan: Plan, service: IoService) -> None:
    """What the stages had put into the store of their files, and the checkpoints of the sinks."""
    for path, nbytes in service.run(kept.list_files(plan.query)).items():
        file = directory / path
        if not file.resolve().is_relative_to(directory.resolve()):
            raise ConfigError(f"the store has a file that is none of this run: {path!r}", hint="Who put it there?")
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, service.run(kept.get_file(plan.query, path, nbytes)))
    for stage in plan.stages:
        found = service.run(kept.last_plan(plan.query, stage.id)) if stage.kind == "sink" else None
        if found is not None:
            make_again(directory / "checkpoints" / stage.id, directory / GAPS / stage.id, found)


def unstored(plan: Plan, settings: dict[str, Any]) -> list[str]:
    """Operators of which nothing is in the store."""
    protections = plan.protections(_core(settings).protection)
    return sorted(name for name, protection in protections.items() if not protection.is_stored)


def check_kept(plan: Plan, settings: dict[str, Any], *, has_disks: bool) -> None:
    """Everything was killed: whatever promises to keep its state must have it in the store, and without the ledgers'
    disks every stage needs its log there."""
    for name, protection in plan.protections(_core(settings).protection).items():
        if not protection.is_stored and (MODES[protection.mode].has_backup or not has_disks):
            raise ConfigError(
                f"{plan.pipeline} cannot go on: the state of {name} is lost",
                detail=f'It says checkpoint="none" in mode {protection.mode}, so nothing of it is in the store.',
                hint='--fresh starts anew. With checkpoint="auto" it could have gone on.',
            )


def _core(settings: dict[str, Any]) -> Config:
    endpoints = dict.fromkeys(["n0", *settings.get("domains", {})], "grpc://127.0.0.1:1")
    given = {**settings, "name": "n0", "dir": ".", "endpoints": endpoints}
    return make_config(given, "--resume").core()


def _first_record(plan: Plan, names: tuple[Name, ...], settings: dict[str, Any]) -> Record:
    """As the nodes made it, if none of them came to write a later one."""
    return plan.first_record(names, _core(settings))


def first_journals(
    directory: Path, plan: Plan, names: tuple[Name, ...], settings: dict[str, Any], commits: dict[Asset, CommitRecord]
) -> None:
    """Of a run that starts from a savepoint: its nodes find ledgers, and shards that are to be read from the store."""
    epochs = {stage: commit.epoch for stage, commit in commits.items()}
    _journals(directory, plan, raised(_first_record(plan, names, settings), names, epochs), commits)


def _commits(plan: Plan) -> Steps[dict[Asset, CommitRecord]]:
    """The last one of every stage that has handed over something."""
    commits: dict[Asset, CommitRecord] = {}
    for stage in plan.topology.stages:
        commit = (yield from batches.last_commit(plan.query, stage.id)) if stage.shards else None
        if commit is not None:
            commits[stage.id] = commit
    return commits


def _check(known: RunDescription, settings: dict[str, Any]) -> None:
    """Nothing is made before this holds."""
    if not Path(known.cwd).is_dir():
        raise ConfigError(
            f"{known.cwd} is not there",
            detail=f"{known.pipeline} was started in it: relative paths of its sources and sinks begin there.",
            hint="Make that directory. If the pipeline has relative paths, its files must be in it as they were.",
        )
    missing = [key for key in known.conf if key not in settings["conf"]]
    if missing:
        raise ConfigError(
            f"{known.pipeline} had settings of Spark that are not in its store",
            detail=f"They are {', '.join(missing)}. Their values may be keys, so they are not kept there.",
            hint="Give them again, each as --conf KEY=VALUE.",
        )


def _files_of(directory: Path, known: RunDescription, store: str) -> Plan:
    write_whole(directory / "plan.json", known.plan)
    write_whole(directory / "pipeline.py", known.file)
    write_whole(directory / "explain.txt", known.explain.encode())
    if known.origins:
        write_whole(directory / FROM, known.origins)
    link_files(directory, store, known.deployment)
    return read_plan(directory / "plan.json")


def raised(record: Record, names: tuple[Name, ...], epochs: dict[Asset, int]) -> Record:
    """The record that all nodes find: everybody's next life is a new one, and every epoch a later one."""
    version = record.version + 1

    def place(asset: Asset, known: Place) -> Place:
        epoch = max(known.epoch, epochs.get(asset, 0)) + EPOCHS_UNKNOWN
        return replace(known, epoch=epoch, since=version, joining=None, moving=False)

    members = {name: record.members.get(name, 1) for name in names}
    places = {asset: place(asset, known) for asset, known in record.places.items()}
    return replace(record, version=version, term=record.term + 1, members=members, places=places, draining=())


def _journals(directory: Path, plan: Plan, record: Record, commits: dict[Asset, CommitRecord]) -> None:
    for name, life in record.members.items():
        home = directory / "nodes" / name
        home.mkdir(parents=True, exist_ok=True)
        Past(name, home).belongs_to(plan)
        entries = [found.life_entry(life), found.vote_entry(record.term, None), found.record_entry(record)]
        for stage, commit in commits.items():
            place = record.places[ledger_of(stage)]
            if name in {name_of(seat) for seat in place.holders}:
                page = LedgerPage(query=commit.query, fence=commit.epoch, commit=commit)
                entries.append(found.ledger_entry(ledger_of(stage), place.since, page))
        journal = Journal(home / "journal")
        journal.write(entries)
        journal.close()

"""A run that starts from a savepoint of another one: `holdfast run new.py --from NAME`, and `holdfast upgrade`.

The new run is a run of its own: another deployment, another directory, and a place of its own in the store
(`generation/<deployment>` beside the first one's keys). It takes over what the savepoint has: the state (`seed.py`),
the ledgers, Spark's own checkpoints, the rows that were set aside. What the old run has is read and stays as it is.

Everything that can be refused is refused before anything is written.
"""

from __future__ import annotations

import io
import os
import re
import tarfile
import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from holdfast.checkpoint import savepoint as savepoints
from holdfast.checkpoint.savepoint import Savepoint
from holdfast.errors import ConfigError, HoldfastError
from holdfast.model.ids import Asset, Name, asset_id
from holdfast.model.parts import GAPS
from holdfast.model.plan import Plan
from holdfast.pipeline.origins import FROM, Origins, read_origins
from holdfast.pipeline.upgrades import Matching, match
from holdfast.runtime.config import make_config
from holdfast.runtime.disk.journal import write_whole
from holdfast.runtime.stable import batches, kept
from holdfast.runtime.stable.door import StoreDoor
from holdfast.runtime.stable.mirror import FolderMirror
from holdfast.runtime.stable.seed import Origin, Seeding, carried_plan
from holdfast.spark import checkpoint as spark_checkpoint
from holdfast.spark.reshape import reshape_aside
from holdfast.store import IoService
from holdfast.store.url import is_folder

from .home import RunHome
from .planning import check_file, plan_file
from .resume import FILES, describe, first_journals, link_files, mark_begun, open_door, withdraw
from .runs import RUNS, read_run
from .start import LocalRun, RunOptions, check_model, check_options, node_settings, planned_with, restart_nodes, warm

Tell = Callable[[str], None]
_GENERATION = "/generation/"

AllowNewOption = Annotated[
    bool, typer.Option("--allow-new", help="Operators and sources that the savepoint does not have start empty.")
]
DropOption = Annotated[
    bool, typer.Option("--drop", help="Operators, aggregates, sources and sinks that are gone are left behind.")
]
DefaultOption = Annotated[
    list[str] | None,
    typer.Option("--default", metavar="OPERATOR.AGGREGATE=VALUE", help="What a new aggregate begins with."),
]


@dataclass(frozen=True)
class Changes:
    """What is allowed to differ."""

    allow_new: bool = False
    drop: bool = False
    defaults: Mapping[tuple[str, str], str] = field(default_factory=dict)

    @classmethod
    def of(cls, allow_new: bool, drop: bool, defaults: list[str] | None) -> Changes:
        return cls(allow_new, drop, dict(_default(text) for text in defaults or ()))

    def match(self, old: Plan, new: Plan) -> Matching:
        return match(old, new, allow_new=self.allow_new, drop=self.drop, defaults=self.defaults)

    def of_operators(self, matching: Matching) -> dict[str, dict[str, str]]:
        return {name: {agg: self.defaults[name, agg] for agg in added} for name, added in matching.widened.items()}


def _default(text: str) -> tuple[tuple[str, str], str]:
    found = re.fullmatch(r"([^.=]+)\.([^.=]+)=(.*)", text)
    if found is None:
        raise ConfigError(f"--default {text!r} cannot be read", hint="Write --default talkers.biggest=0 (or =null).")
    return (found[1], found[2]), found[3]


# --- run --from


def start_from(
    file: Path,
    name: str,
    options: RunOptions,
    changes: Changes,
    tell: Tell = lambda line: None,
    told: threading.Event | None = None,
) -> LocalRun:
    """A new run of this file, from a savepoint in the store that the options name."""
    check_options(options)
    check_file(file)
    savepoints.check_name(name)
    settings = node_settings(options)
    if not settings.get("store"):
        raise ConfigError("--from needs --store", detail="Savepoints are in the store of the run that made them.")
    check_model(options, settings)
    home = RunHome(options.directory or RUNS / file.stem, file, fresh=options.fresh)
    upgrade = Upgrade(file, home, settings, changes, tell, told)
    door = open_door(settings, home.path)
    try:
        tell(f"reading savepoint {name} in {settings['store']}")
        service = door.service()
        point = service.run(savepoints.read(name))
        _check_ended(point)
        upgrade.prepare(msgspec.json.decode(point.plan, type=Plan))
        return upgrade.start(service, point, [Name(f"n{i}") for i in range(options.nodes)], options.restart_s)
    except BaseException:
        upgrade.undo()
        raise
    finally:
        door.close()


def _check_ended(point: Savepoint) -> None:
    """Two runs of one pipeline would write to the same sinks."""
    try:
        run = read_run(Path(point.directory))
        there = run.deployment == point.deployment and bool(run.ask_all("ping", timeout_s=2.0))
    except ConfigError:
        return  # its directory is gone, or is another run's by now
    if there:
        raise ConfigError(
            f"{run.pipeline} is still running in {run.dir}",
            hint=f"`holdfast stop {run.dir}` first; or `holdfast upgrade {run.dir} FILE` does both.",
        )


class Upgrade:
    """The steps of it, for a directory that is locked, and cleared (`--fresh`) when nothing more can be refused."""

    def __init__(
        self, file: Path, home: RunHome, settings: dict[str, Any], changes: Changes, tell: Tell,
        told: threading.Event | None,
    ) -> None:  # fmt: skip
        self._file = file
        self._home = home
        self._old_store = settings["store"]
        self._changes = changes
        self._tell = tell
        self._told = told
        self._query = f"{file.stem}-{uuid.uuid4().hex[:12]}"
        #: The new run may have written something, so it is the one that goes on.
        self.has_begun = False
        self._settings = {**settings, "store": new_store(self._old_store, self._query)}

    def prepare(self, old: Plan) -> None:
        """Plan, and find out whether it can go on. Nothing of the old run is touched."""
        self._old = old
        self._tell(f"planning {self._file}")
        self._plan, self._warnings = plan_file(
            self._file, self._home.draft, query=self._query, told=self._told, **planned_with(self._settings)
        )
        self._matching = self._changes.match(old, self._plan)
        for text in self._matching.texts(self._plan):
            self._tell(text)
        write_whole(self._home.draft / "pipeline.py", self._file.read_bytes())
        warm(self._home.draft, self._told)

    def start(self, service: IoService, point: Savepoint, names: list[Name], restart_s: float | None) -> LocalRun:
        """Called when the old run has ended. `service` is of the old run's store."""
        directory, plan, matching = self._home.path, self._plan, self._matching
        kept_sinks = [name for name in matching.stages if plan.stage(name).kind == "sink"]
        if kept_sinks:
            check_not_gone_on(service, point, self._old, kept_sinks)
        link_files(self._home.draft, self._settings["store"], plan.query)
        self._home.begin()
        unpack(service.run(savepoints.read_files(point.name)), directory)
        move_checkpoints(directory / "checkpoints", point, self._old, plan, matching)
        for name in matching.stages:
            reshape_aside(directory, self._old.stage(name), plan.stage(name))
        self._leave_origins(point)
        door = open_door(self._settings, directory)
        try:
            defaults = self._changes.of_operators(matching)
            memory = make_config({**self._settings, **_ANY_NODE}, "--from").memory()
            seeding = Seeding(Origin(service, point, self._old), door.service(), plan, memory, defaults)
            seeding.run(self._tell)
            if not is_folder(self._settings["store"]):
                keep_files(door, directory, plan)
        finally:
            door.close()
        first_journals(directory, plan, tuple(names), self._settings, seeding.commits)
        describe(directory, plan, self._file, os.getcwd(), names, self._settings)

        def claim() -> None:
            self.has_begun = True  # unless it turns out that it has done nothing yet
            if kept_sinks:
                service.run(savepoints.go_on_from(plan.query))
                mark_begun(self._settings, directory)

        try:
            started = restart_nodes(
                self._home, plan, self._file, os.getcwd(), [str(name) for name in names], self._settings, restart_s,
                self._tell, self._told, claim,
            )  # fmt: skip
        except BaseException:
            self._take_back(service, point, kept_sinks)
            raise
        started.warnings += self._warnings
        return started

    def _take_back(self, service: IoService, point: Savepoint, sinks: list[Asset]) -> None:
        """The new run did not start, and its nodes are gone. If it has done nothing, everything is as if it had never
        been; else it stays the one that goes on, since its sinks may have what the old run would write again."""
        with suppress(HoldfastError):
            door = open_door(self._settings, self._home.path)
            try:
                if self.has_begun and came_after(door.service(), point, self._plan, self._home.path, sinks):
                    return
            finally:
                door.close()
            withdraw(self._settings, self._home.path)
            if self.has_begun and sinks:
                service.run(savepoints.let_go(self._query))
            self.has_begun = False

    def undo(self) -> None:
        """After an error: what was made goes, unless the new run has begun to work."""
        if not self.has_begun:
            self._home.undo()
            return
        self._home.release()
        self._tell(f"the new run has begun: `holdfast run {self._home.path}` goes on with it")

    def _leave_origins(self, point: Savepoint) -> None:
        """What `verify` has to know: of this upgrade, and of those before it."""
        new, matching = self._plan, self._matching
        sinks = [name for name in matching.new_stages if new.stage(name).kind == "sink"]
        changed = dict.fromkeys((*matching.new, *sinks), f"it was new at savepoint {point.name}")
        changed |= dict.fromkeys(matching.widened, f"its aggregates were changed at savepoint {point.name}")
        earlier = read_origins(self._home.path)  # it came with the savepoint's files
        origins = Origins(
            savepoint=point.name,
            deployment=point.deployment,
            directory=point.directory,
            store=self._old_store,
            sinks=tuple(name for name in matching.stages if new.stage(name).kind == "sink"),
            changed={**(earlier.changed if earlier is not None else {}), **changed},
        )
        write_whole(self._home.path / FROM, msgspec.json.encode(origins))


_ANY_NODE = {"name": "n0", "dir": ".", "endpoints": {"n0": "grpc://127.0.0.1:1"}}


def new_store(store: str, deployment: str) -> str:
    """A place of its own for a new run, in the store of the old one; all of them are beside each other."""
    return store.partition(_GENERATION)[0].rstrip("/") + _GENERATION + deployment


def check_not_gone_on(service: IoService, point: Savepoint, old: Plan, sinks: list[Asset]) -> None:
    """Sinks that go on must have nothing that came after the savepoint: it would be written once more, or skipped."""
    why = came_after(service, point, old, Path(point.directory), sinks)
    if why:
        raise ConfigError(
            f"the run of savepoint {point.name!r} went on after it",
            detail=f"{why} {', '.join(sinks)} would get those rows once more.",
            hint="Go on with that run, and `holdfast upgrade` it; or give the sinks other names and paths (--drop).",
        )


def came_after(service: IoService, point: Savepoint, plan: Plan, directory: Path, sinks: list[Asset]) -> str:
    """What a run has done since a savepoint, its own or the one that it started from; "": nothing."""
    for stage in plan.topology.stages:
        last = service.run(batches.last_commit(plan.query, stage.id)) if stage.shards else None
        known = point.commits.get(stage.id)
        if last is not None and last.batch > (known.batch if known is not None else -1):
            return f"{stage.id} has handed over batch {last.batch}, which is not in the savepoint."
    for sink in sinks:
        folder, written = directory / "checkpoints" / sink, point.written.get(sink, -1)
        planned = spark_checkpoint.newest_planned(folder) if folder.is_dir() else written
        if planned != written:
            return f"{sink} has begun batch {planned}, which is not in the savepoint."
    return ""


# --- files


def unpack(raw: bytes, directory: Path) -> None:
    """What of the old run is files. Folders may be links into a store: what is in them is put there."""
    with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
        for member in tar.getmembers():
            path = directory / member.name
            if ".." in Path(member.name).parts or member.name.startswith("/"):
                raise ConfigError("a savepoint has a file outside of its run", detail=member.name)
            if member.isdir():
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
            elif member.isfile():
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                content = tar.extractfile(member)
                write_whole(path, content.read() if content is not None else b"")


def keep_files(door: StoreDoor, directory: Path, plan: Plan) -> None:
    """What stages keep in a store that is not a folder (`runtime/stable/kept.py`), before the first of them starts.
    Else a new run that loses its disks at once would not know which files were read, nor where its sinks stand."""
    lists = [f"checkpoints/{stage.id}/sources" for stage in plan.stages if stage.kind != "sink"]
    others = [name for name in FILES if name != "checkpoints"]
    FolderMirror(door, plan.query, directory, (*lists, *others)).sync()
    for stage in plan.stages:
        folder = directory / "checkpoints" / stage.id
        known = spark_checkpoint.sink_plan(folder, directory / GAPS / stage.id) if stage.kind == "sink" else None
        if known is not None:
            door.service().run(kept.put_plan(plan.query, stage.id, known))


def move_checkpoints(folder: Path, point: Savepoint, old: Plan, plan: Plan, matching: Matching) -> None:
    """Spark's checkpoints of stages that go on become those of the new run's; the others go."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.name not in matching.stages:
            spark_checkpoint.forget(path)
            continue
        before, stage = old.stage(asset_id(path.name)), plan.stage(asset_id(path.name))
        spark_checkpoint.hand_on(path, stage.id, plan.query)
        commit = point.commits.get(stage.id)
        last = point.written.get(stage.id, -1) if stage.kind == "sink" else commit.offsets[0] if commit else -1
        text = commit.plan if commit is not None else ""  # in real time it is nowhere else
        text = text or (spark_checkpoint.plan_of(path, last) if last >= 0 else "")
        carried = carried_plan(text, before, stage, plan)
        if stage.kind != "source" or set(before.outlets) != set(stage.outlets):
            spark_checkpoint.replan(path, last, carried)

"""Start a run on this machine: a new one from a file, or one that goes on, from its directory or from its store alone.

The parts do the work: `planning.py` plans in a process of its own, `runtime/client/local.py` keeps the node processes
alive, `resume.py` knows what a store has of a run. Here is the order, and that a start which fails leaves nothing.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import threading
import tomllib
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from holdfast.errors import ConfigError, HoldfastError
from holdfast.model.ids import Name
from holdfast.model.plan import Plan
from holdfast.pipeline.explain import counted
from holdfast.runtime.client.local import OWN_SETTINGS, LocalNodes
from holdfast.runtime.config import make_config, read_plan
from holdfast.runtime.disk.journal import write_whole
from holdfast.runtime.stable.peace import load_model
from holdfast.spark.session import is_here
from holdfast.store.url import can_place

from .alone import run_alone
from .control import has_finished, unfinished
from .home import RunHome
from .planning import check_file, plan_file
from .resume import check_began, check_kept, check_not_followed, check_unused, describe, link_files, rebuild, withdraw
from .runs import RUNS, RunFile, process_started, read_run

WARM_LIMIT_S = 600
#: Nodes of one `holdfast run`, all on this machine.
NODES_MAX = 64


class RunOptions(msgspec.Struct, kw_only=True, frozen=True):
    """How a local run is set up."""

    nodes: int = 4
    directory: Path | None = None
    fresh: bool = False
    master: str = "local[*]"
    conf: tuple[str, ...] = ()
    standby: bool = True
    restart_s: float | None = 3.0
    #: URL of a store that outlives all nodes.
    store: str = ""
    #: How long a recovery may take once it is decided; empty: as long as it takes.
    recover_in: str = ""
    #: How rows of sources that do not say it come to the nodes; empty: in micro-batches.
    latency: str = ""
    #: Further settings of every node, as TOML: `heartbeat = "50 ms"`. They win over the flags above.
    settings: tuple[str, ...] = ()


class LocalRun:
    """A pipeline on this machine: its directory, its plan, its nodes."""

    def __init__(self, run: RunFile, plan: Plan, nodes: LocalNodes, warnings: list[str], home: RunHome) -> None:
        self.run = run
        self.plan = plan
        self.nodes = nodes
        self.warnings = warnings
        self._home = home

    def is_finished(self) -> bool:
        try:
            return not unfinished(self.run)
        except HoldfastError:
            return False

    def stop(self) -> None:
        self._stop_joined()
        self.nodes.stop()
        self._home.release()

    def _stop_joined(self) -> None:
        """Nodes that joined this run have processes of their own, and nothing to do without it."""
        self.run.look_again()
        caller = self.run.caller()
        for name in sorted(set(self.run.endpoints) - set(self.nodes.names)):
            with suppress(HoldfastError):
                caller.call(name, "stop", timeout=2.0)
        caller.close()


def start_run(
    file: Path,
    options: RunOptions,
    tell: Callable[[str], None] = lambda line: None,
    told: threading.Event | None = None,
) -> LocalRun:
    """Plan, start the nodes, and leave `run.json` for the other commands."""
    check_options(options)
    check_file(file)
    settings = node_settings(options)
    check_model(options, settings)
    home = RunHome(options.directory or RUNS / file.stem, file, fresh=options.fresh)
    try:
        return _start(file, home, options, settings, tell, told)
    except BaseException:
        home.undo()
        raise


def check_options(options: RunOptions) -> None:
    """Of a run that starts, from nothing or from a savepoint."""
    if not 1 <= options.nodes <= NODES_MAX:
        raise ConfigError(
            f"--nodes must be 1 to {NODES_MAX}",
            detail=f"It is {options.nodes}. Every node is a process of about 200 MB on this machine.",
            hint="Nodes on machines of their own are started with `holdfast node`: see docs/running.md.",
        )
    check_restart(options.restart_s)
    if not is_here(options.master):
        raise ConfigError(
            f"--master {options.master} is not on this machine",
            detail="The nodes of `run` listen on loopback only: executors elsewhere could not reach them.",
            hint="Start `holdfast node` on the machines and use `holdfast submit`: see docs/running.md.",
        )


def check_model(options: RunOptions, settings: dict[str, Any]) -> None:
    """A network model that cannot be is refused before anything is made: nodes would find it after the planning."""
    if settings.get("network_model") and settings.get("store"):
        names = [Name(f"n{i}") for i in range(options.nodes)]
        load_model(settings["network_model"], names, places=can_place(settings["store"]))


def go_on(
    directory: Path,
    restart_s: float | None = 3.0,
    tell: Callable[[str], None] = lambda line: None,
    told: threading.Event | None = None,
) -> LocalRun:
    """Start the nodes of a run again that has ended, however: its state is in its store, the rest in its directory."""
    check_restart(restart_s)
    before = read_run(directory)
    if not before.settings.get("store"):
        raise ConfigError(
            f"the run in {directory} cannot go on",
            detail="It had no store: its state was in the memory of its nodes.",
            hint="Start it with --store next time (docs/checkpoints.md). --fresh starts anew.",
        )
    if has_finished(before):
        raise ConfigError(f"the run in {directory} has finished", hint="`holdfast verify` looks at what it wrote.")
    home = RunHome(directory, Path(before.source), goes_on=True)
    try:
        plan = read_plan(home.path / "plan.json")
        check_not_followed(before.settings, home.path)
        check_began(before.settings, home.path, plan.query)
        check_kept(plan, before.settings, has_disks=True)
        names: list[str] = sorted(before.endpoints)
        settings = _without_those_who_left(before.settings, names)
        return restart_nodes(home, plan, Path(before.source), before.cwd, names, settings, restart_s, tell, told)
    except BaseException:
        home.undo()
        raise


def _without_those_who_left(settings: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """A label in `domains` for a node that does not exist is a mistake; for one that has left it was none."""
    if not isinstance(domains := settings.get("domains"), dict):
        return settings
    return {**settings, "domains": {name: label for name, label in domains.items() if name in names}}


def resume(
    directory: Path,
    store: str,
    options: RunOptions,
    tell: Callable[[str], None] = lambda line: None,
    told: threading.Event | None = None,
) -> LocalRun:
    """Go on with a run whose directory is lost: it is made again from its store."""
    check_restart(options.restart_s)
    if directory.is_file():
        raise ConfigError(f"{directory} is a file", hint="With --resume, give the directory that the run shall have.")
    given = node_settings(msgspec.structs.replace(options, store=store))
    _check_given(options)
    home = RunHome(directory)
    try:
        known, plan, settings = rebuild(home.path, given, tell)
        source, names = Path(known.source), [str(name) for name in known.names]
        return restart_nodes(home, plan, source, known.cwd, names, settings, options.restart_s, tell, told)
    except BaseException:
        home.undo()
        raise


def _check_given(options: RunOptions) -> None:
    """The rest is as it was; what has no effect is refused, not passed over."""
    for key in {key for text in options.settings for key in tomllib.loads(text)} - {"conf", "store_conf"}:
        raise ConfigError(
            f"--set {key} cannot be given with --resume",
            detail="A run goes on with the settings that it had; only `conf` and `store_conf` are not in its store.",
        )


def restart_nodes(
    home: RunHome,
    plan: Plan,
    source: Path,
    cwd: str,
    names: list[str],
    settings: dict[str, Any],
    restart_s: float | None,
    tell: Callable[[str], None],
    told: threading.Event | None,
    claim: Callable[[], None] = lambda: None,
) -> LocalRun:
    """Start the nodes of a run that goes on, with what they find in its directory. `claim` is called when whoever finds
    that directory can go on with it, and no node has started yet."""
    warm(home.path, told)
    nodes = LocalNodes(home.path, names, deployment=plan.query, settings=settings, restart_s=restart_s)
    try:
        run = _describe(source, home.path, plan, nodes, settings, cwd)
        claim()
        tell(f"starting {counted(len(names), 'node')}: state is read from {settings['store']}")
        nodes.start(told)
    except BaseException:
        nodes.stop()
        raise
    return LocalRun(run, plan, nodes, [], home)


def check_restart(restart_s: float | None) -> None:
    if restart_s is not None and not math.isfinite(restart_s):
        raise ConfigError("--restart must be a number of seconds", detail=f"It is {restart_s}.")


def _start(
    file: Path,
    home: RunHome,
    options: RunOptions,
    settings: dict[str, Any],
    tell: Callable[[str], None],
    told: threading.Event | None,
) -> LocalRun:
    directory = home.path
    query = f"{file.stem}-{uuid.uuid4().hex[:12]}"
    if settings.get("store"):
        tell(f"looking at {settings['store']}")
        check_unused(settings, directory)
    tell(f"planning {file}")
    plan, warnings = plan_file(file, home.draft, query=query, runs_here=True, told=told, **planned_with(settings))
    plan.check_store(has_store=bool(settings.get("store")))
    tell("preparing kernels (compiled once on a machine, then loaded)")
    warm(home.draft, told)
    if settings.get("store"):
        link_files(home.draft, settings["store"], query)  # not before: it makes folders there
    home.begin()  # not before: until here a mistake leaves an earlier run as it was
    with suppress(shutil.SameFileError):
        shutil.copy2(file, directory / "pipeline.py")
    nodes = LocalNodes(
        directory,
        [f"n{i}" for i in range(options.nodes)],
        deployment=plan.query,
        settings=settings,
        restart_s=options.restart_s,
    )
    try:
        run = _describe(file, directory, plan, nodes, settings)
        tell(f"starting {counted(options.nodes, 'node')}")
        with _described(run, plan, file, nodes):
            nodes.start(told)
    except BaseException:
        nodes.stop()  # its sockets are not in the run's directory
        raise
    return LocalRun(run, plan, nodes, warnings, home)


@contextmanager
def _described(run: RunFile, plan: Plan, file: Path, nodes: LocalNodes) -> Iterator[None]:
    """Its store, if it has one, knows of the run before anything counts; but not of one whose start fails."""
    if not run.settings.get("store"):
        yield
        return
    describe(run.path, plan, file, run.cwd, nodes.names, run.settings)
    try:
        yield
    except BaseException:
        nodes.stop()  # whatever they write must be before that
        with suppress(HoldfastError):
            withdraw(run.settings, run.path)
        raise


def _describe(
    file: Path, directory: Path, plan: Plan, nodes: LocalNodes, settings: dict[str, Any], cwd: str = ""
) -> RunFile:
    """Leave `run.json`."""
    run = RunFile(
        pipeline=plan.pipeline,
        source=str(file.resolve()),
        cwd=cwd or os.getcwd(),
        endpoints=nodes.endpoints,
        deployment=plan.query,
        metrics={name: f"http://127.0.0.1:{port}/metrics" for name, port in nodes.metrics.items()},
        secret_file=str(nodes.secret_file),
        conf=settings["conf"],
        settings=settings,
        supervisor=os.getpid(),
        supervisor_started=process_started(os.getpid()),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        dir=str(directory),
    )
    write_whole(directory / "run.json", msgspec.json.format(msgspec.json.encode(run), indent=2))  # it may hold keys
    return run


def warm(directory: Path, told: threading.Event | None) -> None:
    """Compile before the nodes start: several that compile the same at once would take several times as long."""
    try:
        arguments = ["-m", "holdfast.runtime.node.warm", str(directory / "plan.json")]
        done = run_alone(arguments, limit_s=WARM_LIMIT_S, told=told)
    except subprocess.TimeoutExpired:
        raise HoldfastError(f"kernels are not compiled after {WARM_LIMIT_S} s", hint="Is the machine busy?") from None
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise ConfigError("the operators of this pipeline cannot be made", detail=last[0])


def node_settings(options: RunOptions) -> dict[str, Any]:
    """Settings of every node, checked before anything is started."""
    found: dict[str, Any] = {"master": options.master, "standby": options.standby}
    if options.store:
        found["store"] = options.store
    if options.recover_in:
        found["recover_in"] = options.recover_in
    if options.latency:
        found["latency"] = options.latency
    conf = dict(_pair(pair) for pair in options.conf)
    for text in options.settings:
        try:
            given = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            hint = "Write --set 'heartbeat = \"50 ms\"'."
            raise ConfigError(f"--set {text!r} cannot be read", detail=str(error), hint=hint) from None
        for key in given:
            if key in OWN_SETTINGS:
                raise ConfigError(f"--set {key}: `holdfast run` sets this itself")
        found |= given
    if isinstance(found.get("network_model"), str) and found["network_model"]:
        found["network_model"] = str(Path(found["network_model"]).resolve())  # nodes start elsewhere
    if isinstance(found.get("conf", {}), dict):
        found["conf"] = conf | found.get("conf", {})
    endpoints = dict.fromkeys([f"n{i}" for i in range(max(1, options.nodes))], "grpc://127.0.0.1:1")
    make_config({**found, "name": "n0", "dir": ".", "endpoints": endpoints}, "--set")
    return found


def planned_with(settings: dict[str, Any]) -> dict[str, Any]:
    """What the planner of a run on this machine is told of its settings."""
    return {"conf": settings["conf"], "latency": settings.get("latency", ""), "master": settings.get("master", "")}


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise ConfigError(f"--conf {text!r} cannot be read", hint="Write --conf spark.some.key=value.")
    return key, value

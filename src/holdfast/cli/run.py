"""`holdfast run`: plan a file, start nodes on this machine, watch over them until the run ends.

The parts do the work: `planning` plans in a process of its own, `runtime/client/local.py` keeps the node processes
alive, the nodes start Spark. This command only ties them together and shows what happens.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import threading
import time
import tomllib
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.live import Live

from holdfast.checkpoint.keys import HEADS, shard_of_head
from holdfast.errors import ConfigError, HoldfastError
from holdfast.model.plan import Plan
from holdfast.prescriber.units import duration_s, fraction
from holdfast.runtime.client.local import OWN_SETTINGS, LocalNodes
from holdfast.runtime.config import make_config, read_plan
from holdfast.runtime.disk.journal import write_whole
from holdfast.runtime.signals import on_end
from holdfast.runtime.stable.door import StoreDoor
from holdfast.spark.archive import make_in_background
from holdfast.spark.session import is_here
from holdfast.store.plan import ListKeys, Steps

from .alone import run_alone
from .control import has_finished, tell_finished, unfinished
from .home import RunHome
from .planning import check_file, plan_file
from .runs import RUNS, RunFile, process_started, read_run
from .story import read_events, write_event
from .watch import cluster_status, failing, status_view

LOOK_S = 1.0
WARM_LIMIT_S = 600
SLA_LOOK_S = 5.0
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
        self.nodes.stop()
        self._home.release()


def start_run(
    file: Path,
    options: RunOptions,
    tell: Callable[[str], None] = lambda line: None,
    told: threading.Event | None = None,
) -> LocalRun:
    """Plan, start the nodes, and leave `run.json` for the other commands."""
    if not 1 <= options.nodes <= NODES_MAX:
        raise ConfigError(
            f"--nodes must be 1 to {NODES_MAX}",
            detail=f"It is {options.nodes}. Every node is a process of about 200 MB on this machine.",
            hint="Nodes on machines of their own are started with `holdfast node`: see docs/running.md.",
        )
    _check_restart(options.restart_s)
    if not is_here(options.master):
        raise ConfigError(
            f"--master {options.master} is not on this machine",
            detail="The nodes of `run` listen on loopback only: executors elsewhere could not reach them.",
            hint="Start `holdfast node` on the machines and use `holdfast submit`: see docs/running.md.",
        )
    check_file(file)
    settings = _settings(options)
    home = RunHome(options.directory or RUNS / file.stem, file, fresh=options.fresh)
    try:
        return _start(file, home, options, settings, tell, told)
    except BaseException:
        home.undo()
        raise


def go_on(
    directory: Path,
    restart_s: float | None = 3.0,
    tell: Callable[[str], None] = lambda line: None,
    told: threading.Event | None = None,
) -> LocalRun:
    """Start the nodes of a run again that has ended, however: its state is in its store, the rest in its directory."""
    _check_restart(restart_s)
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
        _warm(home.path, told)
        names: list[str] = sorted(before.endpoints)
        nodes = LocalNodes(home.path, names, deployment=plan.query, settings=before.settings, restart_s=restart_s)
        try:
            run = _describe(Path(before.source), home.path, plan, nodes, before.settings, before.cwd)
            tell(f"starting {len(names)} nodes, which read their state from {before.settings['store']}")
            nodes.start(told)
        except BaseException:
            nodes.stop()
            raise
    except BaseException:
        home.undo()
        raise
    return LocalRun(run, plan, nodes, [], home)


def _check_restart(restart_s: float | None) -> None:
    if restart_s is not None and not math.isfinite(restart_s):
        raise ConfigError("--restart must be a number of seconds", detail=f"It is {restart_s}.")


def _check_store(settings: dict[str, Any], scratch: Path) -> None:
    """A new run needs a store, or a path in it, of its own: what another one has left there is not to be mixed up."""
    door = StoreDoor.of(settings["store"], settings.get("store_conf", {}), scratch / "store.log")
    try:
        found = door.service().run(_heads())
    finally:
        door.close()
    if found:
        raise ConfigError(
            f"{settings['store']} has checkpoints of another run",
            detail=f"There are some of {', '.join(sorted(found)[:4])}.",
            hint="Give this run a path of its own; `holdfast run DIRECTORY` goes on with the other one.",
        )


def _heads() -> Steps[set[str]]:
    found = yield ListKeys(HEADS)
    return {shard_of_head(one.key) for one in found}


def _start(
    file: Path,
    home: RunHome,
    options: RunOptions,
    settings: dict[str, Any],
    tell: Callable[[str], None],
    told: threading.Event | None,
) -> LocalRun:
    directory = home.path
    if settings.get("store"):
        tell(f"looking at {settings['store']}")
        _check_store(settings, directory)
    tell(f"planning {file}")
    query = f"{file.stem}-{uuid.uuid4().hex[:12]}"
    plan, warnings = plan_file(file, directory, query=query, conf=settings["conf"], runs_here=True, told=told)
    with suppress(shutil.SameFileError):
        shutil.copy2(file, directory / "pipeline.py")
    tell("preparing kernels (compiled once on a machine, then loaded)")
    _warm(directory, told)
    nodes = LocalNodes(
        directory,
        [f"n{i}" for i in range(options.nodes)],
        deployment=plan.query,
        settings=settings,
        restart_s=options.restart_s,
    )
    try:
        run = _describe(file, directory, plan, nodes, settings)
        tell(f"starting {options.nodes} nodes")
        nodes.start(told)
    except BaseException:
        nodes.stop()  # its sockets are not in the run's directory
        raise
    return LocalRun(run, plan, nodes, warnings, home)


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


def _warm(directory: Path, told: threading.Event | None) -> None:
    """Compile before the nodes start: several that compile the same at once would take several times as long."""
    try:
        arguments = ["-m", "holdfast.runtime.node.warm", str(directory / "plan.json")]
        done = run_alone(arguments, limit_s=WARM_LIMIT_S, told=told)
    except subprocess.TimeoutExpired:
        raise HoldfastError(f"kernels are not compiled after {WARM_LIMIT_S} s", hint="Is the machine busy?") from None
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise ConfigError("the operators of this pipeline cannot be made", detail=last[0])


def _settings(options: RunOptions) -> dict[str, Any]:
    """Settings of every node, checked before anything is started."""
    found: dict[str, Any] = {"master": options.master, "standby": options.standby}
    if options.store:
        found["store"] = options.store
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
    if isinstance(found.get("conf", {}), dict):
        found["conf"] = conf | found.get("conf", {})
    make_config({**found, "name": "n0", "dir": ".", "endpoints": {"n0": "grpc://127.0.0.1:1"}}, "--set")
    return found


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise ConfigError(f"--conf {text!r} cannot be read", hint="Write --conf spark.some.key=value.")
    return key, value


@contextmanager
def until_told() -> Iterator[threading.Event]:
    """An event that is set by any signal that ends a run, instead of dying in the middle of something."""
    told = threading.Event()
    restore = on_end(told.set)
    try:
        yield told
    finally:
        restore()


def run_command(
    file: Annotated[
        Path, typer.Argument(help="Python file that makes the pipeline; or the directory of a run that goes on.")
    ],
    nodes: Annotated[int, typer.Option(help="Nodes on this machine; three or more can replace each other.")] = 4,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Where the run lives (default: ./holdfast-run/FILE).")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Remove an earlier run in that directory first.")] = False,
    master: Annotated[str, typer.Option(help="Spark's master for the stages, on this machine.")] = "local[*]",
    conf: Annotated[list[str] | None, typer.Option(help="Spark setting key=value (repeatable).")] = None,
    standby: Annotated[bool, typer.Option(help="Keep a warm Spark driver of every stage on a second node.")] = True,
    restart: Annotated[float, typer.Option(help="Seconds after which a dead node is started again; -1: never.")] = 3.0,
    store: Annotated[
        str,
        typer.Option(help="Where state outlives all nodes (file:///DIR, hdfs://..., s3://...)."),
    ] = "",
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="Node setting as TOML: 'heartbeat = \"50 ms\"' (repeatable).")
    ] = None,
    sla: Annotated[
        str | None,
        typer.Option(help="Uptime wanted (99.99%): measure, choose settings, apply them; again after changes."),
    ] = None,
    mtbf: Annotated[
        str, typer.Option(help="With --sla: mean time between failures of a node, until measured.")
    ] = "30d",
    explain: Annotated[bool, typer.Option("--explain", help="Only show the plan.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Progress as JSON lines instead of a live table.")] = False,
) -> None:
    """Run a pipeline on this machine. Ctrl-C stops it; `holdfast stop --finish` closes all windows first.

    Examples:  holdfast run netmon.py --nodes 4
               holdfast run netmon.py --master spark://127.0.0.1:7077 --conf spark.executor.memory=2g
               holdfast run netmon.py --sla 99.99%
               holdfast run netmon.py --explain
               holdfast run netmon.py --store file:///mnt/shared/netmon
               holdfast run holdfast-run/netmon          (goes on with a run that was stopped, or died)
    """
    options = RunOptions(
        nodes=nodes,
        directory=directory,
        fresh=fresh,
        master=master,
        conf=tuple(conf or ()),
        standby=standby,
        restart_s=None if restart < 0 else restart,
        store=store,
        settings=tuple(setting or ()),
    )
    console = Console(stderr=True)
    wanted = (fraction(sla, "--sla"), duration_s(mtbf, "--mtbf")) if sla is not None else None
    with until_told() as told:
        if explain:
            _explain(file, _settings(options)["conf"], as_json, told)
            return
        say = lambda line: console.print(line, highlight=False, markup=False)  # noqa: E731
        if file.is_dir():
            _check_goes_on(options, wanted is not None)
            started = go_on(file, options.restart_s, say, told)
        else:
            started = start_run(file, options, say, told)
        try:
            _tell_start(started, console, as_json)
            if make_in_background():
                console.print("Once: an archive of Spark's classes is made, so that stages start faster from then on.")
            guard = _guard(started, *wanted, console) if wanted else None
            finished = _watch(started, told, console, as_json, guard)
        finally:
            started.stop()
    if not as_json:
        console.print(f"{started.run.pipeline} {'has finished' if finished else 'is stopped'}.", highlight=False)


def _check_goes_on(options: RunOptions, sla: bool) -> None:
    """A run goes on as it was: flags that would change it are refused, not passed over."""
    given = msgspec.structs.replace(options, restart_s=RunOptions().restart_s)
    if given != RunOptions() or sla:
        raise ConfigError(
            "a run goes on with the settings that it had",
            detail="Only --restart and --json can be given with the directory of a run.",
            hint="A pipeline FILE starts a new one.",
        )


def _explain(file: Path, conf: dict[str, str], as_json: bool, told: threading.Event) -> None:
    import tempfile

    with tempfile.TemporaryDirectory(prefix="holdfast-plan-") as scratch:
        plan, _ = plan_file(file, Path(scratch), query="explain", conf=conf, told=told)
        shown = msgspec.json.encode(plan.topology).decode() if as_json else (Path(scratch) / "explain.txt").read_text()
        typer.echo(shown)


def _tell_start(started: LocalRun, console: Console, as_json: bool) -> None:
    for warning in started.warnings:
        console.print(f"warning: {warning}", style="yellow", highlight=False, markup=False)
    if as_json:
        typer.echo(json.dumps({"event": "started", "run": started.run.dir, "endpoints": started.run.endpoints}))
    else:
        plain: dict[str, Any] = {"highlight": False, "markup": False}  # brackets in names and plans are not styles
        console.print((started.run.path / "explain.txt").read_text(), **plain)
        console.print(f"running in {started.run.dir}; holdfast status | events | drain | stop", **plain)


def _guard(started: LocalRun, sla: float, prior_s: float, console: Console) -> Callable[[dict[str, Any]], None]:
    """Called with every look at the nodes: keeps the operators' settings as the prescriber wants them."""
    from holdfast.runtime.client.measured import mtbf_s
    from holdfast.runtime.client.sla import SlaWatch

    began = time.monotonic()

    def tune(operator: str, seconds: float) -> None:
        started.run.ask("protect", {"operator": operator, "capture_period_ms": seconds * 1000})

    def tell(kind: str, text: str, fields: dict[str, Any]) -> None:
        write_event(started.run.path, kind, text, **fields)
        console.print(text, highlight=False, markup=False)

    watch = SlaWatch(started.plan, sla, nodes=len(started.nodes.names), tune=tune, tell=tell)
    looked = -SLA_LOOK_S

    def look(answers: dict[str, Any]) -> None:
        nonlocal looked
        now = time.monotonic()
        if now - looked < SLA_LOOK_S:
            return
        looked = now
        mtbf = mtbf_s(read_events(started.run.path), len(started.nodes.names), now - began, prior_s)
        watch.look(answers, mtbf, now)

    return look


def _tell_failures(lines: list[str], said: set[str], console: Console) -> None:
    """Each reason once, not each time that it comes again."""
    for line in lines:
        reason = line.partition(": ")[2]
        if reason not in said:
            said.add(reason)
            console.print(line, style="bold red", markup=False, highlight=False)


def _watch(
    started: LocalRun,
    told: threading.Event,
    console: Console,
    as_json: bool,
    guard: Callable[[dict[str, Any]], None] | None,
) -> bool:
    """Show what happens until it has finished (true) or somebody ends it (false)."""
    show = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal and not as_json else None
    if show:
        show.start()
    said: set[str] = set()
    try:
        while not told.wait(LOOK_S):
            try:
                status = cluster_status(started.run)
            except HoldfastError:
                continue
            if guard:
                with suppress(OSError):  # a full disk, or an event log that is just being replaced: look again later
                    guard(status["nodes"])
            if show:
                show.update(status_view(started.run.pipeline, status))
            elif as_json:
                typer.echo(json.dumps({"event": "status", "at": time.time(), **status}, default=str))
            if not show:
                _tell_failures(failing(status), said, console)
            if started.is_finished():
                tell_finished(started.run)
                return True
        return False
    finally:
        if show:
            show.stop()

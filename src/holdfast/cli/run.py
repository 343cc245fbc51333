"""`holdfast run`: start a run on this machine (`start.py`), watch over it until it ends, and show what happens."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.live import Live

from holdfast.errors import ConfigError, HoldfastError
from holdfast.prescriber.units import duration_s, fraction
from holdfast.runtime.signals import on_end
from holdfast.spark.archive import make_in_background

from .carry import AllowNewOption, Changes, DefaultOption, DropOption, start_from
from .control import tell_finished
from .deaths import Deaths
from .planning import plan_file
from .progress import StepLine
from .start import LocalRun, RunOptions, go_on, node_settings, planned_with, resume, start_run
from .story import EventLogs, read_events, write_event
from .watch import cluster_status, failing, status_view

LOOK_S = 1.0
SLA_LOOK_S = 5.0

RecoverInOption = Annotated[
    str, typer.Option("--recover-in", metavar="TIME", help="How long a recovery may take once decided: '300 ms'.")
]
LatencyOption = Annotated[
    str, typer.Option(help="Of sources that do not say it: micro-batch, or real-time where that can be.")
]


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
    resume_from: Annotated[
        str,
        typer.Option("--resume", metavar="URL", help="Make a lost DIRECTORY again from the run's store, and go on."),
    ] = "",
    savepoint: Annotated[
        str,
        typer.Option("--from", metavar="NAME", help="Start from this savepoint in the store (docs/upgrades.md)."),
    ] = "",
    allow_new: AllowNewOption = False,
    drop: DropOption = False,
    default: DefaultOption = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="Node setting as TOML: 'heartbeat = \"50 ms\"' (repeatable).")
    ] = None,
    recover_in: RecoverInOption = "",
    latency: LatencyOption = "",
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

    With a directory instead of a file, the run in it goes on; with --resume also
    if its disks are lost. With --from, a changed pipeline goes on from a savepoint.

    Examples:  holdfast run netmon.py --nodes 4
               holdfast run netmon.py --conf spark.executor.memory=2g
               holdfast run netmon.py --sla 99.99%
               holdfast run netmon.py --store file:///mnt/shared/netmon
               holdfast run new.py --from before --store file:///mnt/shared/netmon
               holdfast run holdfast-run/netmon
               holdfast run holdfast-run/netmon --resume file:///mnt/shared/netmon
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
        recover_in=recover_in,
        latency=latency,
        settings=tuple(setting or ()),
    )
    console = Console(stderr=True)
    wanted = (fraction(sla, "--sla"), duration_s(mtbf, "--mtbf")) if sla is not None else None
    with until_told() as told:
        if explain:
            _explain(file, node_settings(options), as_json, told)
            return
        changes = Changes.of(allow_new, drop, default)
        with StepLine(console, keeps=True) as progress:
            started = _begin(file, options, resume_from, savepoint, changes, wanted is not None, progress.at, told)
        guard = _guard(started, *wanted, console) if wanted else None
        watch_over(started, told, console, as_json, guard)


def _begin(
    file: Path,
    options: RunOptions,
    resume_from: str,
    savepoint: str,
    changes: Changes,
    sla: bool,
    say: Callable[[str], None],
    told: threading.Event,
) -> LocalRun:
    """A new run, one from a savepoint, or one that goes on."""
    if savepoint:
        if resume_from or file.is_dir():
            raise ConfigError("--from starts a new run", hint="Give the pipeline's FILE, and no --resume.")
        return start_from(file, savepoint, options, changes, say, told)
    if changes != Changes():
        raise ConfigError("--allow-new, --drop and --default belong to --from", hint="Give the savepoint's name.")
    if resume_from:
        _check_goes_on(msgspec.structs.replace(options, conf=(), settings=()), sla)
        return resume(file, resume_from, options, say, told)
    if file.is_dir():
        _check_goes_on(options, sla)
        return go_on(file, options.restart_s, say, told)
    return start_run(file, options, say, told)


def watch_over(
    started: LocalRun,
    told: threading.Event,
    console: Console,
    as_json: bool,
    guard: Callable[[dict[str, Any]], None] | None = None,
) -> None:
    """Until the run has finished or somebody ends it; then it is stopped."""
    try:
        _tell_start(started, console, as_json)
        if make_in_background():
            console.print("Once: an archive of Spark's classes is made, so that stages start faster from then on.")
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
            detail="Only --restart and --json can be given with the directory of a run; with --resume also --conf, and "
            "--set for the store's client.",
            hint="A pipeline FILE starts a new one.",
        )


def _explain(file: Path, settings: dict[str, Any], as_json: bool, told: threading.Event) -> None:
    import tempfile

    with tempfile.TemporaryDirectory(prefix="holdfast-plan-") as scratch:
        with StepLine(quiet=as_json) as progress:
            progress.now(f"planning {file}")
            plan, _ = plan_file(file, Path(scratch), query="explain", told=told, **planned_with(settings))
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
    deaths = Deaths(started.nodes, EventLogs(started.run.path)) if not show else None
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
                show.update(status_view(started.run.pipeline, status, console.width, live=True))
            elif as_json:
                typer.echo(json.dumps({"event": "status", "at": time.time(), **status}, default=str))
            if deaths:
                _tell_failures(failing(status), said, console)
                for line in deaths.look(status):
                    console.print(line, highlight=False, markup=False, soft_wrap=True)
            if started.is_finished():
                tell_finished(started.run)
                return True
        return False
    finally:
        if show:
            show.stop()

"""`holdfast upgrade`: a live run goes on as a changed pipeline.

A savepoint, a stop and a start from it, in the order that pauses least: the new file is planned, matched with the old
one and its kernels are compiled while the old run is at work. The pause is from the moment when the sources stop until
those of the new run go on.
"""

from __future__ import annotations

import os
import re
import threading
import time
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from holdfast.checkpoint import savepoint as savepoints
from holdfast.model.ids import Name
from holdfast.runtime.config import read_plan

from .carry import AllowNewOption, Changes, DefaultOption, DropOption, Tell, Upgrade
from .clean import SourcesPaused, check_paged, check_whole
from .control import end_run
from .home import RunHome
from .planning import check_file
from .progress import StepLine
from .resume import opened_store
from .run import until_told, watch_over
from .runs import read_run
from .savepoint import make_savepoint
from .start import LocalRun


def upgrade(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Directory of the run, which is live and has a store.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The changed pipeline.")],
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Where the new run lives (default: beside the old one, RUN-2).")
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the savepoint that is made (default: upgrade-DATE).")] = "",
    allow_new: AllowNewOption = False,
    drop: DropOption = False,
    default: DefaultOption = None,
    limit: Annotated[float, typer.Option(help="Seconds to wait until everything is consumed and written.")] = 600.0,
    as_json: Annotated[bool, typer.Option("--json", help="Progress as JSON lines instead of a live table.")] = False,
) -> None:
    """Let a live run go on as a changed pipeline: savepoint, stop, start from it. Then watches over it as `run` does.

    Operators are matched by name. What is the same goes on with its state, also
    in another number of shards. What is new needs --allow-new, what is gone needs
    --drop, and a new aggregate needs --default. Anything else is refused before
    anything happens, and the old run goes on.

    Examples:  holdfast upgrade holdfast-run/netmon netmon2.py
               holdfast upgrade holdfast-run/netmon netmon2.py --allow-new --drop
    """
    console = Console(stderr=True)
    with until_told() as told:
        with StepLine(console, keeps=True) as progress:
            started = _go_over(
                run, file, directory, name, Changes.of(allow_new, drop, default), limit, as_json, progress.at, told
            )
        watch_over(started, told, console, as_json)


def _go_over(
    run: Path,
    file: Path,
    directory: Path | None,
    name: str,
    changes: Changes,
    limit: float,
    as_json: bool,
    say: Tell,
    told: threading.Event,
) -> LocalRun:
    """From the old run, which is live, to the new one."""
    old = read_run(run)
    check_file(file)
    file, directory = file.resolve(), directory.absolute() if directory is not None else None
    os.chdir(old.cwd)  # relative paths of sources and sinks mean what they meant
    check_whole(old, "upgrade")
    check_paged(old, "upgrade")
    point_name = name or time.strftime("upgrade-%Y%m%d-%H%M%S")
    savepoints.check_name(point_name)
    stopped = False
    home = RunHome(directory or next_to(Path(old.dir)), file)
    work = Upgrade(file, home, dict(old.settings), changes, say, told)
    try:
        work.prepare(read_plan(old.path / "plan.json"))
        with opened_store(old) as service:
            with SourcesPaused(old) as paused:
                began = time.monotonic()
                point, _ = make_savepoint(old, service, point_name, paused=paused, limit_s=limit, tell=say)
                paused.stays = True
                end_run(old)
            stopped = True
            say(f"{old.pipeline} has stopped at savepoint {point_name}")
            names = [Name(node) for node in sorted(old.endpoints)]
            started = work.start(service, point, names, 3.0)
    except BaseException:
        work.undo()
        if stopped and not work.has_begun:
            say(f"the old run has stopped, and nothing of it is changed: `holdfast run {old.dir}` goes on with it")
        raise
    _tell(started, point_name, time.monotonic() - began, as_json, say)
    return started


def _tell(started: LocalRun, name: str, seconds: float, as_json: bool, say: Any) -> None:
    if as_json:
        told = {"event": "upgraded", "run": started.run.dir, "savepoint": name, "seconds": round(seconds, 3)}
        typer.echo(msgspec.json.encode(told).decode())
    else:
        say(f"upgraded within {seconds:.1f} s; the stages start now")


def next_to(directory: Path) -> Path:
    """netmon -> netmon-2 -> netmon-3: the first that is not there."""
    found = re.fullmatch(r"(.+)-([0-9]+)", directory.name)
    base, number = (found[1], int(found[2])) if found else (directory.name, 1)
    while (path := directory.with_name(f"{base}-{number + 1}")).exists():
        number += 1
    return path

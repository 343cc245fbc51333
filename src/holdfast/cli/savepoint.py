"""`holdfast savepoint`: a named, complete point of a live run that is kept until it is deleted.

It holds everything that a new run needs to go on from there (`run --from`): a checkpoint of every shard, all at one
clean point, the ledgers of the stages, Spark's own checkpoints, and the rows that were set aside.
"""

from __future__ import annotations

import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from holdfast.checkpoint import savepoint as savepoints
from holdfast.checkpoint.savepoint import Savepoint
from holdfast.errors import ConfigError
from holdfast.pipeline.origins import FROM
from holdfast.store import IoService

from .clean import CleanPoint, SourcesPaused, Tell, check_paged, check_store, check_whole, reach_clean_point
from .progress import StepLine
from .resume import FILES, opened_store
from .runs import JsonOption, RunArgument, RunFile, find_run, say
from .story import write_event

_CHUNK = 4 << 20


class NamedGroup(TyperGroup):
    """`holdfast savepoint NAME` makes one: what is not the name of a command is the name of a savepoint."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        known = bool(args) and (args[0] in self.commands or args[0].startswith("-"))
        return super().resolve_command(ctx, args if known else ["make", *args])


app = typer.Typer(cls=NamedGroup, no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the savepoint.")]


@app.callback()
def savepoint() -> None:
    """Keep a named point of a live run, to start a changed pipeline from it: `holdfast run new.py --from NAME`.

    The run needs a store. Its sources pause until everything that they have handed
    over is consumed, checkpointed and written; then they go on. Nothing that a
    savepoint needs is removed from the store until it is deleted.

    Examples:  holdfast savepoint before-the-change
               holdfast savepoint list
               holdfast savepoint show before-the-change
               holdfast savepoint delete before-the-change
    """


@app.command("make")
def make(
    name: NameArgument,
    run: RunArgument = None,
    limit: Annotated[float, typer.Option(help="Seconds to wait until everything is consumed and written.")] = 600.0,
    as_json: JsonOption = False,
) -> None:
    """Make a savepoint. The same as `holdfast savepoint NAME`.

    Examples:  holdfast savepoint make before-the-change --limit 60
    """
    found = find_run(run)
    savepoints.check_name(name)
    check_whole(found, "a savepoint")
    check_paged(found, "a savepoint")
    step_line = StepLine(quiet=as_json, keeps=True)
    with step_line as progress, opened_store(found) as service, SourcesPaused(found) as paused:
        progress.at("the sources pause")
        point, seconds = make_savepoint(found, service, name, paused=paused, limit_s=limit, tell=progress.at)
    if as_json:
        say({**_told(point), "paused_seconds": round(seconds, 3)})
    else:
        typer.echo(
            f"savepoint {name}: {len(point.shards)} checkpoints, {point.state_bytes / 1e6:,.1f} MB of state; "
            f"the sources were paused for {seconds:.1f} s."
        )


def make_savepoint(
    run: RunFile, service: IoService, name: str, *, paused: SourcesPaused, limit_s: float, tell: Tell
) -> tuple[Savepoint, float]:
    """Called while the sources are paused; the savepoint, and for how long this took."""
    service.run(savepoints.check_unused(name))
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="holdfast-savepoint-") as scratch:
        files = Path(scratch) / "files"
        while True:
            left_s = max(0.0, limit_s - (time.monotonic() - began))
            clean = reach_clean_point(run, service, paused=paused, limit_s=left_s, tell=tell)
            _pack(run.path, files)
            again = reach_clean_point(run, service, paused=paused, limit_s=left_s, tell=tell)
            if (again.commits, again.written) == (clean.commits, clean.written):
                break  # nothing moved while the files were read
        point = _point(run, name, clean, files.stat().st_size)
        service.run(savepoints.put(point, _FileChunks(files)))
    write_event(run.path, "savepoint", f"Savepoint {name} is in the store.", name=name)
    return point, time.monotonic() - began


def _point(run: RunFile, name: str, clean: CleanPoint, files_bytes: int) -> Savepoint:
    return Savepoint(
        name=name,
        made_ms=time.time_ns() // 1_000_000,
        deployment=clean.plan.query,
        pipeline=clean.plan.pipeline,
        directory=run.dir,
        plan=(run.path / "plan.json").read_bytes(),
        shards={shard: manifest.sequence for shard, manifest in clean.manifests.items()},
        commits=clean.commits,
        reads=clean.reads,
        written=clean.written,
        state_bytes=sum(manifest.state_bytes for manifest in clean.manifests.values()),
        files_bytes=files_bytes,
    )


class _FileChunks:
    """The bytes of a file, as often as they are wanted."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __iter__(self) -> Iterator[bytes]:
        with self._path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                yield chunk


def _pack(directory: Path, into: Path) -> None:
    """What of a run is files; half-written ones of Spark's are nobody's."""
    with tarfile.open(into, "w") as tar:
        for name in (*FILES, FROM):
            path = directory / name
            if path.exists():
                tar.add(path.resolve(), arcname=name, filter=_is_whole)


def _is_whole(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if Path(member.name).name.endswith(".tmp") else member


# --- looking


@app.command("list")
def list_command(run: RunArgument = None, as_json: JsonOption = False) -> None:
    """Show the savepoints in the store of a run.

    Examples:  holdfast savepoint list
    """
    found = find_run(run)
    check_store(found, "savepoint list")
    with opened_store(found) as service:
        points = [service.run(savepoints.read(name)) for name in service.run(savepoints.names())]
    points.sort(key=lambda point: point.made_ms)
    if as_json:
        say({"store": found.settings["store"], "savepoints": [_told(point) for point in points]})
        return
    for point in points:
        typer.echo(f"{point.name}  {_when(point)}  {point.state_bytes / 1e6:,.1f} MB  of {point.deployment}")
    if not points:
        typer.echo("There are none.")


@app.command("show")
def show(name: NameArgument, run: RunArgument = None, as_json: JsonOption = False) -> None:
    """Show one: which checkpoints, up to which batch of every stage, up to where sinks have written.

    Examples:  holdfast savepoint show before-the-change
    """
    found = find_run(run)
    check_store(found, "savepoint show")
    with opened_store(found) as service:
        point = service.run(savepoints.read(name))
    if as_json:
        say(_told(point))
        return
    typer.echo(
        f"{point.name}  {_when(point)}  of {point.pipeline} ({point.deployment}), which ran in {point.directory}"
    )
    for stage, commit in sorted(point.commits.items()):
        typer.echo(f"  {stage}: batch {commit.batch}")
    for sink, batch in sorted(point.written.items()):
        typer.echo(f"  {sink}: has written batch {batch}")
    for shard, sequence in sorted(point.shards.items()):
        typer.echo(f"  {shard}: checkpoint {sequence}")


@app.command("delete")
def delete(name: NameArgument, run: RunArgument = None, as_json: JsonOption = False) -> None:
    """Delete one. Its checkpoints go with the next collection, unless they are needed otherwise.

    Examples:  holdfast savepoint delete before-the-change
    """
    found = find_run(run)
    check_store(found, "savepoint delete")
    with opened_store(found) as service:
        there = service.run(savepoints.delete(name))
    if not there:
        raise ConfigError(f"the store has no savepoint {name!r}", hint="`holdfast savepoint list` shows all.")
    if as_json:
        say({"deleted": name})
    else:
        typer.echo(f"{name} is deleted.")


def _when(point: Savepoint) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(point.made_ms / 1000))


def _told(point: Savepoint) -> dict[str, Any]:
    return {
        "name": point.name,
        "made_ms": point.made_ms,
        "deployment": point.deployment,
        "pipeline": point.pipeline,
        "directory": point.directory,
        "state_bytes": point.state_bytes,
        "files_bytes": point.files_bytes,
        "shards": point.shards,
        "stages": {stage: commit.batch for stage, commit in point.commits.items()},
        "sinks": point.written,
    }

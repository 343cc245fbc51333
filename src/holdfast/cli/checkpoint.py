"""`holdfast checkpoint`: what is in a store of checkpoints, whether it is whole, and deleting what is not wanted.

None of this disturbs a running pipeline: nothing is claimed, and deleting is a change of a shard's head like any other.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote, urlsplit

import typer
from rich.table import Table

from holdfast.checkpoint import inspect
from holdfast.checkpoint.go_back import go_back
from holdfast.checkpoint.head import HeadEntry, ShardHead
from holdfast.checkpoint.manifest import CheckpointManifest
from holdfast.checkpoint.restore import read_manifest
from holdfast.errors import ConfigError
from holdfast.model.ids import Asset, asset_id, producer_stage
from holdfast.model.plan import to_micros
from holdfast.runtime.stable import batches
from holdfast.store import IoService, open_store
from holdfast.store.url import is_folder

from .runs import JsonOption, say
from .tables import table_console
from .watch import moment

app = typer.Typer(no_args_is_help=True)

StoreArgument = Annotated[
    str,
    typer.Argument(metavar="STORE", help="URL of the store: file:///dir, hdfs://host/dir, s3://bucket/dir, ..."),
]
ShardArgument = Annotated[str, typer.Argument(metavar="SHARD", help="A shard, as `list` shows it: talkers-0.")]
SettingOption = Annotated[
    list[str] | None,
    typer.Option(
        "--setting", metavar="KEY=VALUE", help="A setting of the store's client (Hadoop's or obstore's); repeat."
    ),
]
SequenceArgument = Annotated[
    int | None,
    typer.Argument(metavar="[NUMBER]", min=0, help="Number of the checkpoint; default: the newest good one."),
]
LimitOption = Annotated[
    float, typer.Option("--timeout", min=0.1, help="Seconds without an answer after which it gives up.")
]


@app.callback()
def checkpoint() -> None:
    """Checkpoints in a stable store: list them, look at one, verify, go back to one, delete.

    A checkpoint is the state of one shard at one moment. Most of its pages are in
    files of earlier ones, which it shares; `list` says how much is its own and
    how much would be free without it. A restore sets a damaged one aside, with
    the reason, and takes an older one.

    Examples:  holdfast checkpoint list file:///var/holdfast
               holdfast checkpoint verify hdfs://name-node/holdfast
               holdfast checkpoint show s3://bucket/holdfast talkers-0 12
    """


def read_settings(given: list[str] | None) -> dict[str, str]:
    """Of the store's client, from the command line."""
    pairs: dict[str, str] = {}
    for one in given or []:
        key, equals, value = one.partition("=")
        if not equals or not key:
            raise ConfigError("a --setting is not KEY=VALUE", detail=f"It starts with {key!r}.")
        pairs[key] = value
    return pairs


@contextmanager
def _service(url: str, settings: list[str] | None, limit_s: float) -> Iterator[IoService]:
    folder = Path(unquote(urlsplit(url).path)) if is_folder(url) else None
    if folder is not None and not folder.is_dir():  # a store that is empty would say the same as a name that is wrong
        raise ConfigError(
            f"there is no folder {folder}", detail=f"{url} names it.", hint="Give the store that the run was given."
        )
    service = IoService(open_store(url, read_settings(settings)), stall_s=limit_s, again_s=limit_s)
    try:
        yield service
    finally:
        service.close()


@app.command("list")
def list_command(
    store: StoreArgument,
    shard: Annotated[str | None, typer.Option(help="Only this shard.")] = None,
    setting: SettingOption = None,
    timeout: LimitOption = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Show all checkpoints of a store: how old, how large, how long they took, and what they share.

    own      bytes of files that were written for it
    shared   bytes that it needs of earlier checkpoints
    alone    bytes that nobody else needs: what deleting it would free

    Examples:  holdfast checkpoint list file:///var/holdfast
               holdfast checkpoint list hdfs://name-node/holdfast --shard talkers-0 --json
    """
    with _service(store, setting, timeout) as service:
        found = service.run(inspect.survey(asset_id(shard) if shard else None))
    if shard and not found.heads and not found.unreadable:
        raise ConfigError(f"the store has no checkpoints of {shard!r}", hint="Leave out --shard to see all.")
    told = [_told(head, entry, found) for _, head in sorted(found.heads.items()) for entry in head.entries]
    if as_json:
        heads = {name: _head_told(head, found) for name, head in sorted(found.heads.items())}
        say({"store": store, "shards": heads, "checkpoints": told, "unreadable": found.unreadable})
    else:
        _print_list(told, found)
    if found.unreadable:
        raise typer.Exit(1)


def _head_told(head: ShardHead, found: inspect.Survey) -> dict[str, Any]:
    orphans = found.orphans(head.shard)
    return {
        "deployment": head.deployment,
        "epoch": head.epoch,
        "held_by": head.holder,
        "restoring": head.restoring,
        "pins": head.pins,
        "unfinished_bytes": sum(found.sizes[key] for key in orphans),
        "bytes": sum(size for key, size in found.sizes.items() if inspect.is_of(key, head.shard)),
    }


def _told(head: ShardHead, entry: HeadEntry, found: inspect.Survey) -> dict[str, Any]:
    share = inspect.sharing(head, entry, found.sizes)
    return {
        "shard": head.shard,
        "number": entry.sequence,
        "epoch": entry.epoch,
        "age_s": max(0.0, round(time.time() - entry.taken_ms / 1000, 1)),
        "took_s": (entry.written_ms - entry.taken_ms) / 1000,
        "base": None if entry.base < 0 else entry.base,
        "state_bytes": entry.state_bytes,
        "own_bytes": share.own,
        "shared_bytes": share.shared,
        "alone_bytes": share.alone,
        "pins": sorted(name for name, at in head.pins.items() if at == entry.sequence),
        "set_aside": entry.aside,
    }


def _print_list(told: list[dict[str, Any]], found: inspect.Survey) -> None:
    console = table_console()
    if not told and not found.unreadable:
        console.print("There are no checkpoints.")
        return
    table = Table()
    right = ("number", "age", "took", "state", "own", "shared", "alone")
    for column in ("shard", *right, "builds on", "remarks"):
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for one in told:
        remarks = [f"kept as {name}" for name in one["pins"]] + (
            [f"set aside: {one['set_aside']}"] if one["set_aside"] else []
        )
        table.add_row(
            one["shard"], str(one["number"]), _span(one["age_s"]), f"{one['took_s']:.1f} s", _size(one["state_bytes"]),
            _size(one["own_bytes"]), _size(one["shared_bytes"]), _size(one["alone_bytes"]),
            "-" if one["base"] is None else str(one["base"]), "; ".join(remarks),
        )  # fmt: skip
    console.print(table)
    for shard, head in sorted(found.heads.items()):
        left = sum(found.sizes[key] for key in found.orphans(shard))
        if left:
            console.print(
                f"{shard}: {_size(left)} belong to no checkpoint: one is being written, or a writer has died."
            )
        if head.restoring:
            console.print(f"{shard} is being restored by {head.holder}.")
    for shard, why in sorted(found.unreadable.items()):
        console.print(f"{shard} cannot be read: {why}")


@app.command("show")
def show(
    store: StoreArgument,
    shard: ShardArgument,
    number: SequenceArgument = None,
    setting: SettingOption = None,
    timeout: LimitOption = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Show one checkpoint: where its shard stood, its files, and what the state must fit.

    Examples:  holdfast checkpoint show file:///var/holdfast talkers-0
               holdfast checkpoint show file:///var/holdfast talkers-0 12 --json
    """
    with _service(store, setting, timeout) as service:
        found = service.run(inspect.survey(asset_id(shard)))
        head = service.run(inspect.head_of(asset_id(shard)))
        entry = inspect.entry_of(head, number)
        manifest = service.run(read_manifest(head.shard, entry))
    told = {**_told(head, entry, found), **_manifest_told(manifest, found)}
    if as_json:
        say(told)
        return
    told["watermarks"] = {edge: moment(to_micros(at)) for edge, at in manifest.stand.watermarks.items()}
    for key, value in told.items():
        if key == "pins":
            typer.echo(f"pins: {', '.join(value) or 'none'}")
        elif isinstance(value, dict | list):
            typer.echo(f"{key}:")
            items = value.items() if isinstance(value, dict) else ((row["name"], _file_line(row)) for row in value)
            for name, one in items:
                typer.echo(f"  {name}: {one}")
        elif key == "set_aside":
            typer.echo(f"set_aside: {value or 'no'}")
        else:
            typer.echo(f"{key}: {_size(value) if key.endswith('_bytes') else value}")


def _file_line(row: dict[str, Any]) -> str:
    there = "missing" if row["bytes_there"] is None else _size(row["bytes_there"])
    return f"{there}, {row['pages_used']:,} of {row['pages']:,} pages used" if row["pages"] else there


def _manifest_told(manifest: CheckpointManifest, found: inspect.Survey) -> dict[str, Any]:
    stand, fit = manifest.stand, manifest.fit
    return {
        "operator": fit.operator,
        "deployment": fit.deployment,
        "fingerprint": f"{fit.fingerprint:016x}",
        "page_size": fit.page_bytes,
        "pages": manifest.pages,
        "suspended_ms": manifest.suspended_ns / 1e6,
        "positions": stand.positions,
        "watermarks": stand.watermarks,
        "outputs": {edge: f"{part.trimmed} to {part.next}" for edge, part in stand.outputs.items()},
        "batches": stand.batches,
        "files": inspect.files_of(manifest, found.sizes),
    }


@app.command("verify")
def verify(
    store: StoreArgument,
    shard: Annotated[str | None, typer.Option(help="Only this shard.")] = None,
    number: Annotated[int | None, typer.Option(help="Only this checkpoint; needs --shard.")] = None,
    setting: SettingOption = None,
    timeout: LimitOption = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Read every page of the checkpoints and compare checksums. Changes nothing; exit code 1 if one is damaged.

    Examples:  holdfast checkpoint verify file:///var/holdfast
               holdfast checkpoint verify s3://bucket/holdfast --shard talkers-0 --number 12
    """
    if number is not None and shard is None:
        raise ConfigError("--number needs --shard", hint="`holdfast checkpoint list` shows both.")
    told: list[dict[str, Any]] = []
    with _service(store, setting, timeout) as service:
        found = service.run(inspect.survey(asset_id(shard) if shard else None))
        if shard and not found.heads and not found.unreadable:
            raise ConfigError(f"the store has no checkpoints of {shard!r}", hint="Leave out --shard to verify all.")
        for name, head in sorted(found.heads.items()):
            for entry in [inspect.entry_of(head, number)] if number is not None else head.entries:
                began = time.monotonic()
                one = service.run(inspect.verify(head, entry))
                verdict = "collected meanwhile" if one.collected else one.why or "whole"
                line = {"shard": name, "number": entry.sequence, "verdict": verdict, "damaged": bool(one.why)}
                told.append({**line, "pages": one.pages, "took_s": round(time.monotonic() - began, 2)})
                if not as_json:
                    typer.echo(f"{name} {entry.sequence}: {verdict}" + (f" ({one.pages:,} pages)" if one.pages else ""))
        for name, why in sorted(found.unreadable.items()):
            told.append({"shard": name, "number": None, "verdict": why, "damaged": True, "pages": 0, "took_s": 0.0})
            if not as_json:
                typer.echo(f"{name}: {why}")
    if as_json:
        say({"store": store, "checkpoints": told})
    elif not told:
        typer.echo(f"there are no checkpoints in {store}")
    if any(one["damaged"] for one in told):
        raise typer.Exit(1)


@app.command("restore")
def restore(
    store: StoreArgument,
    shard: ShardArgument,
    number: Annotated[int, typer.Argument(help="Number of the checkpoint to go on from.")],
    setting: SettingOption = None,
    timeout: LimitOption = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Let a shard go on from an older checkpoint: newer ones are set aside, and the next restore takes this one.

    Stop the run first: a node that runs the shard adds newer checkpoints, and its own state is not changed by this.
    Then `holdfast run DIRECTORY` goes on from there, and the rows since are read from the log of the stages. It is
    refused where that would not give the same result again: if the shard has consumed rows of another shard since, if
    rows were set aside, or if a gap came. Every page of the checkpoint is read and checked first.

    Examples:  holdfast checkpoint restore file:///var/holdfast talkers-0 11
    """
    name = asset_id(shard)
    with _service(store, setting, timeout) as service:
        head = service.run(inspect.head_of(name))
        seen = service.run(inspect.verify(head, inspect.entry_of(head, number)))
        if seen.why or seen.collected:
            raise ConfigError(
                f"{shard} cannot go back to checkpoint {number}", detail=seen.why or "It was collected meanwhile."
            )
        _check_logged(service, name, head, number)
        entry, aside = service.run(go_back(name, number))
    if as_json:
        say({"shard": shard, "number": entry.sequence, "set_aside": list(aside)})
    elif aside:
        typer.echo(f"{shard} goes on from checkpoint {number}; set aside: {', '.join(map(str, sorted(aside)))}")
    else:
        typer.echo(f"{number} is the newest good checkpoint of {shard} already")


def _check_logged(service: IoService, shard: Asset, head: ShardHead, number: int) -> None:
    """What came after that checkpoint must still be in the logs of the stages; of footprints also what came after the
    oldest of them."""
    entry = inspect.entry_of(head, number)
    manifest = service.run(read_manifest(shard, entry))
    newest = service.run(read_manifest(shard, head.good[0])).stand.batches if head.good else {}
    for edge, batch in entry.batches.items():
        stage = asset_id(producer_stage(edge))
        first = service.run(batches.first_kept(manifest.fit.deployment, stage))
        if newest.get(edge, batch) > batch and (first is None or first > batch + 1):
            raise ConfigError(
                f"{shard} cannot go back to checkpoint {number} exactly",
                detail=f"Batches of {stage} after {batch} are not in its log any more. Nothing was changed.",
            )


@app.command("delete")
def delete(
    store: StoreArgument,
    shard: ShardArgument,
    numbers: Annotated[list[int], typer.Argument(metavar="NUMBER...", help="Numbers of the checkpoints to delete.")],
    force: Annotated[
        bool, typer.Option("--force", help="Also the newest good one, one that is kept by name, or during a restore.")
    ] = False,
    setting: SettingOption = None,
    timeout: LimitOption = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Delete checkpoints of a shard. Files that other checkpoints need stay.

    A running pipeline is not disturbed: if it builds on what was deleted, its next checkpoint is a full one.

    Examples:  holdfast checkpoint delete file:///var/holdfast talkers-0 11 12
    """
    with _service(store, setting, timeout) as service:
        before = service.run(inspect.survey(asset_id(shard)))
        gone = service.run(inspect.delete(asset_id(shard), tuple(numbers), force=force))
        after = service.run(inspect.survey(asset_id(shard)))
    freed = sum(size for key, size in before.sizes.items() if key not in after.sizes)
    if as_json:
        say({"deleted": list(gone), "freed_bytes": freed})
    else:
        typer.echo(f"deleted {', '.join(map(str, gone))}; {_size(freed)} are free")


def _size(nbytes: int) -> str:
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if nbytes >= factor:
            return f"{nbytes / factor:.1f} {unit}"
    return f"{nbytes} B"


def _span(seconds: float) -> str:
    for unit, factor in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * factor:
            return f"{seconds / factor:.0f} {unit}"
    return f"{seconds:.0f} s"

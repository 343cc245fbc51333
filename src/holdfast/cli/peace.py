"""`holdfast peace plan` and `calibrate`: what requests would get in a network model, and what to write into it."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from holdfast.errors import ConfigError
from holdfast.peace import Forecast, NetworkModel, forecast, read_model
from holdfast.runtime.config import size_bytes

from .calibrate import calibrate, check_sizes
from .checkpoint import SettingOption, read_settings
from .runs import JsonOption, say

app = typer.Typer(
    no_args_is_help=True,
    help="""Who may write to the store when, and where the replicas go.

    Both commands are for the file that the setting `network_model` names
    (docs/peace.md): `calibrate` measures what goes into it, `plan` shows what a
    set of writes would get.

    Examples:  holdfast peace calibrate hdfs://name-node/scratch
               holdfast peace plan net.toml --every 4
    """,
)
#: A model of 100,000 servers has some 3 MB.
MODEL_BYTES_MAX = 64_000_000
CHUNKS_MAX = 1_000_000


@app.command("plan")
def plan(
    model: Annotated[Path, typer.Argument(help="The network model, a TOML file.")],
    write: Annotated[
        list[str] | None, typer.Option(help="A request, SERVER=CHUNKS; they are served in this order (repeatable).")
    ] = None,
    every: Annotated[int | None, typer.Option(min=1, help="Every server wants to write this many chunks.")] = None,
    seed: Annotated[int, typer.Option(help="For choices between equally near servers.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """What these write requests would get: in which timestep each chunk starts, and through which servers it goes.

    Requests come at once, every write takes one timestep, and nobody fails.

    Examples:  holdfast peace plan net.toml --write n1=8 --write n4=8
               holdfast peace plan net.toml --every 4 --json
    """
    network = read_model(_read(model), str(model))
    requests = [_request(text) for text in write or []]
    requests += [(server, every) for server in network.servers] if every else []
    if not requests:
        raise ConfigError("there is nothing to plan", hint="Give --write SERVER=CHUNKS, or --every CHUNKS.")
    if sum(chunks for _, chunks in requests) > CHUNKS_MAX:
        raise ConfigError(f"more than {CHUNKS_MAX} chunks are too many to plan")
    unknown = next((server for server, _ in requests if server not in network.servers), None)
    if unknown is not None:
        raise ConfigError(
            f"the model has no server {unknown!r}", hint=f"It has {', '.join(list(network.servers)[:10])} ..."
        )
    found = forecast(network, requests, seed)
    if as_json:
        say(_as_json(found, requests))
    else:
        _print(found, requests, network)


@app.command("calibrate")
def calibrate_command(
    store: Annotated[str, typer.Argument(metavar="URL", help="The store: hdfs://name-node/path, s3://bucket/path.")],
    chunk: Annotated[str, typer.Option(help="Size of a chunk; nodes have the setting `peace_chunk`.")] = "64 MB",
    writers: Annotated[int, typer.Option(help="At most this many writers at once.")] = 8,
    setting: SettingOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure what this machine can send and what one data node can take, in chunks at a time.

    Writes chunks with 1, 2, 4, ... writers at once and deletes them. Run it where
    a node runs, while nothing else writes; what else uses network or disks counts
    in. For a store that cannot be told where to write (S3) only the total is
    measured: it is `receive` in the model's table `store`.

    Examples:  holdfast peace calibrate hdfs://name-node/scratch
               holdfast peace calibrate hdfs://name-node/scratch --writers 4 --json
    """
    nbytes = size_bytes(chunk, "chunk")
    check_sizes(nbytes, writers)
    with tempfile.TemporaryDirectory(prefix="holdfast-calibrate-") as scratch:
        found = calibrate(store, read_settings(setting), nbytes, writers, Path(scratch) / "store.log")
    if as_json:
        say(found)
        return
    for what, totals in (("sent from here", found["sent"]), ("taken by one data node", found.get("taken", {}))):
        for count, total in totals.items():
            typer.echo(f"{what}, {_count(count, 'writer')}: {total / 1e6:.1f} MB/s")
    typer.echo("")
    if "receive" in found:
        typer.echo(f"send = {found['send']}\nreceive = {found['receive']}")
        typer.echo(f"# a timestep is about {found['timestep_s']:.1f} s; a link gets what it carries in that time")
    else:
        typer.echo(f"# in [store], if this machine alone can use it up\nreceive = {found['send']}")


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > MODEL_BYTES_MAX:
            raise ConfigError("the network model is too large", detail=str(path))
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("cannot read the network model", detail=f"{path}: {error}") from error


def _request(text: str) -> tuple[str, int]:
    server, equals, chunks = text.rpartition("=")
    if not equals or not server or not (chunks.isascii() and chunks.isdigit()) or not 1 <= int(chunks) <= CHUNKS_MAX:
        raise ConfigError(f"--write: cannot read {text!r}", hint="Write a server and a number of chunks: n1=8.")
    return server, int(chunks)


def _as_json(found: Forecast, requests: list[tuple[str, int]]) -> dict[str, object]:
    return {
        "timesteps": found.timesteps,
        "requests": [{"writer": writer, "chunks": chunks} for writer, chunks in requests],
        "grants": [
            {"timestep": r.timestep, "request": r.request, "writer": r.writer, "chunk": r.chunk, "chain": r.chain}
            for r in found.rows
        ],
        "denied": [
            {"request": denied.request, "writer": denied.writer, "reason": denied.reason} for denied in found.denied
        ],
    }  # fmt: skip


def _print(found: Forecast, requests: list[tuple[str, int]], network: NetworkModel) -> None:
    """One line per request and timestep: large plans stay readable, and --json has every chunk by itself."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("timestep", "request", "writer", "chunks", "through"):
        shown.add_column(column, no_wrap=column != "through")
    together: dict[tuple[int, int], Counter[str]] = {}
    for row in found.rows:
        chain = " → ".join(row.chain) if row.chain else "wherever the store puts it"
        together.setdefault((row.timestep, row.request), Counter())[chain] += 1
    for (timestep, request), chains in together.items():
        told = ", ".join(chain if times == 1 else f"{times} x {chain}" for chain, times in chains.items())
        shown.add_row(str(timestep), str(request), requests[request][0], str(chains.total()), told)
    console = Console()
    console.print(shown, width=max(console.width, 60), crop=False)
    for denied in found.denied:
        typer.echo(f"denied: request {denied.request} of {denied.writer}: {denied.reason}")
    replicas = 0 if network.store else len(network.replicas)
    each = f", each on {_count(replicas, 'server')}" if replicas else ""
    typer.echo(f"{_count(len(found.rows), 'chunk')} in {_count(found.timesteps, 'timestep')}{each}")


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"

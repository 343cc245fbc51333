"""`holdfast log`: what the output logs of a run's nodes hold, whether they are whole, and their rows.

It reads the files that nodes of this machine have in the directory of the run, also of nodes that run or have crashed.
Nothing is changed, and nobody is asked.
"""

from __future__ import annotations

import difflib
import json
import math
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from holdfast.errors import ConfigError
from holdfast.model.block import Block
from holdfast.model.plan import to_core, to_micros
from holdfast.runtime.config import read_plan
from holdfast.runtime.disk.log_reader import LogReader, logs_in
from holdfast.runtime.net.rows import batches_of

from .runs import JsonOption, RunArgument, RunFile, find_run, say
from .tables import table_console
from .watch import moment, size

app = typer.Typer(no_args_is_help=True)

#: How often `tail --follow` looks again.
LOOK_S = 0.5

EdgeArgument = Annotated[str, typer.Argument(metavar="EDGE", help="An edge, as `inspect` shows it: talkers-0.0.")]
NodeOption = Annotated[str | None, typer.Option(help="Only this node.")]
EdgeOption = Annotated[str | None, typer.Option(help="Only this edge.")]
LinesOption = Annotated[bool, typer.Option("--json", help="One JSON object per line.")]


@app.callback()
def log() -> None:
    """Output logs: what nodes have put on disk because a consumer is away or slow.

    Every edge of a node has a log of its own. It grows while its consumers are
    behind, and its segments go when all of them have acknowledged what is in
    there: usually there is nothing to see. Reads files on this machine, also
    while the nodes run, and changes nothing.

    Examples:  holdfast log inspect
               holdfast log verify holdfast-run/netmon
               holdfast log dump talkers-0.0 --since 2026-01-01T12:00:00
               holdfast log tail talkers-0.0 --follow
    """


def _directories(run: RunFile, node: str | None, edge: str | None) -> list[tuple[str, Path]]:
    """(node, directory of a log), of all nodes that keep theirs in the directory of the run."""
    homes = sorted(path for path in (run.path / "nodes").glob("*") if path.is_dir())
    if not homes:
        raise ConfigError(
            "no node of this run keeps its files here",
            detail=f"There is nothing in {run.path / 'nodes'}.",
            hint="Nodes of other machines keep their logs there: call it on those.",
        )
    if node and node not in [home.name for home in homes]:
        raise ConfigError(
            f"no node {node!r} keeps its files here", hint=f"There is {', '.join(h.name for h in homes)}."
        )
    _check_edge(run, edge)
    found = [(home.name, path) for home in homes if node in (None, home.name) for path in logs_in(home / "spill")]
    return [(name, path) for name, path in found if edge in (None, path.name)]


def _check_edge(run: RunFile, edge: str | None) -> None:
    """A misspelled one would look like one whose consumers keep up."""
    try:
        known = read_plan(run.path / "plan.json").topology.producer
    except ConfigError:
        return  # without the plan nobody knows
    if edge is not None and edge not in known:
        near = ", ".join(difflib.get_close_matches(edge, known, 3) or sorted(known)[:3])
        raise ConfigError(
            f"no edge is named {edge!r}", hint=f"There are {near}{' and others' if len(known) > 3 else ''}."
        )


def _open(run: RunFile, node: str | None, edge: str) -> LogReader:
    found = _directories(run, node, edge)
    if not found:
        known = sorted({path.name for _, path in _directories(run, node, None)})
        hint = f"There are logs of {', '.join(known)}." if known else "No edge has one: all consumers keep up."
        raise ConfigError(f"there is no log of {edge!r}", hint=hint)
    if len(found) > 1:
        raise ConfigError(
            f"{len(found)} nodes have a log of {edge!r}",
            detail="A primary and its backup both have the rows.",
            hint=f"Give --node {' or --node '.join(name for name, _ in found)}.",
        )
    return LogReader(found[0][1])


@app.command("inspect")
def inspect(
    run: RunArgument = None, node: NodeOption = None, edge: EdgeOption = None, as_json: JsonOption = False
) -> None:
    """Show the logs: positions, event time, size, and what a crash has left.

    Examples:  holdfast log inspect
               holdfast log inspect --node n0 --json
    """
    found = find_run(run)
    told = [_told(name, path, all_of_it=False) for name, path in _directories(found, node, edge)]
    if as_json:
        say({"logs": told})
        return
    table = Table()
    right = ("segments", "entries", "from", "to", "size")
    for column in ("node", "edge", *right, "event time", "remarks"):
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for one in told:
        table.add_row(
            one["node"], one["edge"], str(one["segments"]), f"{one['entries']:,}", _number(one["from"]),
            _number(one["to"]), size(one["bytes"]), moment(one["time_us"]), "; ".join(_remarks(one)),
        )  # fmt: skip
    console = table_console()
    console.print(table if told else _none(edge))


@app.command("verify")
def verify(
    run: RunArgument = None, node: NodeOption = None, edge: EdgeOption = None, as_json: JsonOption = False
) -> None:
    """Read every entry of the logs and compare checksums. Changes nothing; exit code 1 if one is damaged.

    The torn end of a write that a crash has cut short is not damage: nobody was told that it was there.

    Examples:  holdfast log verify
               holdfast log verify --edge talkers-0.0 --json
    """
    found = find_run(run)
    told = [_told(name, path, all_of_it=True) for name, path in _directories(found, node, edge)]
    if as_json:
        say({"logs": told})
    for one in told if not as_json else ():
        verdict = f"damaged: {one['damage']}" if one["damage"] else "whole"
        rest = "; ".join(remark for remark in _remarks(one) if not remark.startswith("damaged"))
        typer.echo(f"{one['node']} {one['edge']}: {verdict} ({one['entries']:,} entries{'; ' if rest else ''}{rest})")
    if not told and not as_json:
        typer.echo(_none(edge))
    if any(one["damage"] for one in told):
        raise typer.Exit(1)


def _none(edge: str | None) -> str:
    return f"There is no log of {edge}: its consumers keep up." if edge else "There are no logs: all consumers keep up."


def _told(name: str, path: Path, *, all_of_it: bool) -> dict[str, Any]:
    reader = LogReader(path, all_of_it=all_of_it)
    log, entries = reader.log, reader.entries()
    reader.close()
    last = entries[-1][1] if entries else None
    return {
        "node": name,
        "edge": reader.edge,
        "segments": len(log.segments),
        "entries": len(entries),
        "from": entries[0][1].start if entries else None,
        "to": last.end if last else None,
        "time_us": to_micros(last.time) if last else None,
        "bytes": reader.bytes,
        "torn_bytes": sum(found.torn for found in log.segments if not found.damage),
        "unindexed": sum(found.unindexed for found in log.segments) if not all_of_it else None,
        "passed_over": [list(one) for one in log.passed_over],
        "damage": log.damage,
    }


def _remarks(one: dict[str, Any]) -> list[str]:
    found = [f"damaged: {one['damage']}"] if one["damage"] else []
    found += [f"{one['torn_bytes']:,} bytes of an unfinished write"] if one["torn_bytes"] else []
    found += [f"{one['unindexed']:,} entries are not in the index"] if one["unindexed"] else []
    return found + [f"{start:,} to {end:,} were not needed on disk" for start, end in one["passed_over"]]


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


@app.command("dump")
def dump(
    edge: EdgeArgument,
    run: RunArgument = None,
    node: NodeOption = None,
    start: Annotated[int | None, typer.Option("--from", min=0, help="From the block with this position on.")] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="From the first block on that may have rows of this event time (UTC)."),
    ] = None,
    rows: Annotated[int | None, typer.Option("--max", min=1, help="At most this many rows.")] = None,
    as_json: LinesOption = False,
) -> None:
    """Print the rows of a log, from its beginning, a position or an event time on.

    Exit code 1, after all that is whole, if the log is damaged. With --json: decimals and times are text, and so are
    "NaN" and "Infinity"; bytes are hexadecimal digits.

    Examples:  holdfast log dump talkers-0.0 --max 20
               holdfast log dump talkers-0.0 --from 120000 --json
               holdfast log dump talkers-0.0 --since 2026-01-01T12:00:00
    """
    reader = _open(find_run(run), node, edge)
    left = rows
    for block in reader.blocks(start, _event_time(since) if since else None):
        left = _print_rows(block, left, as_json)
        if left == 0:
            return


def _event_time(text: str) -> int:
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"--since {text!r} is not a time", hint="Write it as 2026-01-01T12:00:00.") from None
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    return to_core(round(when.timestamp() * 1e6))


def _print_rows(block: Block, left: int | None, as_json: bool) -> int | None:
    """How many may still be printed; None: any number."""
    for batch in batches_of(block.rows):
        part = batch if left is None else batch.slice(0, left)
        for row in part.to_pylist():
            typer.echo(json.dumps(_plain(row)) if as_json else ", ".join(f"{key}={row[key]}" for key in row))
        left = None if left is None else left - part.num_rows
        if left == 0:
            break
    return left


def _plain(value: Any) -> Any:
    """A value as JSON has it: what no number of JSON is, decimals and times as text; bytes in hexadecimal digits."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, bytes):
        return value.hex()
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


@app.command("tail")
def tail(
    edge: EdgeArgument,
    run: RunArgument = None,
    node: NodeOption = None,
    last: Annotated[int, typer.Option("-n", min=0, help="Begin with this many entries.")] = 10,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as the log grows, until Ctrl-C.")] = False,
    seconds: Annotated[float | None, typer.Option(min=0, help="With --follow: for this long.")] = None,
    as_json: LinesOption = False,
) -> None:
    """Print the last entries of a log, a line each: positions, rows, watermark; and those that come, with --follow.

    Examples:  holdfast log tail talkers-0.0
               holdfast log tail talkers-0.0 --follow --json
    """
    reader = _open(find_run(run), node, edge)
    until = time.monotonic() + seconds if seconds is not None else None
    shown = reader.entries()[-last:] if last else []
    at = reader.entries()[-1][1].end if reader.entries() else 0
    while True:
        for number, entry in shown:
            _print_entry(reader.block(number, entry), as_json)
            at = entry.end
        if reader.log.damage:
            raise reader.damaged(reader.log.damage)
        if not follow or (until is not None and time.monotonic() >= until):
            return
        time.sleep(LOOK_S)
        reader.look()
        shown = reader.entries(at)


def _print_entry(block: Block, as_json: bool) -> None:
    watermark = to_micros(block.watermark)
    if as_json:
        told = {"from": block.start, "to": block.end, "rows": len(block.rows), "watermark_us": watermark}
        typer.echo(json.dumps(told))
    else:
        typer.echo(f"{block.start:,} to {block.end:,}: {len(block.rows):,} rows, watermark {moment(watermark)}")

"""`holdfast status` and `holdfast events`: what runs where now, and what happened."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from holdfast.errors import ConfigError, PeerError
from holdfast.model.ids import asset_id, is_ledger, name_of, stage_of
from holdfast.runtime.node.events import KINDS

from .runs import JsonOption, RunArgument, RunFile, find_run, say
from .story import EventLogs, sentence

#: Roles of copies, as nodes tell them.
RUNS, BACKS_UP = ("primary", "yielding"), ("backup", "joining")
#: How often `--watch` and `--follow` look again.
LOOK_S = 1.0


def status(
    run: RunArgument = None,
    watch: Annotated[bool, typer.Option("--watch", help="Keep looking, once a second, until Ctrl-C.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Who runs what: members, shards with primary and backup, stages, queues.

    Examples:  holdfast status
               holdfast status holdfast-run/netmon --watch
               holdfast status --json | jq .shards
    """
    found = find_run(run)
    if as_json:
        say(cluster_status(found))
        return
    console = Console()
    if not watch:
        console.print(status_view(found.pipeline, cluster_status(found)))
        return
    with Live(console=console, refresh_per_second=4) as live:
        while True:
            try:
                live.update(status_view(found.pipeline, cluster_status(found)))
            except PeerError as error:  # preparing, or gone for a moment: keep looking
                live.update(Text(str(error), style="yellow"))
            time.sleep(LOOK_S)


def cluster_status(run: RunFile) -> dict[str, Any]:
    """One view of the cluster: the newest record, and what each node says of the shards and stages it has."""
    answers, preparing = run.statuses()
    if not answers:
        return run.ask("status")  # says why nobody answers
    newest = max(answers.values(), key=lambda answer: answer["version"])
    absent = sorted(set(run.endpoints) - set(newest["members"]))
    return {
        "pipeline": run.pipeline,
        "record": {name: newest[name] for name in ("version", "members", "places", "draining")},
        "coordinator": newest["coordinator"],
        "shards": shards_of(newest["places"], answers),
        "unprotected": [f"{name} is not a member" for name in absent] + unprotected(newest["places"], answers),
        "nodes": answers,
        "preparing": preparing,
        "silent": sorted(set(run.endpoints) - set(answers) - set(preparing)),
    }


def shards_of(places: dict[str, Any], nodes: dict[str, Any]) -> dict[str, Any]:
    """Every shard: where it is, and its figures as its primary tells them, if that answers."""
    found = {}
    for asset, place in sorted(places.items()):
        if not place["stage"] and not is_ledger(asset_id(asset)):
            told = nodes.get(name_of(place["primary"] or ""), {}).get("shards", {}).get(asset, {})
            image = nodes.get(name_of(place["backup"] or ""), {}).get("shards", {}).get(asset, {})
            found[asset] = {**told, **{seat: place[seat] for seat in ("primary", "backup", "joining", "epoch", "mode")}}
            found[asset]["backup_load_percent"] = image.get("load_percent")
    return found


def unprotected(places: dict[str, Any], nodes: dict[str, Any]) -> list[str]:
    """Why one more failure would be felt: shards without a backup, stages whose standby is not ready, a line each."""
    found = []
    for asset, place in sorted(places.items()):
        if not place["stage"]:
            if not place["primary"] or (place["wants_backup"] and (not place["backup"] or place["joining"])):
                found.append(f"{asset} has no backup")
        elif place["backup"] and asset not in nodes.get(name_of(place["primary"] or ""), {}).get("finished", []):
            driver = nodes.get(name_of(place["backup"]), {}).get("drivers", {}).get(asset, {})
            if (driver.get("last") or {}).get("event") != "ready":
                found.append(f"the standby of {asset} on {name_of(place['backup'])} is not ready yet")
    return found


def status_view(pipeline: str, status: dict[str, Any]) -> Group:
    """The same as tables."""
    record, nodes = status["record"], status["nodes"]
    shards = Table(title=f"{pipeline}: record {record['version']}, coordinator {status['coordinator']}")
    for column in (
        "shard", "primary", "backup", "mode", "epoch", "load", "backup's", "rows in", "rows out", "queued", "state",
        "watermark",
    ):  # fmt: skip
        shards.add_column(column, justify="left" if column in ("shard", "primary", "backup", "mode") else "right")
    stages = Table()
    for column in ("stage", "runs on", "stands by", "epoch", "state", "batch", "rows/s", "late"):
        stages.add_column(column, justify="left" if column in ("stage", "runs on", "stands by", "state") else "right")
    for asset, place in sorted(record["places"].items()):
        if is_ledger(asset):
            port = stage_of(asset)
            if port not in record["places"]:  # its driver is a program of the user's own
                told = nodes.get(name_of(place["primary"] or ""), {}).get("ledgers", {}).get(port, {})
                batch = told.get("batch", -1)
                state = "written" if batch >= 0 else "waits for rows"
                stages.add_row(port, "your program", "-", "-", state, _number(batch if batch >= 0 else None), "-", "-")
            continue
        primary = place["primary"]
        home = nodes.get(name_of(primary or ""), {})
        if place["stage"]:
            last = home.get("drivers", {}).get(asset, {}).get("last") or {}
            progress = last.get("progress") or {}
            state = "finished" if asset in home.get("finished", []) else last.get("event", "starting")
            state = "failing" if asset in home.get("failures", {}) else state
            stages.add_row(
                asset,
                primary or "-",
                place["backup"] or "-",
                str(place["epoch"]),
                state,
                *(_number(progress.get(name)) for name in ("batchId", "processedRowsPerSecond", "numLateRows")),
            )
            continue
        told = status["shards"][asset]
        backup = place["backup"] or (f"({place['joining']})" if place["joining"] else "none")
        queued = sum(q["next"] - q["trimmed"] for q in told["outputs"].values()) if "outputs" in told else None
        cells = [_number(value) for value in (told.get("rows_in"), told.get("rows_out"), queued)]
        shards.add_row(
            asset,
            primary or "LOST",
            backup,
            place["mode"],
            str(place["epoch"]),
            percent(told.get("load_percent")),
            percent(told.get("backup_load_percent")),
            *cells,
            size(told.get("state_bytes")),
            moment(told.get("watermark_us")),
            style="bold red" if not primary else "yellow" if place["wants_backup"] and not place["backup"] else "",
        )
    lines: list[Any] = [shards, stages, nodes_table(status)]
    if status["preparing"]:
        lines.append(Text(f"{', '.join(status['preparing'])} still prepare", style="yellow"))
    lines += [Text(line, style="bold red") for line in failing(status)]
    if status["unprotected"]:
        reasons = status["unprotected"]
        more = f" (and {len(reasons) - 3} more)" if len(reasons) > 3 else ""
        lines.append(Text(f"one more failure would be felt: {'; '.join(reasons[:3])}{more}", style="yellow"))
    if status["silent"]:
        lines.append(Text(f"no answer from {', '.join(status['silent'])}", style="yellow"))
    for name, answer in sorted(nodes.items()):
        for shard, told in sorted(answer.get("shards", {}).items()):
            if told["failed"]:
                lines.append(Text(f"{shard} on {name} stands still: {told['failed']}", style="bold red"))
    return Group(*lines)


def nodes_table(status: dict[str, Any]) -> Table:
    """What each node has, and how busy that keeps it: in percent of one core, over about the last minute."""
    table = Table()
    for column in ("node", "runs", "backs up", "load of shards", "of stages"):
        table.add_column(column, justify="left" if column == "node" else "right")
    for name, told in sorted(status["nodes"].items()):
        shards = told.get("shards", {}).values()
        count = [sum(shard.get("role") in roles for shard in shards) for roles in (RUNS, BACKS_UP)]
        known = [shard["load_percent"] for shard in shards if shard.get("load_percent") is not None]
        stages = told.get("stage_load_percent", {}).values()
        loads = [percent(sum(found)) if found else "-" for found in (known, stages)]
        table.add_row(name, *map(str, count), *loads)
    return table


def percent(load: float | None) -> str:
    """Of a core. A tenth matters only where there is little."""
    return "-" if load is None else f"{load:.1f}%" if load < 10 else f"{load:.0f}%"


def failing(status: dict[str, Any]) -> list[str]:
    """Why stages do not run, a line each: their drivers fail where they were last started."""
    found = []
    for stage, place in sorted(status["record"]["places"].items()):
        name = name_of(place["primary"] or "")
        failure = status["nodes"].get(name, {}).get("failures", {}).get(stage) if place["stage"] else None
        if failure:
            often = f", {failure['times']} times in a row" if failure["times"] > 1 else ""
            found.append(f"{stage} failed on {name}{often}: {failure['text']}")
    return found


def _number(value: object) -> str:
    return "-" if value is None else f"{value:,.0f}" if isinstance(value, float) else f"{value:,}"  # type: ignore[str-format]


def size(count: float | None) -> str:
    if count is None:
        return "-"
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def moment(micros: int | None) -> str:
    if micros is None or micros < -(1 << 62):
        return "-"
    if micros > 1 << 62:
        return "end"
    return time.strftime("%H:%M:%S", time.gmtime(micros / 1e6))


def events(
    run: RunArgument = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as it happens, until Ctrl-C.")] = False,
    kind: Annotated[
        list[str] | None, typer.Option(help="Only events of this kind, promotion say (repeatable).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The events as they are, one JSON object per line.")] = False,
) -> None:
    """Tell what happened: failures, promotions, captures, gaps, lateness, stage lives, in the order of their time.

    Examples:  holdfast events
               holdfast events --kind promotion --kind suspicion
               holdfast events --follow
    """
    import json

    found = find_run(run)
    if unknown := sorted(set(kind or ()) - KINDS):
        raise ConfigError(f"no event is of kind {unknown[0]!r}", hint=f"Kinds are {', '.join(sorted(KINDS))}.")
    logs = EventLogs(found.path)
    while True:
        for event in logs.news():
            if not kind or event.get("event") in kind:
                typer.echo(json.dumps(event) if as_json else sentence(event))
        if not follow:
            return
        time.sleep(LOOK_S)

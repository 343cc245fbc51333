"""`holdfast status` and `holdfast events`: what runs where now, and what happened."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any, NamedTuple

import msgspec
import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from holdfast.errors import ConfigError, PeerError
from holdfast.model.ids import asset_id, is_ledger, name_of, operator_of, stage_of
from holdfast.model.plan import to_micros
from holdfast.model.protection import MODES
from holdfast.pipeline import durations
from holdfast.pipeline.explain import counted
from holdfast.pipeline.gaps import all_gaps
from holdfast.runtime.node.events import KINDS

from .runs import JsonOption, RunArgument, RunFile, find_run, say
from .stalls import stalls_view
from .story import EventLogs, StoryTeller, sentence
from .tables import WIDE, fitted, table_console

#: Roles of copies, as nodes tell them.
RUNS, BACKS_UP = ("primary", "yielding"), ("backup", "joining", "twin")
#: A watermark beyond this is that of a stream that has ended; one that is this far ahead of the clock is told.
END_US, AHEAD_US = 1 << 62, 60_000_000
#: Columns that a terminal which is too narrow does without, the first ones first. `--json` has all of them.
LESS_OF_SHARDS = ("epoch", "backup's", "load", "state", "rows out", "rows in", "queued", "mode", "watermark")
LESS_OF_STAGES = ("epoch", "watermark", "rows/s", "batch", "bad", "late")
LESS_OF_NODES = ("memory of stages", "of stages", "load of shards", "backs up", "runs")
#: How often `--watch` and `--follow` look again.
LOOK_S = 1.0


def status(
    run: RunArgument = None,
    watch: Annotated[bool, typer.Option("--watch", help="Keep looking, once a second, until Ctrl-C.")] = False,
    stalls: Annotated[
        bool, typer.Option("--stalls", help="Instead: how often nodes had no CPU since they came up, and for how long.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Who runs what: members, shards with primary and backup, stages, queues.

    Examples:  holdfast status
               holdfast status holdfast-run/netmon --watch
               holdfast status --json | jq .shards
               holdfast status --stalls
    """
    found = find_run(run)
    if stalls:
        told = found.ask_all("stalls")
        if not told:
            found.ask("stalls")  # says why nobody answers
        if as_json:
            say(told)
        else:
            table_console().print(stalls_view(found.pipeline, told))
        return
    if as_json:
        say(cluster_status(found))
        return
    console = table_console()
    if not watch:
        console.print(status_view(found.pipeline, cluster_status(found), console.width))
        return
    with Live(console=console, refresh_per_second=4) as live:
        while True:
            try:
                live.update(status_view(found.pipeline, cluster_status(found), console.width, live=True))
            except PeerError as error:  # preparing, or gone for a moment: keep looking
                live.update(Text(str(error), style="yellow"))
            time.sleep(LOOK_S)


def cluster_status(run: RunFile) -> dict[str, Any]:
    """One view of the cluster: the newest record, and what each node says of the shards and stages it has."""
    answers, preparing = run.statuses()
    if not answers:
        run.ask("status")  # says why nobody answers
        answers, preparing = run.statuses()
    if not answers:
        raise PeerError(f"the nodes of {run.pipeline!r} answer too slowly", hint="Is the machine busy? Ask again.")
    newest = max(answers.values(), key=lambda answer: answer["version"])
    absent = sorted(set(run.endpoints) - set(newest["members"]))
    return {
        "pipeline": run.pipeline,
        "record": {name: newest[name] for name in ("version", "members", "places", "draining")},
        "coordinator": newest["coordinator"],
        "shards": shards_of(newest["places"], answers),
        "stages": stages_of(newest["places"], answers),
        "gaps": [msgspec.to_builtins(gap) for gap in all_gaps(run.path)],
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
            found[asset]["stands_in"] = image.get("stands_in", False)
    return found


def stages_of(places: dict[str, Any], nodes: dict[str, Any]) -> dict[str, Any]:
    """What the ledger of every stage says, a port's too: last batch, watermark, rows late and bad so far."""
    ledgers = {asset: place for asset, place in sorted(places.items()) if is_ledger(asset_id(asset))}
    told = {
        stage_of(asset_id(asset)): nodes.get(name_of(place["primary"] or ""), {}).get("ledgers", {})
        for asset, place in ledgers.items()
    }
    return {stage: ledger[stage] for stage, ledger in told.items() if stage in ledger}


def unprotected(places: dict[str, Any], nodes: dict[str, Any]) -> list[str]:
    """Why one more failure would be felt: shards without a backup, stages whose standby is not ready, a line each."""
    found = []
    for asset, place in sorted(places.items()):
        if not place["stage"]:
            if not place["primary"] or (place["wants_backup"] and (not place["backup"] or place["joining"])):
                found.append(f"{asset} has no backup")
        elif place["backup"] and asset not in nodes.get(name_of(place["primary"] or ""), {}).get("finished", []):
            driver = nodes.get(name_of(place["backup"]), {}).get("drivers", {}).get(asset, {})
            if driver.get("warmth") != "warm":
                found.append(f"the standby of {asset} on {name_of(place['backup'])} is {standby(driver)}")
    return found


def standby(driver: dict[str, Any]) -> str:
    """How warm a standby is, and about what a take-over would cost now."""
    cost = f", {driver['take_over_s']:g} s" if "take_over_s" in driver else ""
    return f"{driver.get('warmth', 'cold')}{cost}"


def status_view(pipeline: str, status: dict[str, Any], width: int = WIDE, *, live: bool = False) -> Group:
    """The same as tables. A live view is cut at the end of the screen, so what matters most is at its top."""
    record, nodes = status["record"], status["nodes"]
    shards = Table(title=f"{pipeline}: record {record['version']}, coordinator {status['coordinator']}")
    for column in (
        "shard", "primary", "backup", "mode", "epoch", "load", "backup's", "rows in", "rows out", "queued", "state",
        "watermark",
    ):  # fmt: skip
        shards.add_column(column, justify="left" if column in ("shard", "primary", "backup", "mode") else "right")
    stages = Table()
    for column in (
        "stage", "runs on", "stands by", "epoch", "state", "batch", "rows/s", "watermark", "late", "bad",
    ):  # fmt: skip
        stages.add_column(column, justify="left" if column in ("stage", "runs on", "stands by", "state") else "right")
    for asset, place in sorted(record["places"].items()):
        if is_ledger(asset):
            port = stage_of(asset)
            if port not in record["places"]:  # its driver is a program of the user's own
                batch = status["stages"].get(port, {}).get("batch", -1)
                state = "written" if batch >= 0 else "waits for rows"
                cells = (_number(batch if batch >= 0 else None), "-", *_aside(status, port))
                stages.add_row(port, "your program", "-", "-", state, *cells)
            continue
        primary = place["primary"]
        home = nodes.get(name_of(primary or ""), {})
        if place["stage"]:
            last = home.get("drivers", {}).get(asset, {}).get("last") or {}
            progress = last.get("progress") or {}
            state = "finished" if asset in home.get("finished", []) else last.get("event", "starting")
            state = "failing" if asset in home.get("failures", {}) else state
            guard = nodes.get(name_of(place["backup"] or ""), {}).get("drivers", {}).get(asset, {})
            stages.add_row(
                asset,
                primary or "-",
                f"{place['backup']} ({standby(guard)})" if place["backup"] else "-",
                str(place["epoch"]),
                state,
                *(_number(progress.get(name)) for name in ("batchId", "processedRowsPerSecond")),
                *_aside(status, asset),
            )
            continue
        told = status["shards"][asset]
        backup = place["backup"] or (f"({place['joining']})" if place["joining"] else "none")
        queued = sum(q["next"] - q["trimmed"] for q in told["outputs"].values()) if "outputs" in told else None
        cells = [_number(value) for value in (told.get("rows_in"), told.get("rows_out"), queued)]
        shards.add_row(
            asset,
            primary or "LOST",
            _with_role(backup, place, told),
            place["mode"],
            str(place["epoch"]),
            percent(told.get("load_percent")),
            percent(told.get("backup_load_percent")),
            *cells,
            size(told.get("state_bytes")),
            moment(told.get("watermark_us")),
            style="bold red" if not primary else "yellow" if place["wants_backup"] and not place["backup"] else "",
        )
    tables = [
        fitted(shards, width, LESS_OF_SHARDS),
        fitted(stages, width, LESS_OF_STAGES),
        fitted(nodes_table(status), width, LESS_OF_NODES),
    ]
    lines = notices(status)
    return Group(*lines, *tables[1:], tables[0]) if live else Group(*tables, *lines)


def _with_role(backup: str, place: dict[str, Any], told: dict[str, Any]) -> str:
    if place["backup"] and MODES[place["mode"]].runs_beside:
        return f"{backup}, runs too"
    if place["backup"] and MODES[place["mode"]].keeps_input:
        return f"{backup}, keeps input"
    return f"{backup}, stands in" if told.get("stands_in") else backup


def notices(status: dict[str, Any]) -> list[Text]:
    """What a person should know beside the tables, a line each."""
    nodes, lines = status["nodes"], []
    if status["preparing"]:
        lines.append(Text(f"{', '.join(status['preparing'])} still prepare", style="yellow"))
    lines += [Text(line, style="bold red") for line in failing(status)]
    lines += [Text(told["waits_for"], style="bold red") for _, told in sorted(nodes.items()) if told.get("waits_for")]
    lines += [Text(line, style="yellow") for line in (*ahead(status, time.time()), *gap_lines(status["gaps"]))]
    if status["unprotected"]:
        reasons = status["unprotected"]
        more = f" (and {len(reasons) - 3} more)" if len(reasons) > 3 else ""
        lines.append(Text(f"one more failure would be felt: {'; '.join(reasons[:3])}{more}", style="yellow"))
    if status["silent"]:
        lines.append(Text(f"no answer from {', '.join(status['silent'])}", style="yellow"))
    for name, answer in sorted(nodes.items()):
        for shard, told in sorted(answer.get("shards", {}).items()):
            if told.get("rows_aside"):
                folder = f"dead/{operator_of(shard)}"
                text = f"{shard} on {name} has set aside {told['rows_aside']:,} rows: {folder} has them"
                lines.append(Text(text, style="yellow"))
            if told["failed"]:
                lines.append(Text(standing_still(shard, name, told), style="bold red"))
    return lines + [Text(line, style="yellow") for line in skip_lines(status["shards"])]


def standing_still(shard: str, node: str, told: dict[str, Any]) -> str:
    """Why, for how long, and what to do about it."""
    stands = told.get("stands")
    if not stands:
        return f"{shard} on {node} stands still: {told['failed']}"
    how = "has waited" if stands["tries_again"] else "has stood still"
    return f"{shard} on {node} {how} for {stands['seconds']:,.0f} s: {told['failed']} {stands['way_on']}"


def skip_lines(shards: dict[str, Any]) -> list[str]:
    """Batches that copies of a shard pass over, as the record says."""
    return [
        f"{shard} passes over {skip['number']} of {skip['source']}: dead/{operator_of(asset_id(shard))} has its rows"
        for shard, told in sorted(shards.items())
        for skip in told.get("skips", ())
    ]


def nodes_table(status: dict[str, Any]) -> Table:
    """What each node has, how busy that keeps it (in percent of one core, over about the last minute), and what its
    failure would cost now."""
    table = Table()
    for column in ("node", "runs", "backs up", "load of shards", "of stages", "memory of stages", "if it failed now"):
        table.add_column(column, justify="left" if column in ("node", "if it failed now") else "right")
    for name, told in sorted(status["nodes"].items()):
        shards = told.get("shards", {}).values()
        count = [sum(shard.get("role") in roles for shard in shards) for roles in (RUNS, BACKS_UP)]
        known = [shard["load_percent"] for shard in shards if shard.get("load_percent") is not None]
        stages = told.get("stage_load_percent", {}).values()
        loads = [percent(sum(found)) if found else "-" for found in (known, stages)]
        memory = sum(told.get("stage_memory_bytes", {}).values())
        table.add_row(name, *map(str, count), *loads, size(memory) if memory else "-", if_it_failed(told))
    return table


def if_it_failed(told: dict[str, Any]) -> str:
    """Which nodes would recover what it runs, beside each other, and how long each would take: the worst first."""
    segments = told.get("recovery", {}).get("segments", {})
    order = sorted(segments, key=lambda name: (-segments[name]["expected_ms"], name))
    found = [
        f"{segments[n]['expected_ms']:,.0f} ms on {n} ({counted(len(segments[n]['shards']), 'shard')})" for n in order
    ]
    more = f", {len(found) - 3} more" if len(found) > 3 else ""
    return ", ".join(found[:3]) + more if found else "-"


def percent(load: float | None) -> str:
    """Of a core. A tenth matters only where there is little."""
    return "-" if load is None else f"{load:.1f}%" if load < 10 else f"{load:.0f}%"


class Failure(NamedTuple):
    """Why a stage does not run: its driver fails where it was last started."""

    stage: str
    node: str
    times: int
    text: str

    def __str__(self) -> str:
        often = f", {self.times} times in a row" if self.times > 1 else ""
        return f"{self.stage} failed on {self.node}{often}: {self.text}"


def failures_of(places: dict[str, Any], nodes: dict[str, Any]) -> list[Failure]:
    found = []
    for stage, place in sorted(places.items()):
        name = name_of(place["primary"] or "")
        failure = nodes.get(name, {}).get("failures", {}).get(stage) if place["stage"] else None
        if failure:
            found.append(Failure(stage, name, failure["times"], failure["text"]))
    return found


def failing(status: dict[str, Any]) -> list[str]:
    """The same, a line each."""
    return [str(failure) for failure in failures_of(status["record"]["places"], status["nodes"])]


def ahead(status: dict[str, Any], now_s: float) -> list[str]:
    """Stages whose watermark is ahead of the clock, a line each: nothing else says why rows are late."""
    found = []
    for stage, told in status["stages"].items():
        by_us = told["watermark_us"] - int(now_s * 1e6)
        if by_us > AHEAD_US and told["watermark_us"] < END_US:
            by = durations.about(by_us)
            found.append(f"the watermark of {stage} is {by} ahead of the clock: rows before it are late")
    return found


def gap_lines(gaps: list[dict[str, Any]]) -> list[str]:
    """What sinks have come past, the latest three: results that a failure in mode `none` has cost."""
    found = [
        f"{gap['consumer']}: windows of {gap['edge']} between {moment(to_micros(gap['start'])) or 'the beginning'} and "
        f"{moment(to_micros(gap['to']))} may be missing (mode none)"
        for gap in sorted(gaps, key=lambda gap: gap["to"])
    ]
    return ([f"{len(found) - 3} earlier gaps"] if len(found) > 3 else []) + found[-3:]


def _aside(status: dict[str, Any], stage: str) -> tuple[str, str, str]:
    told = status["stages"].get(stage, {})
    return moment(told.get("watermark_us")), _number(told.get("late")), _number(told.get("bad"))


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
    if micros > END_US:
        return "end"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(micros / 1e6))


def events(
    run: RunArgument = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as it happens, until Ctrl-C.")] = False,
    kind: Annotated[
        list[str] | None, typer.Option(help="Only events of this kind, promotion say (repeatable).")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Routine events, too, and what several nodes say once for each.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="All events as they are, one JSON object per line.")] = False,
) -> None:
    """Tell what happened, in the order of its time: failures, take-overs, moves, warnings, starts, ends, switches.

    Routine events (batches, captures, checkpoints, records) are left out, and the
    last line says how many; --all and --json have them.

    Examples:  holdfast events
               holdfast events --kind promotion --kind suspicion
               holdfast events --follow
               holdfast events --all
    """
    found = find_run(run)
    if unknown := sorted(set(kind or ()) - KINDS):
        raise ConfigError(f"no event is of kind {unknown[0]!r}", hint=f"Kinds are {', '.join(sorted(KINDS))}.")
    logs, told, first = EventLogs(found.path), StoryTeller(routine=bool(kind)), True
    while True:
        for event in logs.news():
            if kind and event.get("event") not in kind:
                continue
            if as_json:
                typer.echo(json.dumps(event))
            elif everything or told.tells(event):
                typer.echo(sentence(event))
        if first and (line := told.last_line()):
            typer.echo(line)
        first = False
        if not follow:
            return
        time.sleep(LOOK_S)

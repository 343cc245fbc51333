"""`holdfast sim`: run the cluster in a virtual world, under faults, and check every promise after every event.

Thin: it draws or reads schedules, runs them and prints. What a schedule is and what is checked lives in
`holdfast.sim`. Exit codes: 0 all held, 1 a violation, 2 a scenario or flag that cannot work.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from holdfast.errors import ConfigError
from holdfast.sim.runner import Summary, faults_text, keep, retrace, run_all, shrink
from holdfast.sim.scenario import parse_scenario
from holdfast.sim.simulation import Outcome, Setup
from holdfast.sim.special import real_time
from holdfast.sim.story import Trace
from holdfast.sim.swarm import swarm_setup

from .progress import StepLine

TRACE_TAIL = 60


def sim(
    seeds: Annotated[int, typer.Option(help="How many random fault schedules.", min=1)] = 100,
    first: Annotated[int, typer.Option(help="The first seed: with --seeds 1, replays one schedule.")] = 0,
    scenario: Annotated[Path | None, typer.Option(help="A TOML scenario instead of random schedules.")] = None,
    nodes: Annotated[int, typer.Option(help="Nodes of every schedule (0: drawn, 3 to 10).", min=0)] = 0,
    shards: Annotated[
        int, typer.Option(help="Shards of the first layer (0: drawn, 1 to 4; now and then 9).", min=0)
    ] = 0,
    faults: Annotated[str, typer.Option(help="Only these faults of a schedule, by number: '0,3'; 'none'.")] = "",
    trace: Annotated[bool, typer.Option("--trace", help="Print what was decided, line by line.")] = False,
    messages: Annotated[bool, typer.Option("--messages", help="With --trace: every message too.")] = False,
    story: Annotated[str, typer.Option(help="The trace of one shard, edge, stage or node: 'u1', 'u1.0', 'n2'.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
    in_real_time: Annotated[
        bool, typer.Option("--real-time", help="Schedules of real-time stages, whose drivers die often.")
    ] = False,
) -> None:
    """Run fault schedules; stop at the first violation, shrink it, and say how to replay it.

    Runs the nodes' own code in a virtual world: crashes, freezes, cuts, lost and
    doubled messages, full disks, all from one seed. After every step it checks
    that no row is lost or doubled. Exit code 1: a violation was found.

    Examples:  holdfast sim --seeds 1000
               holdfast sim --seeds 1 --first 42 --trace
               holdfast sim --scenario mine.toml --story u0
    """
    try:
        setup_of = _schedules(scenario, first, nodes, shards, faults, in_real_time)
        first_setup = setup_of(0)
    except (ConfigError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    if trace or story:
        raise typer.Exit(_show(first_setup, messages=messages, story=story, as_json=as_json))
    count = seeds if scenario is None else 1
    with StepLine(quiet=as_json) as progress:
        summary = run_all(map(setup_of, range(count)), lambda done: progress.now(f"{done:,} of {count:,} schedules"))
    if as_json:
        typer.echo(msgspec.json.encode({**msgspec.structs.asdict(summary), "per_minute": round(summary.per_minute)}))
    else:
        _tell(summary)
        if summary.first is not None:
            _tell_violation(setup_of(summary.schedules - 1), summary.first, scenario, nodes, shards)
    raise typer.Exit(1 if summary.violations else 0)


def _schedules(
    scenario: Path | None, first: int, nodes: int, shards: int, faults: str, in_real_time: bool
) -> Callable[[int], Setup]:
    """The i-th schedule of this command: drawn when it is needed."""
    fixed = None
    if scenario is not None:
        try:
            text = scenario.read_text()
        except (OSError, UnicodeDecodeError) as error:
            why = "it does not exist" if isinstance(error, FileNotFoundError) else str(error)
            hint = "Give a scenario as TOML; docs/core/simulator.md says what is in one."
            raise ConfigError(f"scenario {scenario} cannot be read: {why}", hint=hint) from None
        fixed = parse_scenario(text.partition("\n--- trace\n")[0], scenario.name)

    def setup_of(i: int) -> Setup:
        setup = fixed or swarm_setup(first + i, nodes, shards)
        setup = real_time(setup) if in_real_time else setup
        if not faults:
            return setup
        try:
            return keep(setup, () if faults == "none" else tuple(int(n) for n in faults.split(",")))
        except (ValueError, IndexError) as error:
            raise ConfigError("--faults names faults that the schedule does not have", detail=faults) from error

    return setup_of


def _show(setup: Setup, *, messages: bool, story: str, as_json: bool) -> int:
    outcome, lines = retrace(setup, messages=messages)
    shown = lines.story(story) if story else lines.lines
    if as_json:
        typer.echo(msgspec.json.encode({"outcome": outcome, "trace": shown}))
    else:
        for line in shown:
            typer.echo(line)
        typer.echo(outcome.violation or "all held")
    return 1 if outcome.violation else 0


def _tell(summary: Summary) -> None:
    n = summary.schedules
    typer.echo(
        f"{n} schedules, {summary.violations} violations, {summary.excused} left the promise (safety checked only)\n"
        f"each, on average: {summary.events / n:.0f} events, {summary.messages / n:.0f} messages, "
        f"{summary.faults / n:.1f} faults, {summary.promotions / n:.1f} promotions, {summary.records / n:.1f} records, "
        f"{summary.rows / n:.0f} rows ({summary.late / n:.0f} late), {summary.results / n:.0f} results, "
        f"{summary.checks / n:.0f} checks, {summary.virtual_s / n:.1f} s virtual\n"
        f"period of instability: {summary.instability_ms_mean:.0f} ms on average, "
        f"{summary.instability_ms_max:.0f} at most\n"
        f"{summary.cpu_s:.1f} s of one core ({summary.wall_s:.1f} s wall): {summary.per_minute:.0f} schedules a minute"
    )


def _tell_violation(setup: Setup, outcome: Outcome, scenario: Path | None, nodes: int, shards: int) -> None:
    needed = shrink(setup, outcome.rule)
    small = keep(setup, needed)
    again, trace = retrace(small)
    typer.echo(f"\nVIOLATION at seed {setup.seed}: {outcome.violation}")
    typer.echo(f"needs {len(needed)} of {len(setup.faults)} faults:")
    for line in faults_text(small.faults):
        typer.echo(line)
    _tail(trace)
    typer.echo(again.violation)
    typer.echo("replay: " + replay_command(setup, needed, scenario, nodes, shards))


def _tail(trace: Trace) -> None:
    for line in trace.lines[-TRACE_TAIL:]:
        typer.echo(line)


def replay_command(setup: Setup, needed: tuple[int, ...], scenario: Path | None, nodes: int, shards: int) -> str:
    chosen = ",".join(map(str, needed)) or "none"
    if scenario is not None:
        return f"holdfast sim --scenario {scenario} --faults {chosen} --trace"
    shape = (f" --nodes {nodes}" if nodes else "") + (f" --shards {shards}" if shards else "")
    shape += " --real-time" if setup.partitions else ""
    return f"holdfast sim --seeds 1 --first {setup.seed}{shape} --faults {chosen} --trace"

"""`holdfast prescribe`: read parameters, rank the strategies, print a table, a plot or JSON.

Parameters come from flags, from `--file`, from `--from` (measured), in that order of precedence. Nothing is computed
here: see `holdfast.prescriber`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from holdfast.errors import ConfigError
from holdfast.prescriber import Prescription, Prices, Scenario, prescribe, sensitivity, shard
from holdfast.prescriber.measure import build, read_parameters, read_value
from holdfast.prescriber.recommend import known
from holdfast.prescriber.units import (
    show_duration,
    show_factor,
    show_fraction,
    show_size,
)


def _from_run(directory: Path, operator: str | None) -> dict[str, object]:
    """Look at a running pipeline for a few seconds."""
    from datetime import UTC, datetime

    from holdfast.cli.runs import read_run
    from holdfast.cli.story import read_events
    from holdfast.runtime.client.measured import look, mtbf_s
    from holdfast.runtime.config import read_plan

    run = read_run(directory)
    observed = (datetime.now(UTC) - datetime.fromisoformat(run.started)).total_seconds()
    mtbf = mtbf_s(read_events(directory), len(run.endpoints), observed)
    found = {m.operator: m for m in look(read_plan(directory / "plan.json"), lambda: run.ask_all("status"), mtbf)}
    chosen = operator or max(found, key=lambda name: found[name].checkpoint_size)
    if chosen not in found:
        raise ConfigError(f"operator {chosen!r} took in nothing", hint=f"Measured: {', '.join(sorted(found))}.")
    Console(stderr=True).print(
        f"measured on {run.pipeline}/{chosen}: {_told(found[chosen].parameters())}", highlight=False
    )
    return dict(found[chosen].parameters())


def _told(parameters: dict[str, float]) -> str:
    show = {"input_rate": lambda v: show_size(v) + "/s", "checkpoint_size": show_size, "churn": lambda v: f"{v:.3g}"}
    return ", ".join(f"{name} {show.get(name, show_duration)(value)}" for name, value in parameters.items())


def _merge(flags: dict[str, object], files: list[str], measured: dict[str, object]) -> dict[str, object]:
    merged: dict[str, object] = dict(measured)
    for path in files:
        merged.update(read_parameters(path))
    given = {name for name, value in flags.items() if value is not None}
    if ("durability" in given) != ("durability_span" in given) and not (
        {"durability", "durability_span"} <= given | set(merged)
    ):
        raise ConfigError("--durability and --durability-span belong together", hint="Give both or neither.")
    merged.update({name: value for name, value in flags.items() if value is not None})
    return {name: read_value(name, value) for name, value in merged.items()}


def table(found: Prescription) -> Table:
    """The ranking as people read it; the reasons are sentences, and stand below it (`reasons`)."""
    money = any(strategy.money is not None for strategy in found.strategies)
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("strategy", "copies", "RR", "cost", "every", "bandwidth", *(["money/month"] if money else [])):
        shown.add_column(column, no_wrap=True)
    for strategy in found.strategies:
        if not strategy.feasible:
            cells = [strategy.name, str(strategy.copies), "-", "-", "-", "-", *(["-"] if money else [])]
            shown.add_row(*cells, style="dim")
            continue
        interval = strategy.checkpoint_interval
        cells = [
            strategy.name, str(strategy.copies), show_factor(known(strategy.rr)), f"{known(strategy.cost):.3f}x",
            "-" if interval is None else show_duration(interval), show_size(known(strategy.bandwidth)) + "/s",
            *([f"{strategy.money:,.2f}"] if money else []),
        ]  # fmt: skip
        best = found.winner is not None and strategy.name == found.winner.name
        shown.add_row(*cells, style="bold" if best else "")
    return shown


def reasons(found: Prescription) -> Table:
    """Why each strategy stands where it stands, in lines as wide as the terminal is."""
    shown = Table.grid(padding=(0, 2), pad_edge=False)
    shown.add_column(no_wrap=True)
    shown.add_column(min_width=20)
    for strategy in found.strategies:
        shown.add_row(strategy.name, strategy.why, style="" if strategy.feasible else "dim")
    return shown


def _show(console: Console, shown: Table) -> None:
    """Nothing is cut off: where the terminal is too narrow for a table, its lines are longer than that."""
    console.print(shown, width=max(console.width, console.measure(shown).minimum), crop=False, soft_wrap=True)


def _what_if(changes: list[str], parameters: dict[str, object]) -> dict[str, object]:
    changed = dict(parameters)
    for change in changes:
        name, equals, value = change.partition("=")
        name = name.strip().removeprefix("--").replace("-", "_")
        if not equals:
            raise ConfigError(f"--what-if: cannot read {change!r}", hint="Write a parameter and a value: window=1h.")
        changed[name] = read_value(name, value)
    return changed


def _turns_text(scenario: Scenario, choices: dict[str, object]) -> list[str]:
    lines = []
    for turn in sensitivity(scenario, **choices):
        show = {"sla": show_fraction, "checkpoint_size": show_size}.get(turn.parameter, show_duration)
        value = show_size(turn.value) + "/s" if turn.parameter == "input_rate" else show(turn.value)
        lines.append(f"{turn.parameter} {'above' if turn.factor > 1 else 'below'} {value}: {turn.winner}")
    return lines or ["no single parameter changes the choice within a factor of 10,000"]


def prescribe_command(
    sla: Annotated[str | None, typer.Option(help="uptime wanted, 99.99% or 0.9999")] = None,
    window: Annotated[str | None, typer.Option(help="window of the query, 10min")] = None,
    checkpoint_size: Annotated[str | None, typer.Option(help="size of its state, 300MB")] = None,
    input_rate: Annotated[str | None, typer.Option(help="its input, 2MB/s")] = None,
    mtbf: Annotated[str | None, typer.Option(help="mean time between failures of one node, 30d")] = None,
    replicas: Annotated[str | None, typer.Option(help="copies in resilient storage (3)")] = None,
    copies: Annotated[str | None, typer.Option(help="fix the number of running copies")] = None,
    checkpoint_interval: Annotated[str | None, typer.Option(help="fix the checkpoint interval")] = None,
    rr_max: Annotated[str | None, typer.Option(help="most recovery bandwidth to be found, over the input rate")] = None,
    durability: Annotated[str | None, typer.Option(help="chance that on_demand keeps the state (99.999%)")] = None,
    durability_span: Annotated[str | None, typer.Option(help="the time that --durability is for (10y)")] = None,
    checkpoint_spread: Annotated[str | None, typer.Option(help="sizes vary by ± this share (0)")] = None,
    churn: Annotated[str | None, typer.Option(help="state rewritten per byte of input (1)")] = None,
    models: Annotated[str, typer.Option(help="exact, or published: the formulas as the paper prints them")] = "exact",
    file: Annotated[str | None, typer.Option(help="parameters from a JSON or TOML file; flags overrule")] = None,
    from_: Annotated[
        str | None,
        typer.Option("--from", help="measured parameters: a JSON file, or the directory of a running pipeline"),
    ] = None,
    operator: Annotated[
        str | None, typer.Option(help="with --from RUN: which operator (the one with the most state)")
    ] = None,
    shards: Annotated[int, typer.Option(help="into how many shards the query is cut")] = 1,
    price_network: Annotated[float, typer.Option(help="per MB/s and month")] = 0.0,
    price_cpu: Annotated[float, typer.Option(help="per copy at input rate and month")] = 0.0,
    price_storage: Annotated[float, typer.Option(help="per GB and month")] = 0.0,
    price_memory: Annotated[float, typer.Option(help="per GB and month")] = 0.0,
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="a strategy may win that loses output")
    ] = False,
    what_if: Annotated[list[str] | None, typer.Option(help="change a parameter: window=1h (repeatable)")] = None,
    show_sensitivity: Annotated[bool, typer.Option("--sensitivity", help="what would change this choice")] = False,
    plot: Annotated[str | None, typer.Option(help="draw cost and RR over the SLA into this PNG")] = None,
    sweep: Annotated[str | None, typer.Option(help="one scenario per line of a CSV, ranked on Spark")] = None,
    out: Annotated[str | None, typer.Option(help="where --sweep writes its rows (CSV); default: stdout")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Which resiliency strategy meets the SLA at the least cost.

    Needs no Spark and no cluster, but for --sweep and --from RUN. RR is the
    recovery bandwidth over the input rate; cost is over that of running without
    resiliency.

    Examples:  holdfast prescribe --sla 99.99% --window 10min --input-rate 2MB/s
               holdfast prescribe --from holdfast-run/netmon --sla 99.99% --what-if window=1h
               holdfast prescribe --file parameters.toml --sensitivity --json
    """
    flags: dict[str, object] = {
        "sla": sla, "window": window, "checkpoint_size": checkpoint_size, "input_rate": input_rate, "mtbf": mtbf,
        "replicas": replicas, "copies": copies, "checkpoint_interval": checkpoint_interval, "rr_max": rr_max,
        "durability": durability, "durability_span": durability_span, "checkpoint_spread": checkpoint_spread,
        "churn": churn,
    }  # fmt: skip
    if sweep is not None:
        others = {
            "--file": file, "--from": from_, "--operator": operator, "--what-if": what_if, "--plot": plot,
            "--shards": shards != 1, "--price-network": price_network, "--price-cpu": price_cpu,
            "--price-storage": price_storage, "--price-memory": price_memory, "--allow-missing": allow_missing,
            "--sensitivity": show_sensitivity, "--json": as_json,
        }  # fmt: skip
        _sweep(sweep, out, models, flags, [flag for flag, given in others.items() if given])
        return
    if out is not None:
        raise ConfigError("--out belongs to --sweep")
    if operator is not None and not (from_ and Path(from_).is_dir()):
        raise ConfigError("--operator belongs to --from RUN", hint="Give the directory of a run that is running.")
    if plot is not None and not Path(plot).absolute().parent.is_dir():
        raise ConfigError(f"cannot write {plot}: no such directory")
    measured = _from_run(Path(from_), operator) if from_ and Path(from_).is_dir() else {}
    files = [path for path in (from_ if not measured else None, file) if path is not None]
    parameters = _merge(flags, files, measured)
    prices = Prices(network=price_network, cpu=price_cpu, storage=price_storage, memory=price_memory)
    fixed: dict[str, object] = {"models": models, "allow_missing": allow_missing}
    results = [_rank("", parameters, shards, prices, fixed, show_sensitivity, plot)]
    if what_if:
        label = "what if " + ", ".join(what_if)
        results.append(_rank(label, _what_if(what_if, parameters), shards, prices, fixed, show_sensitivity, None))
    _print(results, as_json)


def _rank(
    label: str,
    values: dict[str, object],
    shards: int,
    prices: Prices,
    fixed: dict[str, object],
    turns: bool,
    plot: str | None,
) -> tuple[str, Prescription, list[str]]:
    """One ranking under its label, with what would change it if `turns`; drawn into the file `plot` if given."""
    scenario, choices = build(values)
    scenario, choices = shard(scenario, shards), {**choices, **fixed}
    found = prescribe(scenario, prices=prices if prices != Prices() else None, **choices)  # type: ignore[arg-type]
    if plot is not None:
        from holdfast.prescriber.plots import plot_over_sla

        plot_over_sla(scenario, plot, choices)
    return label, found, _turns_text(scenario, choices) if turns else []


def _print(results: list[tuple[str, Prescription, list[str]]], as_json: bool) -> None:
    if as_json:
        first = results[0][1].as_json()
        if results[0][2]:
            first["sensitivity"] = results[0][2]
        if len(results) > 1:
            first["what_if"] = results[1][1].as_json()
        print(json.dumps(first, indent=2, allow_nan=False))
        return
    console = Console()
    for label, found, turns in results:
        if label:
            console.print(f"\n[bold]{label}[/bold]")
        _show(console, table(found))
        _show(console, reasons(found))
        console.print(found.sentence, highlight=False)
        for line in turns:
            console.print("  " + line, highlight=False)


def _sweep(path: str, out: str | None, models: str, flags: dict[str, object], others: list[str]) -> None:
    given = ["--" + name.replace("_", "-") for name, value in flags.items() if value is not None]
    if given:
        raise ConfigError(f"--sweep takes all parameters from {path}", detail=f"{given[0]} was given too")
    if others:
        raise ConfigError(f"--sweep does not take {others[0]}", hint="It takes --out and --models, and writes CSV.")
    from holdfast.prescriber.sweep import sweep_file

    sweep_file(path, out, models=models)

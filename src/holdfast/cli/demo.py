"""`holdfast demo`: the whole promise in about five minutes. Four nodes, traffic, kill -9 now and then, and an audit.

Now and then a node is killed; the demo shows how long its output paused, measured by a guest that follows the stream,
and at the end recomputes everything with plain Spark in batch and compares row by row.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from holdfast.errors import ConfigError, HoldfastError
from holdfast.model.ids import is_ledger, name_of
from holdfast.pipeline.explain import counted
from holdfast.runtime.client.probe import Probe

from .alone import INTERRUPTED
from .control import finish_run
from .progress import StepLine
from .run import until_told
from .runs import JsonOption, say
from .start import NODES_MAX, LocalRun, RunOptions, start_run
from .story import read_events, sentence, write_event
from .verify import verify_run
from .watch import cluster_status

#: How long the first rows may take to come out: a JVM starts, Spark compiles its first plan.
FIRST_ROWS_LIMIT_S = 180.0
PROTECTED_LIMIT_S = 120.0
#: After a kill, so long is looked for the pause it left.
LOOK_AFTER_S = 4.0


def demo(
    seconds: Annotated[int, typer.Option(help="How long traffic flows, at the least.", min=10)] = 60,
    kills: Annotated[int, typer.Option(help="How many nodes are killed in that time.", min=0)] = 4,
    nodes: Annotated[int, typer.Option(help="How many nodes.", min=3, max=NODES_MAX)] = 4,
    seed: Annotated[int, typer.Option(help="Which nodes are killed, and when.")] = 1,
    directory: Annotated[Path | None, typer.Option("--dir", help="Keep the run here (default: under /tmp).")] = None,
    standby: Annotated[bool, typer.Option(help="Keep a warm Spark driver of every stage on a second node.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Watch nodes die and the output go on; ends with an audit that nothing was lost or doubled.

    Examples:  holdfast demo
               holdfast demo --seconds 120 --kills 8
               holdfast demo --json
    """
    console = Console(stderr=True, quiet=as_json)
    home = (directory or Path(tempfile.mkdtemp(prefix="holdfast-demo-"))).resolve()
    if (home / "run").exists():
        raise ConfigError(f"{home} holds an earlier demo", hint="Remove it, or give another --dir.")
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{home} cannot be used", detail=str(error), hint="Give another --dir.") from None
    os.environ["HOLDFAST_OUT"] = str(home / "out")
    where = escape(str(home))
    console.print(f"[bold]Holdfast demo[/bold]: {nodes} nodes, {kills} kills in {seconds} s; everything is in {where}")
    file = _example(home)
    options = RunOptions(nodes=nodes, directory=home / "run", standby=standby, restart_s=3.0)
    with until_told() as told:
        with StepLine(console, keeps=True) as progress:
            started = start_run(file, options, lambda line: progress.at(f"  {line}"), told)
        try:
            report = _show(started, seconds, kills, random.Random(seed), told, console)
        finally:
            started.stop()
        if told.is_set():
            raise typer.Exit(INTERRUPTED)
        with StepLine(console, keeps=True) as progress:
            report["verify"] = verify_run(started.run, told, lambda line: progress.at(f"  {line}"))
    _tell(report, console)
    if as_json:
        say(report)
    if directory is None and report["verify"]["holds"]:
        shutil.rmtree(home, ignore_errors=True)
    raise typer.Exit(0 if report["verify"]["holds"] else 1)


def _example(home: Path) -> Path:
    """The netmon pipeline that comes with the package, in a file of its own."""
    from importlib.resources import files

    source = files("holdfast.examples").joinpath("netmon.py")
    target = home / "netmon.py"
    target.write_text(source.read_text())
    return target


def _show(
    started: LocalRun, seconds: int, kills: int, rng: random.Random, told: threading.Event, console: Console
) -> dict[str, Any]:
    run = started.run
    if told.is_set():
        return {}  # nodes that were not waited for answer nothing
    with StepLine(console, keeps=True) as progress:
        progress.at("  waiting for the first rows (Spark starts)")
        probe = _first_rows(started, told)
    began = time.time()
    quiet_s = seconds / (kills + 1)
    found: list[dict[str, Any]] = []
    for number in range(kills):
        if told.wait(quiet_s * rng.uniform(0.8, 1.0)):
            return {}
        _wait_until_protected(started, told, console)
        usual = _usual(probe)
        victim, roles = _victim(started, rng)
        at = time.time()
        pid = started.nodes.kill(victim)
        write_event(run.path, "kill", f"kill -9 of {victim} (pid {pid}), which held {roles}", victim=victim)
        told.wait(LOOK_AFTER_S)
        gap = _settled_gap(probe, at, told)
        found.append({"kill": number + 1, "node": victim, "held": roles, "gap_s": round(gap, 3), "usual_s": usual})
        console.print(
            f"  kill -9 {victim} ({roles}): output paused for [bold]{gap * 1000:.0f} ms[/bold]"
            f" (without a failure {usual * 1000:.0f} ms)"
        )
    if told.wait(max(0.0, began + seconds - time.time())):
        return {}
    probe.close()
    with StepLine(console, keeps=True) as progress:
        progress.at("  finishing: all windows are closed and written")
        finish_run(run, limit_s=300.0, told=told)
    events = [e for e in read_events(run.path) if e.get("event") in ("kill", "promotion", "stable", "lost")]
    return {"seconds": seconds, "kills": found, "story": [sentence(e) for e in events]}


def _first_rows(started: LocalRun, told: threading.Event) -> Probe:
    deadline = time.monotonic() + FIRST_ROWS_LIMIT_S
    operator = started.plan.operators[0].name
    probe = Probe(started.plan, operator, started.run.endpoints, started.run.security)
    while not probe.rows():
        if told.is_set():
            raise typer.Exit(INTERRUPTED)
        if time.monotonic() > deadline:
            raise HoldfastError(
                f"no rows after {FIRST_ROWS_LIMIT_S:.0f} s",
                hint=f"See {started.run.dir}/nodes/*/logs and `holdfast events {started.run.dir}`.",
            )
        time.sleep(0.2)
    return probe


def _wait_until_protected(started: LocalRun, told: threading.Event, console: Console) -> None:
    """One failure at a time: until every node is back, every shard has a backup and every stage a warm standby."""
    began, reasons = time.monotonic(), ["nobody answers"]
    with console.status("waiting until everything is protected") as shown:
        while reasons and not told.wait(0.2):
            if time.monotonic() > began + PROTECTED_LIMIT_S:
                console.print(
                    f"  still unprotected after {PROTECTED_LIMIT_S:.0f} s: {'; '.join(reasons)}", markup=False
                )
                return
            with contextlib.suppress(HoldfastError):
                reasons = cluster_status(started.run)["unprotected"]
            shown.update(f"waiting until everything is protected: {escape('; '.join(reasons[:1]))}")


def _usual(probe: Probe) -> float:
    """The longest pause of the last seconds, without a failure."""
    now = time.time()
    return round(probe.gap(now - 3.0, now), 3)


def _settled_gap(probe: Probe, at: float, told: threading.Event) -> float:
    """The pause that a kill left, once every edge has gone on."""
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline and not told.is_set():
        with_rows = probe.resumed(at)
        if with_rows:
            break
        time.sleep(0.1)
    return probe.gap(at, at + 1.0)


def _victim(started: LocalRun, rng: random.Random) -> tuple[str, str]:
    """A living node, and what it holds."""
    places = cluster_status(started.run)["record"]["places"]
    victim = rng.choice(sorted(started.nodes.alive()))
    mine = [asset for asset, place in places.items() if name_of(place["primary"] or "") == victim]
    shards = sum(not places[a]["stage"] and not is_ledger(a) for a in mine)
    stages = [a for a in mine if places[a]["stage"]]
    return victim, counted(shards, "shard") + (f" and Spark stage {', '.join(stages)}" if stages else "")


def _tell(report: dict[str, Any], console: Console) -> None:
    table = Table(title="what each kill cost")
    for column in ("kill", "node", "held", "output paused", "without a failure"):
        table.add_column(column)
    for kill in report["kills"]:
        cells = (f"{kill['gap_s'] * 1000:.0f} ms", f"{kill['usual_s'] * 1000:.0f} ms")
        table.add_row(str(kill["kill"]), kill["node"], kill["held"], *cells)
    console.print(table)
    verdict = report["verify"]
    style = "bold green" if verdict["holds"] else "bold red"
    console.print(verdict["text"], style=style, highlight=False, markup=False)

"""`holdfast node` and `holdfast submit`: nodes on machines of their own, and a pipeline for them."""

from __future__ import annotations

import os
import tempfile
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from holdfast.errors import ConfigError
from holdfast.model.ids import Name
from holdfast.model.plan import Plan
from holdfast.runtime.config import load_cluster, load_config
from holdfast.runtime.disk.journal import write_whole

from .join import join_run
from .planning import plan_file
from .progress import StepLine
from .runs import JsonOption, RunFile, say

ConfigOption = Annotated[Path, typer.Option("--config", help="The node's TOML file; see docs/configuration.md.")]

#: A node that is about to run the plan it found on its disk answers only after so long, or when it runs it (`Server`).
PLAN_LIMIT_S = 40.0


def node(
    node_name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Name of this node (or --name).")] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="The node's TOML file; see docs/configuration.md.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of this node, if not in the file.")] = None,
    directory: Annotated[
        str | None, typer.Option("--dir", help="Directory of the pipeline, if not in the file.")
    ] = None,
    join: Annotated[
        Path | None,
        typer.Option("--join", metavar="RUN", help="Join the run in this directory; its nodes need not know the name."),
    ] = None,
    endpoint: Annotated[
        str, typer.Option(help="With --join: where this node listens (default: its socket, or what the file says).")
    ] = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="What happens, as it happens: one JSON object per line.")
    ] = False,
) -> None:
    """Run one node in the foreground, until it is told to stop. It waits for a pipeline if there is none yet.

    Every node needs the same endpoints and the same secret file; beyond one
    machine also TLS. A node that joins a run (--join) finds endpoints and secret
    in the directory of the run. Exit code 65: its journal is damaged; 66: it has
    left the cluster. After either it must not be started again.

    Examples:  holdfast node --config node.toml
               holdfast node --config cluster.toml --name n2 --json
               holdfast node n4 --join holdfast-run/netmon
               holdfast node n4 --join /mnt/netmon --endpoint grpc+tls://10.0.0.5:7100
    """
    name = node_name or name
    if join is not None:
        settings = join_run(name or "", join, config, endpoint, directory)
    elif config is None or endpoint:
        raise ConfigError(
            "--endpoint belongs to --join" if endpoint else "a node needs a file with its settings, or a run to join",
            hint="Give --config FILE, or --join with the directory of a run.",
        )
    else:
        given = {key: value for key, value in (("name", name), ("dir", directory)) if value}
        settings = load_config(config, **given)
    from holdfast.runtime.node.__main__ import serve

    serve(settings, as_json)


def submit(
    file: Annotated[Path, typer.Argument(help="Python file that makes the pipeline.")],
    config: ConfigOption,
    as_json: JsonOption = False,
) -> None:
    """Plan a pipeline here and let the nodes run it.

    The file is sent to the nodes, which run it to find the stages' functions:
    whoever has the cluster's secret can run code on its machines, as with
    spark-submit. What it imports must be installed there. If some nodes run this
    pipeline already, those that still wait are given it too. Nodes that run
    another one refuse.

    Examples:  holdfast submit netmon.py --config cluster.toml
    """
    settings = load_cluster(config)
    directory = Path(settings.dir).resolve()
    with tempfile.TemporaryDirectory(prefix="holdfast-plan-") as scratch:
        query = f"{file.stem}-{uuid.uuid4().hex[:12]}"
        with StepLine(quiet=as_json) as progress:
            progress.now(f"planning {file}")
            plan, warnings = plan_file(file, Path(scratch), query=query, conf=settings.conf, latency=settings.latency)
    for warning in warnings:
        typer.echo(f"warning: {warning}", err=True)
    run = RunFile(
        pipeline=plan.pipeline,
        source=str(file.resolve()),
        cwd=os.getcwd(),
        endpoints=settings.endpoints,
        secret_file=str(Path(settings.secret_file or directory / "secret").resolve()),
        tls=settings.tls,
        conf=settings.conf,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        dir=str(directory),
    )
    first, running = _nodes(run)
    if running:
        plan = _that_runs(plan, running)
    run.deployment = plan.query
    described = msgspec.json.format(msgspec.json.encode(run), indent=2)
    files = {"pipeline.py": file.read_text(), "run.json": described.decode()}
    # one node alone, which passes it on: should it refuse, the next one might take what the others do not run
    caller = run.caller()
    answer = caller.call(first, "submit", {"plan": msgspec.to_builtins(plan), "files": files}, timeout=180.0)
    caller.close()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not running or not (directory / "run.json").exists():
            write_whole(directory / "run.json", described)  # for the commands that are called here; it may hold keys
    except OSError as error:  # the nodes have it all the same
        hint = "status, events and stop work where that directory is"
        typer.echo(f"warning: it was submitted, but {directory} cannot be written here ({error}): {hint}", err=True)
    told = sorted(answer["told"])
    if as_json:
        already = sorted(running)
        say({"pipeline": plan.pipeline, "query": plan.query, "nodes": told, "already": already, "run": str(directory)})
        return
    where = ", ".join(told)
    if running:
        late = [name for name in told if name not in running]
        where = f"{', '.join(sorted(running))} already{', now on ' + ', '.join(late) + ' too' if late else ''}"
    typer.echo(f"{plan.pipeline} runs on {where}; holdfast status {directory}")


def _nodes(run: RunFile) -> tuple[Name, dict[Name, Plan]]:
    """A node that answers, and what each of them runs already."""
    up = [name for name, _ in _answers(run, "ping", 5.0)]
    up = up or [run.ask("ping")["name"]]  # which says who does not answer, and why
    reached = msgspec.structs.replace(run, endpoints={name: run.endpoints[name] for name in up})
    plans = _answers(reached, "plan", PLAN_LIMIT_S)
    return min(up), {name: msgspec.json.decode(answer, type=Plan) for name, answer in plans}


def _answers(run: RunFile, action: str, timeout_s: float) -> list[tuple[Name, bytes]]:
    caller = run.caller()
    try:
        return [(n, answer) for n, answer in caller.call_all(action, timeout=timeout_s) if isinstance(answer, bytes)]
    finally:
        caller.close()


def _that_runs(plan: Plan, running: dict[Name, Plan]) -> Plan:
    """The plan that nodes run already, if it is this one but for its deployment."""
    known = running[min(running)]
    planned = msgspec.json.decode(msgspec.json.encode(plan), type=Plan)  # as nodes got theirs: tuples are lists there
    if all(one == msgspec.structs.replace(planned, query=known.query) for one in running.values()):
        return known
    which = "; ".join(f"{name} runs {one.pipeline!r} ({one.query})" for name, one in sorted(running.items()))
    raise ConfigError(
        "the nodes run another pipeline, or this one with another plan",
        detail=f"{which}.",
        hint="Stop it first (holdfast stop), and submit this one to another directory.",
    )

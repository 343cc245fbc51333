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

from holdfast.runtime.config import load_cluster
from holdfast.runtime.disk import write_whole

from .planning import plan_file
from .runs import JsonOption, Run, say

ConfigOption = Annotated[Path, typer.Option("--config", help="The node's TOML file; see docs/configuration.md.")]


def node(
    config: ConfigOption,
    name: Annotated[str | None, typer.Option(help="Name of this node, if not in the file.")] = None,
    directory: Annotated[
        str | None, typer.Option("--dir", help="Directory of the pipeline, if not in the file.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="What happens, as it happens: one JSON object per line.")
    ] = False,
) -> None:
    """Run one node in the foreground, until it is told to stop. It waits for a pipeline if there is none yet.

    Every node needs the same endpoints and the same secret file; beyond one machine also TLS.

    Examples:  holdfast node --config node.toml
               holdfast node --config cluster.toml --name n2 --json
    """
    from holdfast.runtime.node import main

    arguments = ["--config", str(config)]
    if name:
        arguments += ["--name", name]
    if directory:
        arguments += ["--dir", directory]
    if as_json:
        arguments.append("--json")
    raise typer.Exit(main(arguments))


def submit(
    file: Annotated[Path, typer.Argument(help="Python file that makes the pipeline.")],
    config: ConfigOption,
    as_json: JsonOption = False,
) -> None:
    """Plan a pipeline here and let the nodes run it.

    The file is sent to the nodes, which run it to find the stages' functions: whoever has the cluster's secret can
    run code on its machines, as with spark-submit. What it imports must be installed there.

    Examples:  holdfast submit netmon.py --config cluster.toml
    """
    settings = load_cluster(config)
    directory = Path(settings.dir).resolve()
    with tempfile.TemporaryDirectory(prefix="holdfast-plan-") as scratch:
        query = f"{file.stem}-{uuid.uuid4().hex[:12]}"
        plan, warnings = plan_file(file, Path(scratch), query=query, conf=settings.conf)
    for warning in warnings:
        typer.echo(f"warning: {warning}", err=True)
    run = Run(
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
    described = msgspec.json.format(msgspec.json.encode(run), indent=2)
    files = {"pipeline.py": file.read_text(), "run.json": described.decode()}
    answer = run.ask("submit", {"plan": msgspec.to_builtins(plan), "files": files}, timeout_s=180.0)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(directory / "run.json", described)  # for the commands that are called here; it may hold keys
    except OSError as error:  # the nodes have it all the same
        hint = "status, events and stop work where that directory is"
        typer.echo(f"warning: it was submitted, but {directory} cannot be written here ({error}): {hint}", err=True)
    if as_json:
        say({"pipeline": plan.pipeline, "query": plan.query, "nodes": answer["told"], "run": str(directory)})
    else:
        typer.echo(f"{plan.pipeline} runs on {', '.join(sorted(answer['told']))}; holdfast status {directory}")

"""Find a run by its directory and talk to its nodes: what every command but `run` and `node` begins with.

A run leaves `run.json` in its directory: which nodes there are, where they listen, where the cluster secret is. Any
node can answer for the cluster, so a call goes to one after the other until one does.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from holdfast.errors import ConfigError, HoldfastError, PeerError
from holdfast.runtime.security import Security, TlsFiles
from holdfast.runtime.transport import Caller

#: Where runs are kept unless told otherwise, one directory each.
RUNS = Path("holdfast-run")

RunArgument = Annotated[
    Path | None, typer.Argument(metavar="[RUN]", help="Directory of the run; default: the newest in ./holdfast-run.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")]


class Run(msgspec.Struct, kw_only=True):
    """What `run.json` says."""

    pipeline: str
    #: The user's file, and the directory in which `run` or `submit` was called: relative paths mean the same there.
    source: str
    cwd: str
    endpoints: dict[str, str]
    metrics: dict[str, str] = {}
    secret_file: str = ""
    tls: TlsFiles | None = None
    #: Process of `holdfast run`, which watches over the nodes; 0: nobody does (nodes of their own).
    supervisor: int = 0
    started: str = ""
    dir: str = ""

    @property
    def path(self) -> Path:
        return Path(self.dir)

    @property
    def file(self) -> Path:
        """The user's file where it lies, if it is still what was planned; else the run's copy of it."""
        original, copy = Path(self.source), self.path / "pipeline.py"
        same = original.is_file() and (not copy.exists() or original.read_bytes() == copy.read_bytes())
        return original if same else copy

    @property
    def security(self) -> Security:
        return Security.load(self.secret_file, self.tls)

    def caller(self) -> Caller:
        return Caller("cli", self.endpoints, self.security)

    def ask(self, action: str, body: dict[str, Any] | None = None, *, timeout_s: float = 5.0) -> dict[str, Any]:
        """The first answer of any node."""
        failures = []
        caller = self.caller()
        try:
            for name, endpoint in sorted(self.endpoints.items()):
                try:
                    return caller.call(name, action, body, timeout=timeout_s)
                except HoldfastError as error:
                    failures.append(f"{name} ({endpoint}): {error.what}")
        finally:
            caller.close()
        raise PeerError(
            f"no node of {self.pipeline!r} answers {action!r}",
            detail="; ".join(failures),
            hint=f"Is it running? `holdfast events {self.dir}` tells what happened last.",
        )

    def ask_all(self, action: str, body: dict[str, Any] | None = None, *, timeout_s: float = 5.0) -> dict[str, Any]:
        """Every node's answer; a node that does not answer is left out."""
        answers: dict[str, Any] = {}
        caller = self.caller()
        for name in sorted(self.endpoints):
            try:
                answers[name] = caller.call(name, action, body, timeout=timeout_s)
            except HoldfastError:
                continue
        caller.close()
        return answers


def read_run(directory: Path) -> Run:
    file = directory / "run.json"
    try:
        run = msgspec.json.decode(file.read_bytes(), type=Run)
    except OSError:
        raise ConfigError(
            f"no run in {directory}",
            detail=f"There is no {file}.",
            hint="Give the directory that `holdfast run` printed, or start one: holdfast run FILE.",
        ) from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"{file} cannot be read", detail=str(error)) from None
    run.dir = str(directory.resolve())
    return run


def find_run(directory: Path | None) -> Run:
    """The run in this directory, or the newest one under ./holdfast-run."""
    if directory is not None:
        return read_run(directory)
    found = sorted(RUNS.glob("*/run.json"), key=lambda file: file.stat().st_mtime)
    if not found:
        raise ConfigError("no run found", detail=f"Looked in ./{RUNS}.", hint="Give the directory of the run.")
    return read_run(found[-1].parent)


def say(value: object) -> None:
    """One JSON object, for machines."""
    typer.echo(json.dumps(value, indent=2, default=str))

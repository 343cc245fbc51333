"""Find a run by its directory and talk to its nodes: what every command but `run` and `node` begins with.

A run leaves `run.json` in its directory: which nodes there are, where they listen, where the cluster secret is. Any
node can answer for the cluster, so a call goes to one after the other until one does.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from holdfast.errors import ConfigError, HoldfastError, PeerError, SaidNoError
from holdfast.model.ids import Name
from holdfast.pipeline.load import file_of_run
from holdfast.runtime.disk.journal import write_whole
from holdfast.runtime.disk.lock import take
from holdfast.runtime.net.endpoints import check_endpoint
from holdfast.runtime.net.security import Security, TlsFiles
from holdfast.runtime.net.transport import Caller

#: Where runs are kept unless told otherwise, one directory each.
RUNS = Path("holdfast-run")

#: All that a run makes in its directory; `run --fresh` removes these and nothing else, since it may be the user's own.
MADE = (
    "run.json", "plan.json", "explain.txt", "pipeline.py", "secret", "events.jsonl",
    "checkpoints", "late", "bad", "gaps", "dead", "alone", "paces", "starts", "nodes", "from.json",
)  # fmt: skip

RunArgument = Annotated[
    Path | None, typer.Argument(metavar="[RUN]", help="Directory of the run; default: the newest in ./holdfast-run.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")]


class RunFile(msgspec.Struct, kw_only=True):
    """What `run.json` says."""

    pipeline: str
    #: The user's file, and the directory in which `run` or `submit` was called: relative paths mean the same there.
    source: str
    cwd: str
    endpoints: dict[Name, str]
    #: Which deployment these nodes run (`Plan.query`): those of another one refuse us, and we them.
    deployment: str = ""
    metrics: dict[str, str] = {}
    secret_file: str = ""
    tls: TlsFiles | None = None
    #: Spark's settings of the stages: `verify` reads with the same jars and keys.
    conf: dict[str, str] = {}
    #: Of the nodes that `run` started: how it starts them again when the run goes on.
    settings: dict[str, Any] = {}
    #: Process of `holdfast run`, which watches over the nodes; 0: nobody does (nodes of their own).
    supervisor: int = 0
    #: When that process started (`process_started`): its number may be somebody else's by now.
    supervisor_started: int = 0
    started: str = ""
    dir: str = ""

    @property
    def path(self) -> Path:
        return Path(self.dir)

    def file(self, planned: str) -> Path:
        """The pipeline's file, by the digest that its plan has."""
        return file_of_run(self.source, self.path, planned)

    @property
    def is_supervised(self) -> bool:
        """Does the `holdfast run` that started it still live?"""
        return bool(self.supervisor_started) and process_started(self.supervisor) == self.supervisor_started

    @property
    def security(self) -> Security:
        return Security.load(self.secret_file, self.tls, self.deployment)

    def caller(self) -> Caller:
        if not self.endpoints:
            raise ConfigError(f"{self.path / 'run.json'} cannot be used", detail="It names no nodes.")
        for name, endpoint in self.endpoints.items():
            check_endpoint(endpoint, name)
        return Caller("cli", self.endpoints, self.security)

    def look_again(self) -> None:
        """Nodes may have joined or left since this was read."""
        with suppress(ConfigError):
            now = read_run(self.path)
            if now.deployment == self.deployment:
                self.endpoints, self.metrics = now.endpoints, now.metrics

    def ask(self, action: str, body: dict[str, Any] | None = None, *, timeout_s: float = 5.0) -> dict[str, Any]:
        """The first answer of any node."""
        failures: list[HoldfastError] = []
        caller = self.caller()
        try:
            for name in sorted(self.endpoints):
                try:
                    return caller.call(name, action, body, timeout=timeout_s)
                except HoldfastError as error:
                    failures.append(error)
        finally:
            caller.close()
        if refusals := [error for error in failures if isinstance(error, SaidNoError)]:
            raise refusals[0]  # it runs, and says why it does not do this
        local = "grpc+unix://"  # whose path says nothing that the name does not
        asked = [name if end.startswith(local) else f"{name} ({end})" for name, end in sorted(self.endpoints.items())]
        others = sorted({error.what for error in failures if not error.what.endswith("cannot be reached")})
        raise PeerError(
            f"no node of {self.pipeline} answers",
            detail="; ".join(others) or f"None of {', '.join(asked)} can be reached.",
            hint=f"Is it running? `holdfast events {self.dir}` shows what happened last.",
        )

    def first_up(self) -> str:
        """The name of a node that answers."""
        return self.ask("ping", timeout_s=2.0)["name"]

    def ask_all(self, action: str, body: dict[str, Any] | None = None, *, timeout_s: float = 5.0) -> dict[str, Any]:
        """Every node's answer; a node that does not answer is left out."""
        answers: dict[str, Any] = {}
        self.look_again()
        caller = self.caller()
        for name in sorted(self.endpoints):
            try:
                answers[name] = caller.call(name, action, body, timeout=timeout_s)
            except HoldfastError:
                continue
        caller.close()
        return answers

    def statuses(self) -> tuple[dict[str, Any], list[str]]:
        """What the nodes that run the pipeline say of themselves, and the names of those that still prepare for it."""
        answers = self.ask_all("status")
        preparing = [name for name, answer in answers.items() if answer.get("waiting")]
        running = {name: answer for name, answer in answers.items() if name not in preparing}
        if preparing and not running:
            raise PeerError(
                f"the nodes of {self.pipeline!r} are preparing",
                detail=f"{', '.join(preparing)} load what the pipeline needs.",
                hint="Ask again in a few seconds.",
            )
        return running, preparing


def process_started(pid: int) -> int:
    """When a living process started, in ticks since the machine did; 0 if there is none. With its number, it is it."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return 0
    return 0 if state in "ZX" else int(fields[18])  # field 22 of proc(5)


def made_in(directory: Path, keep: Iterable[Path] = (), *, but_logs: bool = False) -> list[Path]:
    """What a run made there. The user's pipeline may be called like the run's copy of it: `keep`."""
    kept = {path.resolve() for path in keep}
    # a link to a store that is gone is there, too
    found = [p for p in (directory / name for name in MADE) if os.path.lexists(p) and p.resolve() not in kept]
    nodes = directory / "nodes"
    if but_logs and nodes in found:
        found.remove(nodes)
        found += sorted(path for path in nodes.glob("*/*") if path.name != "logs")
    return found


def remove(paths: list[Path]) -> None:
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def read_run(directory: Path) -> RunFile:
    file = directory / "run.json"
    try:
        run = msgspec.json.decode(file.read_bytes(), type=RunFile)
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(
            f"no run in {directory}",
            detail=f"There is no {file}.",
            hint="Give the directory that `holdfast run` printed, or start one: holdfast run FILE.",
        ) from None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        hint = "It is damaged. The nodes do not need it: a copy of it from elsewhere, or the nodes' own `stop`, helps."
        raise ConfigError(f"{file} cannot be read", detail=str(error), hint=hint) from None
    run.dir = str(directory.resolve())
    return run


def change_nodes(directory: Path, name: str, endpoint: str, metrics: str = "") -> None:
    """Write down that a node has joined, or (without an endpoint) left: other commands and the next start read it."""
    lock = take(directory / "run.json.lock", "a command that changes run.json", f"{directory} is changed", "Try again.")
    try:
        run = read_run(directory)
        run.endpoints.pop(Name(name), None)
        run.metrics.pop(name, None)
        if endpoint:
            run.endpoints[Name(name)] = endpoint
        if metrics:
            run.metrics[name] = metrics
        write_whole(directory / "run.json", msgspec.json.format(msgspec.json.encode(run), indent=2))
    finally:
        lock.release()


def find_run(directory: Path | None) -> RunFile:
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

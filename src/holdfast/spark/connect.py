"""How a Spark process reaches the nodes of a running pipeline: endpoints, secret, plan, record, and ports to write to.

All of it comes from the run's directory (`run.json`, `plan.json`), or from endpoints and a secret file: then a node is
asked for the plan. A `Run` is plain data: it goes with tasks to executors, where it says which file holds the secret,
never the secret itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from holdfast.errors import ConfigError, HoldfastError
from holdfast.model.ids import Consumer, Edge, Name
from holdfast.model.plan import Plan, StagePlan
from holdfast.runtime.config import read_plan
from holdfast.runtime.net.security import Security
from holdfast.runtime.net.transport import Caller

#: A batch that does not count after so long fails the query (which can be started again from its checkpoint).
WAIT_S = 300.0


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A running pipeline, as seen by a guest."""

    endpoints: dict[Name, str]
    secret_file: str
    tls: dict[str, Any] | None = None
    #: Empty: not known yet. `plan_of` finds it out, and nothing else can be asked before.
    deployment: str = ""

    @property
    def names(self) -> list[Name]:
        return sorted(self.endpoints)

    def security(self) -> Security:
        return Security.load(self.secret_file, self.tls, self.deployment)


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A port of a running pipeline. Plain data: it is pickled to wherever Spark wants it."""

    run: Run
    #: Of the run: late rows are recorded there.
    directory: str
    plan: Plan
    stage: StagePlan
    wait_s: float = WAIT_S


def port_of(plan: Plan, name: str) -> StagePlan:
    ports = [s for s in plan.stages if s.kind == "port"]
    for stage in ports:
        if stage.id == name:
            return stage
    raise ConfigError(
        f'format("holdfast"): pipeline {plan.pipeline!r} has no port {name!r} to write to',
        detail=f"It has {', '.join(s.id for s in ports)}."
        if ports
        else "It takes its rows from sources it reads itself.",
        hint=f'Declare it in the pipeline: pipeline.port("{name}", schema=..., event_time=..., watermark=...).',
    )


def run_of(options: Mapping[str, str]) -> Run:
    """From the options of the data source: `run`, or `endpoints` and `secret_file` (and `tls`)."""
    path = options.get("run", "")
    if path and not options.get("endpoints"):
        file = Path(path) / "run.json" if Path(path).is_dir() else Path(path)
        try:
            found = json.loads(file.read_text())
            return Run(
                endpoints=found["endpoints"],
                secret_file=os.path.abspath(file.parent / found["secret_file"]),
                tls=found.get("tls") or None,
                deployment=found.get("deployment", ""),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                'format("holdfast"): the run cannot be found',
                detail=f"{file}: {error!r}",
                hint='Give .option("run", <directory of the run>), the --dir of `holdfast run`.',
            ) from error
    if not options.get("endpoints") or not options.get("secret_file"):
        raise ConfigError(
            'format("holdfast"): which run?',
            hint='Give .option("run", <its directory>), or "endpoints" (n0=grpc://host:port,…) and "secret_file".',
        )
    return Run(
        endpoints=_endpoints(options["endpoints"]),
        secret_file=os.path.abspath(options["secret_file"]),
        tls=json.loads(options["tls"]) if options.get("tls") else None,
        deployment=options.get("deployment", ""),
    )


def _endpoints(text: str) -> dict[Name, str]:
    if text.lstrip().startswith("{"):
        return json.loads(text)
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    if not all(name and eq and url for name, eq, url in pairs):
        raise ConfigError(
            'format("holdfast"): endpoints cannot be read', detail=text, hint="Write n0=grpc://host:port,n1=…"
        )
    return {Name(name.strip()): url.strip() for name, _, url in pairs}


def plan_of(run: Run, directory: str = "") -> Plan:
    """The plan of the run: from its directory if that is here, else from a node."""
    file = Path(directory) / "plan.json" if directory else None
    if file is not None and file.is_file():
        return read_plan(file)
    caller = Caller("plan", run.endpoints, run.security())
    trouble: HoldfastError | None = None
    try:
        for name in run.names:
            try:
                return msgspec.json.decode(caller.call_raw(name, "plan"), type=Plan)
            except HoldfastError as error:
                trouble = error
    finally:
        caller.close()
    raise trouble or ConfigError("the run has no nodes")


def let_go(run: Run, consumer: Consumer, edges: Iterable[Edge]) -> None:
    """A guest of this run reads these edges no more."""
    caller = Caller(consumer, run.endpoints, run.security())
    try:
        caller.leave(consumer, edges)
    finally:
        caller.close()


@lru_cache(maxsize=8)
def caller_of(raw: bytes, address: str) -> Caller:
    """One set of connections for each run and process: Python workers live through many tasks."""
    run = msgspec.json.decode(raw, type=Run)
    return Caller(address, run.endpoints, run.security())

"""`holdfast node NAME --join RUN`: a node that no file of the others names becomes a member of a run.

What it needs to know is in the directory of the run: the plan, the secret, where the nodes are, and their settings. It
asks one of them to let it in, which answers when the record has its name and its address. Then `run.json` gets both, so
that commands ask it, too, and a run that goes on starts it. Only then does it start, and say hello like any other node.
Its directory says that it joined before `run.json` names it (`runtime/node/joining.py`).
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import msgspec

from holdfast.errors import ConfigError, HoldfastError, PeerError
from holdfast.model.ids import Name
from holdfast.model.plan import digest
from holdfast.runtime.client.local import free_ports
from holdfast.runtime.config import NodeConfig, make_config, read_plan
from holdfast.runtime.disk.lock import held_by
from holdfast.runtime.net.endpoints import UNIX, check_endpoint, socket_of
from holdfast.runtime.node.joining import mark_joined

from .runs import RunFile, change_nodes, read_run

#: The record changes when a majority has it, and the node that is asked waits for that.
ASK_S = 40.0


def join_run(name: str, directory: Path, file: Path | None, endpoint: str, own_dir: str | None) -> NodeConfig:
    """Ask to be let in; what the node then starts with."""
    if not name:
        raise ConfigError("a node that joins needs a name", hint="For example: holdfast node n4 --join RUN")
    if own_dir:
        raise ConfigError("--dir and --join cannot both be given", hint="It lives in the directory of the run.")
    run = read_run(directory)
    plan = read_plan(run.path / "plan.json")
    given = _settings(run, file)
    endpoint = endpoint or given.get("endpoints", {}).get(name, "") or _socket(run, name)
    check_endpoint(endpoint, name)
    home = run.path / "nodes" / name
    if holder := held_by(home / "lock"):
        raise ConfigError(f"node {name} is running already in {directory}", detail=f"{holder}.")
    asked = {"name": name, "address": endpoint, "plan": digest(plan), "known": (home / "journal").exists()}
    answer = _ask(run, name, asked)
    port = given.get("metrics_port") or free_ports(1)[0]
    found = {
        "secret_file": run.secret_file,
        **({"tls": msgspec.to_builtins(run.tls)} if run.tls else {}),
        **given,
        "name": name,
        "dir": str(run.path),
        "endpoints": answer["endpoints"],
        "join": True,
        "metrics_port": port,
    }
    settings = make_config(found, str(file) if file else str(run.path / "run.json"))
    mark_joined(home)
    change_nodes(run.path, name, endpoint, f"http://127.0.0.1:{port}/metrics" if port > 0 else "")
    return settings


def _settings(run: RunFile, file: Path | None) -> dict[str, Any]:
    """Of the node's own file, or those that all nodes of the run were started with."""
    if file is None:
        return dict(run.settings)
    try:
        return tomllib.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError("cannot read the node's config", detail=f"{file}: {error}") from error


def _socket(run: RunFile, name: str) -> str:
    """Beside the sockets of the others, where only their user can go; the same again if the node is started again."""
    sockets = [socket_of(endpoint) for endpoint in run.endpoints.values()]
    if not sockets or not all(sockets):
        raise ConfigError(
            f"where shall {name} listen?",
            detail="The nodes of this run listen on ports.",
            hint="Give --endpoint grpc+tls://HOST:PORT, and --config FILE with its certificate.",
        )
    return f"{UNIX}{Path(sockets[0]).parent / name}.sock"


def _ask(run: RunFile, name: str, asked: dict[str, Any]) -> dict[str, Any]:
    """One node that answers; what it refuses, no other would let in."""
    others = {other: at for other, at in run.endpoints.items() if other != name}
    up = msgspec.structs.replace(run, endpoints=others).first_up()
    caller = run.caller()
    try:
        return caller.call(Name(up), "let_in", asked, timeout=ASK_S)
    except PeerError as error:
        raise HoldfastError(f"{name} is not let in: {error.what}", detail=error.detail, hint=error.hint) from None
    finally:
        caller.close()

"""`holdfast leave`: a node gives everything away, ends, and is not a member any more.

The node is drained, so every copy that it had is elsewhere before it goes, and the record names it as draining until it
is out, so nothing is put there again. Then one record takes it out of the members and says that it has left for good
(`core/membership.py`), and it ends, with an exit code that says that it must not be started again. `run.json` forgets
it, so a run that goes on does so without it. Whoever starts it again is not heard, until somebody lets it in
(`holdfast node --join`).
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Annotated

import msgspec
import typer

from holdfast.errors import ConfigError, HoldfastError
from holdfast.model.ids import Name
from holdfast.model.record import Record

from .control import LOOK_S, empty
from .progress import StepLine
from .runs import JsonOption, RunArgument, RunFile, change_nodes, find_run, say
from .watch import cluster_status

#: With fewer members before, those that stay could not decide without each other, or not vote it out.
MEMBERS_MIN = 3


def leave(
    node: Annotated[str, typer.Argument(help="Name of the node, as `holdfast status` shows it.")],
    run: RunArgument = None,
    limit: Annotated[
        float, typer.Option(help="Seconds to wait until it holds nothing, and then until it is out.")
    ] = 120.0,
    as_json: JsonOption = False,
) -> None:
    """Let a node leave the cluster: everything moves away from it, then it ends for good.

    It is drained first, as by `holdfast drain`: only shards in mode replay pause.
    The others remember that it has left, whatever is started again. To come back
    under its name it must join: `holdfast node n2 --join RUN`. At least three
    members are needed for one of them to leave. To stop a node for a while, use
    `holdfast drain` instead.

    Examples:  holdfast leave n2
    """
    found = find_run(run)
    if node not in found.endpoints:
        raise ConfigError(f"no node {node!r}", hint=f"There are {', '.join(sorted(found.endpoints))}.")
    members = _members(found)
    if node not in members and _has_left(found, node):  # the command that let it leave was ended before it said so
        change_nodes(found.path, node, "")
        if as_json:
            say({"node": node, "members": members, "seconds": 0.0})
            return
        typer.echo(f"{node} had left already; members are {', '.join(members)}.")
        return
    if node not in members:
        raise ConfigError(f"{node} is not a member now", detail=f"Members are {', '.join(members)}.")
    if len(members) < MEMBERS_MIN:
        raise ConfigError(
            f"{node} cannot leave: {', '.join(members)} would be too few",
            detail=f"A cluster needs {MEMBERS_MIN} members for one of them to leave.",
            hint="Start another node first, or end the run with `holdfast stop`.",
        )
    began = time.monotonic()
    with StepLine(quiet=as_json) as progress:
        empty(found, node, limit, progress.now)
        progress.at(f"{node} is empty: it leaves")
        _send_away(found, node, [name for name in members if name != node and name in found.endpoints])
        _wait_until_out(found, node, limit)
    change_nodes(found.path, node, "")
    left = [name for name in members if name != node]
    seconds = round(time.monotonic() - began, 3)
    if as_json:
        say({"node": node, "members": left, "seconds": seconds})
        return
    typer.echo(f"{node} has left ({seconds:.1f} s); members are {', '.join(left)}.")
    if len(left) < MEMBERS_MIN:
        typer.echo(
            "warning: two members cannot decide without each other: none takes over by itself. (A store casts the "
            "third vote only in a run that was started with two nodes.)"
        )


def _send_away(found: RunFile, node: str, others: list[str]) -> None:
    """Told by one of the others, since it ends by itself as soon as it hears that it is out."""
    caller, trouble = found.caller(), None
    try:
        for name in (*others, node):
            try:
                caller.call(Name(name), "send_away", {"name": node}, timeout=20.0)
                trouble = None
                break
            except HoldfastError as error:
                trouble = trouble or error
        if trouble is not None:
            raise trouble
        with suppress(HoldfastError):  # has it ended?
            caller.call(Name(node), "stop", {"left": True}, timeout=10.0)
    finally:
        caller.close()


def _members(found: RunFile) -> list[str]:
    return sorted(cluster_status(found)["record"]["members"])


def _has_left(found: RunFile, node: str) -> bool:
    """Does the record say so?"""
    caller = found.caller()
    try:
        raw = caller.call_raw(Name(found.first_up()), "record")
        return msgspec.msgpack.decode(raw, type=Record).has_left(Name(node))
    except (HoldfastError, msgspec.MsgspecError):
        return False
    finally:
        caller.close()


def _wait_until_out(found: RunFile, node: str, limit: float) -> None:
    deadline = time.monotonic() + limit
    while node in _members(found):
        if time.monotonic() > deadline:
            raise HoldfastError(
                f"{node} has ended, but is still a member after {limit:.0f} s",
                hint="A majority of the others must answer to vote it out; see `holdfast status`.",
            )
        time.sleep(LOOK_S)

"""`holdfast mode`: change how an operator of a running pipeline is protected."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from holdfast.errors import ConfigError, HoldfastError
from holdfast.model.ids import operator_of
from holdfast.model.protection import MODES
from holdfast.pipeline.explain import counted

from .progress import StepLine
from .runs import JsonOption, RunArgument, find_run, say
from .watch import cluster_status

LOOK_S = 0.2
#: A node gives up after 10 s without a coordinator.
ANSWER_S = 15.0


def mode(
    operator: Annotated[str, typer.Argument(help="Name of the operator: `talkers` of the shard talkers-0.")],
    mode: Annotated[str, typer.Argument(metavar="none|replay|passive|hybrid|active", help="The mode of its shards.")],
    run: RunArgument = None,
    limit: Annotated[float, typer.Option(help="Seconds to wait until all its shards are in that mode.")] = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Switch the mode of an operator while it runs, and wait until every shard of it is in that mode.

    none: there is no copy; what a shard knows is lost if its node fails.
    replay: a second node keeps the input that open windows need, and makes their
    state again if a node fails. Not for joins, nor for windows that count rows.
    passive: a second node holds a copy of every shard's state and takes over.
    hybrid: that node also stands in for one that is only late.
    active: two nodes run every shard all the time.

    The switch itself loses and doubles no row. Going from none or replay to
    another mode, or from active to passive or hybrid, takes as long as the state
    takes to reach another node. Until then a shard stays in the mode it has.

    Examples:  holdfast mode talkers none
               holdfast mode talkers passive --limit 300
               holdfast mode talkers active
               holdfast status
    """
    if mode not in MODES:
        raise ConfigError(f"no mode is named {mode!r}", hint=f"There are {', '.join(MODES)}.")
    found = find_run(run)
    shards = _shards(cluster_status(found))
    if operator not in shards:
        raise ConfigError(f"no operator is named {operator!r}", hint=f"There are {', '.join(sorted(shards))}.")
    began = time.monotonic()
    found.ask("protect", {"operator": operator, "mode": mode}, timeout_s=ANSWER_S)
    with StepLine(quiet=as_json) as progress:
        while waiting := [shard for shard, now in _shards(cluster_status(found))[operator].items() if now != mode]:
            if time.monotonic() - began > limit:
                raise HoldfastError(
                    f"{counted(len(waiting), 'shard')} of {operator} not in mode {mode} after {limit:.0f} s",
                    detail=f"{', '.join(waiting[:6])}; the change is in the record, and they follow when they can.",
                    hint="Is there a second node that could hold their copies? See `holdfast status`.",
                )
            progress.now(f"{len(waiting)} of {len(shards[operator])} shards of {operator} are not in mode {mode} yet")
            time.sleep(LOOK_S)
    took = round(time.monotonic() - began, 3)
    if as_json:
        say({"operator": operator, "mode": mode, "shards": sorted(shards[operator]), "seconds": took})
    else:
        typer.echo(f"{operator} is in mode {mode} ({took:.1f} s): {MODES[mode].means}.")


def _shards(status: dict[str, Any]) -> dict[str, dict[str, str]]:
    """The mode of every shard, by operator."""
    found: dict[str, dict[str, str]] = {}
    for shard, told in status["shards"].items():
        found.setdefault(operator_of(shard), {})[shard] = told["mode"]
    return found

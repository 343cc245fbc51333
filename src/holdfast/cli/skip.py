"""`holdfast skip`: let a shard that stands still pass over the one batch that it cannot take."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from holdfast.errors import ConfigError, HoldfastError
from holdfast.model.ids import asset_id, name_of, operator_of

from .progress import StepLine
from .runs import JsonOption, RunArgument, find_run, say
from .watch import cluster_status

LOOK_S = 0.2
#: A node gives up after 10 s without a coordinator.
ANSWER_S = 15.0


def skip(
    shard: Annotated[str, typer.Argument(help="The shard that stands still, as `holdfast status` names it.")],
    source: Annotated[str, typer.Argument(help="Where the batch came from: a stage, or an edge of another shard.")],
    number: Annotated[int, typer.Argument(min=0, help="The batch of that stage, or the position on that edge.")],
    run: RunArgument = None,
    limit: Annotated[float, typer.Option(help="Seconds to wait until the shard has passed over it.")] = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Pass over one batch that a shard cannot take, and keep its rows as dead letters.

    `holdfast status` shows the command for a shard that stands still. Only this
    batch, and only its part for this shard, is passed over. Its rows are in
    DIR/dead/OPERATOR, and `verify` counts them. Every copy of the shard does the
    same, before and after a failure. Said twice, it changes nothing.

    Examples:  holdfast skip talkers-1 talkers_in 17
               holdfast skip tops-0 talkers-1.0 3520
    """
    found = find_run(run)
    status = cluster_status(found)
    if shard not in status["shards"]:
        raise ConfigError(f"no shard is named {shard!r}", hint=f"There are {', '.join(sorted(status['shards']))}.")
    if not status["shards"][shard]["primary"]:
        raise ConfigError(f"every copy of {shard} is gone", hint="There is nothing that could go on.")
    began = time.monotonic()
    body = {"shard": shard, "source": source, "number": number}
    answer = _ask(found, status, body)
    granted = False
    with StepLine(quiet=as_json) as progress:
        while not answer.get("passed"):
            granted = granted or answer.get("granted", False)
            if answer.get("refused"):
                if granted:
                    break  # it has passed over it, on a node that has failed since
                raise ConfigError(answer["refused"], hint=answer.get("hint", ""))
            if time.monotonic() - began > limit:
                raise HoldfastError(
                    f"{shard} has not passed over it after {limit:.0f} s",
                    detail=answer.get("waits", ""),
                    hint="See `holdfast status`.",
                )
            progress.now(f"{shard} has not passed over it yet: {answer.get('waits', 'it was asked')}")
            time.sleep(LOOK_S)
            status = cluster_status(found)
            answer = _ask(found, status, body)
    took, folder = round(time.monotonic() - began, 3), f"dead/{operator_of(asset_id(shard))}"
    if as_json:
        say({**body, "seconds": took, "folder": str(found.path / folder)})
    else:
        typer.echo(f"{shard} has passed over {number} of {source} ({took:.1f} s); {folder} has its rows.")


def _ask(found: Any, status: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    """What the node of the primary says to it. It may die meanwhile: then another one is asked."""
    primary = status["shards"][body["shard"]]["primary"]
    caller = found.caller()
    try:
        return caller.call(name_of(primary or ""), "skip", body, timeout=ANSWER_S)
    except HoldfastError as error:
        return {"waits": error.what}
    finally:
        caller.close()

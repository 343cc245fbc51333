"""`holdfast drain` and `holdfast stop`: the operator's hand."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import typer

from holdfast.errors import ConfigError, HoldfastError
from holdfast.model.ids import name_of
from holdfast.runtime.client.local import STOP_LIMIT_S

from .clean import SourcesPaused, check_whole, reach_clean_point
from .progress import StepLine
from .resume import opened_store
from .runs import JsonOption, RunArgument, RunFile, find_run, process_started, say
from .story import read_events, write_event
from .watch import cluster_status, failures_of

LOOK_S = 0.5
#: Of what a node still holds, this many are named.
HELD_SHOWN = 4
TELL_AGAIN_S = 5.0
#: Nodes that answered before may be too busy to, on a machine that is: so long nobody need answer.
SILENCE_S_MAX = 60.0
#: A stage that fails this many times in a row will not finish by itself; once or twice may be a node that died. Those
#: from before the command count, too, but not alone: the cause may be mended since. So it fails twice more, since the
#: first time may be that of a start from before.
FAILURES_MAX, FAILURES_NEW = 3, 2
#: A shard that stands still this long will not go on by itself.
STANDS_S_MAX = 2.0
#: `holdfast run` looks at its nodes, stops them, kills those that do not stop: it may take longer than they do.
END_LIMIT_S = STOP_LIMIT_S + 20.0


def drain(
    node: Annotated[str, typer.Argument(help="Name of the node, as `holdfast status` shows it.")],
    run: RunArgument = None,
    limit: Annotated[float, typer.Option(help="Seconds to wait until it holds nothing.")] = 120.0,
    as_json: JsonOption = False,
) -> None:
    """Move everything away from a node; then it can be stopped.

    The node stays a member and gets nothing new. A shard in mode replay pauses
    while its state is made again from the input of its open windows; in every
    other mode output goes on. A stage moves when its standby is warm, or after a
    minute.

    Examples:  holdfast drain n2
    """
    with StepLine(quiet=as_json) as progress:
        took = empty(find_run(run), node, limit, progress.now)
    if as_json:
        say({"node": node, "seconds": round(took, 3)})
    else:
        typer.echo(f"{node} is empty ({took:.1f} s); it can be stopped.")


def empty(found: RunFile, node: str, limit: float, tell: Callable[[str], None] = lambda line: None) -> float:
    """Drain a node; the seconds until it holds nothing."""
    if node not in found.endpoints:
        raise ConfigError(f"no node {node!r}", hint=f"There are {', '.join(sorted(found.endpoints))}.")
    found.ask_all("drain", {"name": node})
    began = time.monotonic()
    held = _held(found, node)
    while held:
        if time.monotonic() - began > limit:
            raise HoldfastError(
                f"{node} still holds {len(held)} after {limit:.0f} s",
                detail=", ".join(held[:6]),
                hint="Is there another node that could take them? See `holdfast status`.",
            )
        more = f" and {len(held) - HELD_SHOWN} more" if len(held) > HELD_SHOWN else ""
        tell(f"draining {node}, which still holds {', '.join(held[:HELD_SHOWN])}{more}")
        time.sleep(LOOK_S)
        held = _held(found, node)
    return time.monotonic() - began


def _held(run: RunFile, node: str) -> list[str]:
    places = cluster_status(run)["record"]["places"]
    seats = ("primary", "backup", "joining")
    return sorted(a for a, p in places.items() if any(name_of(p[s] or "") == node for s in seats))


def stop(
    run: RunArgument = None,
    finish: Annotated[
        bool,
        typer.Option("--finish", help="Read what the sources hold, close all windows, wait for the sinks; then stop."),
    ] = False,
    checkpoint: Annotated[
        bool,
        typer.Option("--checkpoint", help="Stop at a clean point: everything consumed, checkpointed and written."),
    ] = False,
    limit: Annotated[float, typer.Option(help="Seconds to wait for --finish or --checkpoint.")] = 600.0,
    as_json: JsonOption = False,
) -> None:
    """Stop a run: at once, at a clean point, or with --finish after every window was closed and written.

    Examples:  holdfast stop --finish && holdfast verify
               holdfast stop --checkpoint && holdfast run holdfast-run/netmon
    """
    found = find_run(run)
    began = time.monotonic()
    if finish and checkpoint:
        raise ConfigError("--finish and --checkpoint cannot both be given", detail="What has finished does not go on.")
    with StepLine(quiet=as_json, keeps=True) as progress:
        if finish:
            finish_run(found, limit_s=limit, tell=progress.at)
        if checkpoint:
            check_whole(found, "stop --checkpoint")
            with SourcesPaused(found) as paused, opened_store(found) as service:
                reach_clean_point(found, service, paused=paused, limit_s=limit, tell=progress.at)
                text = "Everything is consumed, checkpointed and written, and the run stops here."
                write_event(found.path, "clean-point", text)
                paused.stays = True
                silent = _stop(found, progress)
        else:
            silent = _stop(found, progress, finished=finish)
    _tell_stopped(found, silent, began, finish=finish, checkpoint=checkpoint, as_json=as_json)


def _stop(found: RunFile, progress: StepLine, *, finished: bool = False) -> list[str]:
    progress.now(f"stopping the nodes of {found.pipeline}")
    return end_run(found, finished=finished)


def _tell_stopped(
    found: RunFile, silent: list[str], began: float, *, finish: bool, checkpoint: bool, as_json: bool
) -> None:
    seconds = round(time.monotonic() - began, 3)
    if as_json:
        say({"run": found.dir, "finished": finish, "clean": checkpoint, "silent": silent, "seconds": seconds})
    else:
        but = f", but {', '.join(silent)} did not answer" if silent else ""
        where = f" at a clean point; `holdfast run {found.dir}` goes on" if checkpoint else ""
        typer.echo(f"{found.pipeline} is stopped{but}{where}.")


def end_run(found: RunFile, *, finished: bool = False) -> list[str]:
    """Stop all nodes, and the `holdfast run` that watches over them; names of nodes that did not answer."""
    supervised = found.is_supervised
    answers = found.ask_all("stop")
    if supervised:
        _stop_process(found)
    elif not answers and not finished:
        raise HoldfastError(
            f"{found.pipeline} is not running",
            detail=f"None of {', '.join(sorted(found.endpoints))} answers.",
            hint=f"`holdfast events {found.dir}` shows what happened last.",
        )
    return [] if supervised or finished else sorted(set(found.endpoints) - set(answers))


def finish_run(run: RunFile, *, limit_s: float, tell=None, told: threading.Event | None = None) -> None:
    """Seal an infinite watermark and wait until every stage says that it has finished, or until `told` to give up."""
    given_up = told or threading.Event()
    deadline = time.monotonic() + limit_s
    _finish_ports(run, limit_s)
    asked = 0.0
    heard: float | None = None
    shown: list[str] = []
    failing = Failing(run, tell)
    while True:
        if time.monotonic() - asked > TELL_AGAIN_S:
            run.ask_all("finish", {"forwarded": True})  # again and again: a node that came back does not know
            asked = time.monotonic()
        try:
            waiting = unfinished(run)
            heard = time.monotonic()
        except HoldfastError as error:
            if has_finished(run):
                return  # and its nodes have ended by themselves
            over = bool(run.supervisor) and not run.is_supervised
            if over or heard is None or time.monotonic() - heard > SILENCE_S_MAX:
                raise
            if tell and shown != [error.what]:
                tell(f"{error.what}: waiting for it to")
                shown = [error.what]
            if given_up.wait(LOOK_S):
                return
            continue
        if not waiting:
            tell_finished(run)
            return
        failing.check(waiting)
        if tell and waiting != shown:
            tell(f"waiting for {', '.join(waiting)} to finish")
            shown = waiting
        if time.monotonic() > deadline:
            raise HoldfastError(
                f"{run.pipeline} did not finish within {limit_s:.0f} s",
                detail=f"Not finished: {', '.join(waiting)}.",
                hint="`holdfast events` shows what they are doing; --limit waits longer.",
            )
        if given_up.wait(LOOK_S):
            return


class Failing:
    """Stages that fail while somebody waits for them: says each reason once; the end if one fails again and again."""

    def __init__(self, run: RunFile, tell) -> None:
        self._run = run
        self._tell = tell
        self._said: set[str] = set()
        #: By node: how often in a row each stage had failed there when it was first heard.
        self._before: dict[str, dict[str, int]] = {}

    def check(self, waiting: list[str]) -> None:
        try:
            nodes, _ = self._run.statuses()
        except HoldfastError:
            return  # nobody answers now, which the caller hears too
        _check_standing(self._run, nodes)
        self._count(nodes)
        newest = max(nodes.values(), key=lambda answer: answer.get("version", 0), default={"places": {}})
        for failure in failures_of(newest["places"], nodes):
            if failure.stage not in waiting:
                continue
            new = failure.times - self._before[failure.node].get(failure.stage, 0)
            if failure.times >= FAILURES_MAX and new >= FAILURES_NEW:
                again = f"or `holdfast stop {self._run.dir}` ends it."
                raise HoldfastError(
                    f"{self._run.pipeline} cannot finish: {failure.stage} fails again and again",
                    detail=str(failure),
                    hint=f"It is still running. Mend the cause and call this again, {again}",
                )
            if self._tell and failure.text not in self._said:
                self._said.add(failure.text)
                self._tell(str(failure))

    def _count(self, nodes: dict[str, Any]) -> None:
        """A node begins anew with a batch that is through, and with its next life."""
        for name, answer in nodes.items():
            times = {stage: failure["times"] for stage, failure in answer.get("failures", {}).items()}
            before = self._before.get(name, times)
            self._before[name] = {stage: min(before.get(stage, 0), times[stage]) for stage in times}


def _check_standing(run: RunFile, nodes: dict[str, Any]) -> None:
    """The end if a shard stands still: nothing behind it comes until a person has decided what becomes of the batch."""
    for name, answer in sorted(nodes.items()):
        for shard, told in sorted(answer.get("shards", {}).items()):
            stands = told.get("stands")
            if stands and not stands["tries_again"] and stands["seconds"] >= STANDS_S_MAX:
                raise HoldfastError(
                    f"{run.pipeline} cannot finish: {shard} on {name} stands still",
                    detail=told["failed"],
                    hint=f"{stands['way_on']} Then call this again.",
                )


def _finish_ports(run: RunFile, limit_s: float) -> None:
    """Nobody but this command can end a stream whose rows come from another program."""
    from holdfast.spark.connect import Run as Way
    from holdfast.spark.connect import Target, plan_of

    tls = msgspec.to_builtins(run.tls) if run.tls else None
    way = Way(endpoints=run.endpoints, secret_file=run.secret_file, tls=tls, deployment=run.deployment)
    plan = plan_of(way, run.dir)
    for stage in plan.stages:
        if stage.kind == "port":
            from holdfast.spark.port import finish

            finish(Target(run=way, directory=run.dir, plan=plan, stage=stage, wait_s=limit_s))


def tell_finished(run: RunFile) -> None:
    """Once: whoever sees it first tells it. A run that has finished does not go on."""
    if not has_finished(run):
        write_event(run.path, "finished", "Every stage has finished, and everything is written.")


def has_finished(run: RunFile) -> bool:
    """Does the run itself say so?"""
    return any(event.get("event") == "finished" for event in read_events(run.path))


def unfinished(run: RunFile) -> list[str]:
    """Stages that have not said that everything is through."""
    answers, _ = run.statuses()
    if not answers:
        run.ask("status")  # says why nobody answers
    stages: dict[str, bool] = {}
    for answer in answers.values():
        for asset, place in answer["places"].items():
            if place["stage"]:
                stages.setdefault(asset, False)
        for asset in answer.get("finished", []):
            stages[asset] = True
        for shard, told in answer.get("shards", {}).items():  # what was set aside is a part of the result
            if told.get("role") == "primary" and told.get("dead_waiting"):
                stages[f"dead letters of {shard}"] = False
    if not stages:
        raise HoldfastError(f"no node of {run.pipeline} answers", hint="`holdfast events` shows what happened last.")
    return sorted(asset for asset, done in stages.items() if not done)


def _stop_process(run: RunFile) -> None:
    """End the `holdfast run` of this run, and wait for it: then its nodes have ended, too."""
    pid = run.supervisor
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return  # just now
    except PermissionError:
        raise HoldfastError(
            f"{run.pipeline} was started by another user",
            detail=f"Its `holdfast run` is process {pid}.",
            hint="Stop it as that user.",
        ) from None
    deadline = time.monotonic() + END_LIMIT_S
    while process_started(pid) == run.supervisor_started:
        if time.monotonic() > deadline:
            raise HoldfastError(
                f"{run.pipeline} did not stop within {END_LIMIT_S:.0f} s",
                detail=f"Its `holdfast run` is process {pid}.",
            )
        time.sleep(0.1)

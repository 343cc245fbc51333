"""Bring a live run to a clean point, for `stop --checkpoint`, `savepoint` and `upgrade`.

Sources are paused: they begin no batch. What they have handed over is consumed, what comes of it is written, and every
shard is checkpointed as soon as nothing waits. Where rows of one source wait for another that is not as far in event
time, that one goes on until it is (`checkpoint/behind.py`). Whether that is a clean point is decided from what is
durable (`checkpoint/clean.py`). The pause is renewed every two seconds and ends by itself when nobody renews it, so a
command that is killed leaves a run that goes on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import msgspec

from holdfast.checkpoint.behind import NeededMark, WaitingInput, WaitingShard, needed
from holdfast.checkpoint.clean import DurablePoint, unclean
from holdfast.checkpoint.look import heads_of
from holdfast.checkpoint.manifest import CheckpointManifest
from holdfast.checkpoint.restore import read_manifest
from holdfast.errors import ConfigError, HoldfastError, StoreError
from holdfast.model.block import WATERMARK_MIN
from holdfast.model.ids import Asset, Consumer, Edge
from holdfast.model.parts import CommitRecord
from holdfast.model.plan import NEVER_US, Plan, to_core, to_micros
from holdfast.runtime.config import read_plan
from holdfast.spark import checkpoint as spark_checkpoint
from holdfast.spark.ahead import stamp
from holdfast.store import IoService
from holdfast.store.plan import Steps

from .resume import unstored
from .runs import RunFile

LOOK_S = 0.2
#: Seconds that a pause lasts, and after which it is renewed.
PAUSE_S, RENEW_S = 20.0, 2.0
#: A source for which others wait has this time for its next batch, beside its trigger and its idle time.
STANDS_S = 30.0

Tell = Callable[[str], None] | None


@dataclass
class CleanPoint:
    """What was found: everything in it is durable, and is at one point."""

    plan: Plan
    manifests: dict[Asset, CheckpointManifest]
    commits: dict[Asset, CommitRecord]
    reads: dict[Consumer, dict[Edge, tuple[int, int]]]
    #: The last batch of each sink, by Spark's number.
    written: dict[Consumer, int]
    seconds: float = 0.0


@dataclass
class SourcesPaused:
    """While this is entered, no source of the run begins a batch, but those that were let on."""

    run: RunFile
    #: Let them stay paused: the run is about to end.
    stays: bool = False
    #: Sources that go on until their watermark is there.
    marks: dict[Asset, int] = field(default_factory=dict)
    _over: threading.Event = field(default_factory=threading.Event)
    #: An older word must not come after a newer one.
    _speaks: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> SourcesPaused:
        self.renew()
        threading.Thread(target=self._renew, name="pause", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._speaks:
            self._over.set()
        if not self.stays or kind is not None:
            with suppress(HoldfastError):
                self.run.ask_all("pause", {"seconds": 0})

    def let_on(self, marks: dict[Asset, int]) -> None:
        """Let these go on until their watermark is there. A mark is never lowered."""
        higher = {source: mark for source, mark in marks.items() if mark > self.marks.get(source, WATERMARK_MIN)}
        if higher:
            self.marks = self.marks | higher
            self.renew()

    def renew(self) -> None:
        with self._speaks:
            if self._over.is_set():
                return
            answers = self.run.ask_all("pause", {"seconds": PAUSE_S, "marks": self.marks})
        if not answers:
            raise HoldfastError(
                f"{self.run.pipeline} is not running",
                detail=f"None of {', '.join(sorted(self.run.endpoints))} answers.",
                hint=f"`holdfast run {self.run.dir}` goes on with it.",
            )

    def _renew(self) -> None:
        while not self._over.wait(RENEW_S):
            with suppress(HoldfastError):
                self.renew()


def check_store(run: RunFile, what: str) -> None:
    if not run.settings.get("store"):
        raise ConfigError(
            f"{what} needs a run with a store",
            detail=f"The state of {run.pipeline} is in the memory of its nodes alone.",
            hint="Start it with `holdfast run FILE --store URL` (docs/checkpoints.md).",
        )


def check_whole(run: RunFile, what: str) -> None:
    """A clean point has the state of everything."""
    check_store(run, what)
    missing = unstored(read_plan(run.path / "plan.json"), run.settings)
    if missing:
        raise ConfigError(
            f"{what} needs the state of every operator in the store",
            detail=f'Of {", ".join(missing)} nothing is there: checkpoint="none".',
            hint='With checkpoint="auto" it is kept. A plain `holdfast stop` works as ever.',
        )


def check_paged(run: RunFile, what: str) -> None:
    """What is to be read as pages must be there as pages."""
    plan = read_plan(run.path / "plan.json")
    others = sorted(operator.name for operator in plan.operators if operator.checkpoint == "eventual")
    if others:
        raise ConfigError(
            f"{what} needs the state of every operator as pages",
            detail=f'Of {", ".join(others)} the store has footprints: checkpoint="eventual".',
            hint="Only a restart reads those: `holdfast stop` or `stop --checkpoint`, then `holdfast run DIRECTORY`.",
        )


def reach_clean_point(
    run: RunFile, service: IoService, *, paused: SourcesPaused, limit_s: float, tell: Tell
) -> CleanPoint:
    """Called while the sources are paused. Waits until everything is at one point; an error after the limit."""
    plan = read_plan(run.path / "plan.json")
    began = time.monotonic()
    seen, trailing = _Seen(), Trailing(plan)
    said = ""
    while True:
        nodes = run.statuses()[0]
        behind = trailing.look(nodes, time.monotonic())
        paused.let_on({source: one.mark for source, one in behind.items()})
        if why := trailing.stuck(behind, time.monotonic()):
            raise HoldfastError(
                f"{run.pipeline} cannot come to a clean point now",
                detail=why,
                hint="The sources go on, and nothing is lost. Try again when that source has rows; a plain "
                "`holdfast stop` needs no clean point.",
            )
        waits_for = _told(behind) or _busy(nodes, plan)
        if not waits_for:
            run.ask_all("checkpoint")
            found = _look(run, plan, service, seen)
            waits_for = found if isinstance(found, str) else ""
            if isinstance(found, CleanPoint):
                found.seconds = time.monotonic() - began
                return found
        if tell and waits_for != said:
            tell(f"waiting: {waits_for}")
            said = waits_for
        if time.monotonic() - began > limit_s:
            raise HoldfastError(
                f"{run.pipeline} did not come to a clean point within {limit_s:.0f} s",
                detail=f"{waits_for}.",
                hint="It goes on as before. `holdfast status` and `events` show what is slow; --limit waits longer.",
            )
        time.sleep(LOOK_S)


class Trailing:
    """Sources that others wait for: a shard takes its inputs in order of event time, so what has come of one source may
    wait for rows of another one that is not as far. They go on, only as far as somebody needs it, while the others
    pause (`checkpoint/behind.py`)."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        #: By source: the batch that it is at, and since when.
        self._since: dict[Asset, tuple[int, float]] = {}

    def look(self, nodes: dict[str, Any], now_s: float) -> dict[Asset, NeededMark]:
        """Those that are not yet where they are needed."""
        at = _ledgers(nodes)
        wanted = needed(self._plan, _shards(nodes))
        found = {s: one for s, one in wanted.items() if to_core(at.get(s, _NOWHERE)[1]) < one.mark}
        before = self._since
        self._since = {
            source: before[source] if source in before and before[source][0] == batch else (batch, now_s)
            for source, (batch, _) in ((source, at.get(source, _NOWHERE)) for source in found)
        }
        return found

    def stuck(self, found: dict[Asset, NeededMark], now_s: float) -> str:
        """Who waits for whom in vain; "": nobody, as far as one can tell now."""
        for source, one in sorted(found.items()):
            stage = self._plan.stage(source)
            own_s = 2 * stage.trigger_ms / 1e3 + (stage.idle_ns / 1e9 if stage.idle_ns < 1 << 60 else 0.0)
            stands_s = now_s - self._since[source][1]
            if stands_s >= STANDS_S + own_s:
                return (
                    f"{one.operator} takes its inputs in order of event time: what it has of {one.ahead} waits until "
                    f"{source} has come to {stamp(to_micros(one.mark))}, and {source} has brought nothing for "
                    f"{stands_s:.0f} s."
                )
        return ""


#: The batch and the watermark of a source of which no ledger knows anything.
_NOWHERE = (-1, NEVER_US)


def _told(found: dict[Asset, NeededMark]) -> str:
    return "; ".join(
        f"{source} to come to {stamp(to_micros(one.mark))} in event time, for what {one.operator} has of {one.ahead}"
        for source, one in sorted(found.items())
    )


def _ledgers(nodes: dict[str, Any]) -> dict[Asset, tuple[int, int]]:
    """Of every stage its last batch, and the watermark after that in microseconds."""
    found: dict[Asset, tuple[int, int]] = {}
    for answer in nodes.values():
        for stage, told in answer.get("ledgers", {}).items():
            found[stage] = max(found.get(stage, _NOWHERE), (told["batch"], told["watermark_us"]))
    return found


def _shards(nodes: dict[str, Any]) -> dict[Asset, WaitingShard]:
    return {
        shard: WaitingShard(
            told["lag"],
            {Edge(e): WaitingInput(i["watermark"], i["before_last"], i["waiting"]) for e, i in told["inputs"].items()},
        )
        for answer in nodes.values()
        for shard, told in answer.get("shards", {}).items()
        if told["role"] == "primary"
    }


def _sources(plan: Plan) -> set[str]:
    return {stage.id for stage in plan.stages if stage.kind == "source"}


def unpaused(nodes: dict[str, Any], plan: Plan) -> list[str]:
    """Sources that have not said that nothing of them is under way."""
    paused = {
        stage
        for answer in nodes.values()
        for stage, told in answer.get("drivers", {}).items()
        if told["epoch"] and told.get("paused")
    }
    return sorted(_sources(plan) - paused)


def _busy(nodes: dict[str, Any], plan: Plan) -> str:
    """What the nodes say is still under way; "": nothing, as far as they know."""
    if begin := unpaused(nodes, plan):
        return f"{', '.join(begin)} to pause"
    waiting: dict[str, int] = {}
    for answer in nodes.values():
        for shard, told in answer.get("shards", {}).items():
            rows = sum(one["waiting"] for one in told["inputs"].values()) if told["role"] == "primary" else 0
            if rows or (told["role"] == "primary" and told.get("dead_waiting")):
                waiting[shard] = rows
    if waiting:
        names = ", ".join(sorted(waiting)[:3]) + (" and others" if len(waiting) > 3 else "")
        return f"{names} to consume {sum(waiting.values()):,} elements"
    return ""


class _Seen:
    """Manifests that were read: they never change."""

    def __init__(self) -> None:
        self.manifests: dict[tuple[Asset, int], CheckpointManifest] = {}


def _look(run: RunFile, plan: Plan, service: IoService, seen: _Seen) -> CleanPoint | str:
    """What is durable, if that is a clean point; else why it is not."""
    commits = commits_of(run)
    try:
        manifests = service.run(_newest(plan, seen))
    except StoreError as error:
        return f"the store ({error.what})"
    reads: dict[Consumer, dict[Edge, tuple[int, int]]] = {}
    written: dict[Consumer, int] = {}
    writing = []
    for stage in plan.stages:
        if stage.kind == "sink":
            folder = run.path / "checkpoints" / stage.id
            reads[stage.id] = positions(spark_checkpoint.last_planned(folder))
            written[stage.id] = spark_checkpoint.last_committed(folder)
            writing += [stage.id] if spark_checkpoint.newest_planned(folder) != written[stage.id] else []
        elif stage.kind == "between":
            commit = commits.get(stage.id)
            offsets = spark_checkpoint.source_offsets(commit.plan) if commit and commit.plan else []
            reads[stage.id] = {e: at for one in offsets if one for e, at in positions(one).items()}
    standing = DurablePoint(
        shards={shard: manifest.stand for shard, manifest in manifests.items()},
        commits=commits,
        reads={who: {edge: at for edge, (at, _) in read.items()} for who, read in reads.items()},
        writing=tuple(writing),
    )
    why = unclean(plan.topology, standing)
    if why:
        return why[0] + (f", and {len(why) - 1} more" if len(why) > 1 else "")
    return CleanPoint(plan, manifests, commits, reads, written)


def positions(offsets: dict[str, Any]) -> dict[Edge, tuple[int, int]]:
    """Offsets of `format("holdfast")`, as Spark keeps them."""
    return {Edge(edge): (int(at), int(mark)) for edge, (at, mark) in offsets.items()}


def commits_of(run: RunFile) -> dict[Asset, CommitRecord]:
    """The last commit of every stage, from the nodes that have its ledger."""
    found: dict[Asset, CommitRecord] = {}
    caller = run.caller()
    try:
        for name in sorted(run.endpoints):
            with suppress(HoldfastError, msgspec.MsgspecError):
                raw = caller.call_raw(name, "commits", timeout=5.0)
                for stage, commit in msgspec.msgpack.decode(raw, type=dict[Asset, CommitRecord | None]).items():
                    if commit is not None and (stage not in found or found[stage].batch < commit.batch):
                        found[stage] = commit
    finally:
        caller.close()
    return found


def _newest(plan: Plan, seen: _Seen) -> Steps[dict[Asset, CheckpointManifest]]:
    """Of every shard that has one: what its newest good checkpoint says of itself."""
    found: dict[Asset, CheckpointManifest] = {}
    for shard, head in (yield from heads_of(plan.topology.shard)).items():
        if not head.good:
            continue
        key = (shard, head.good[0].sequence)
        if key not in seen.manifests:
            seen.manifests[key] = yield from read_manifest(shard, head.good[0])
        found[shard] = seen.manifests[key]
    return found

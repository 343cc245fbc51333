"""Which sources have to go on, and up to where, before what has been handed over can be consumed.

A shard takes its inputs in order of event time: the next block comes from the edge with the lowest consumed watermark,
ties by edge id (`core/copy.py`). So the last block that waits on an edge, with the watermark before it, is taken only
when every other edge of the shard has a watermark that is further: at least the same one, and a later one where its id
comes first. What makes that edge must get there. A shard does when all its inputs have come so far and farther by its
lag, a stage between operators when all that it reads has; at the end of these ways are sources.

Every mark found like this is *needed*: without it, rows that were handed over are never consumed. So whoever pauses
all sources, but lets each go on until its watermark has reached its mark, hands over no batch that a clean point could
do without. And it ends. A source stops with the first batch that reaches its mark; the watermark before that batch has
not reached it, and this is where that batch waits in turn. So where sources feed operators directly, no batch waits
further than the furthest one that waited when all were paused, no mark grows beyond that, and no two sources can drive
each other on. Lags of joins between operators are added to it on the way. Only where a source comes to one operator on
two ways, one of them with a lag that is longer than its batches, is something always waiting: no point of such a
pipeline is clean. (The marks say so by growing without end; a limit has to be set by whoever waits.)

A source may feed several operators. If a mark of one of them lets it go on, it waits at the others, and there may be a
mark for a third source then: they are found at the next look.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.model.block import WATERMARK_MAX, WATERMARK_MIN
from holdfast.model.ids import Asset, Edge, operator_of
from holdfast.model.plan import Plan, edges_of


@dataclass(frozen=True)
class WaitingInput:
    """One input edge of a shard: the watermark that was consumed, the one before the last block that waits, and how
    many elements wait."""

    watermark: int
    before_last: int
    waiting: int


@dataclass(frozen=True)
class WaitingShard:
    #: How far its output stays behind its inputs in event time.
    lag: int
    inputs: Mapping[Edge, WaitingInput]


@dataclass(frozen=True)
class NeededMark:
    """A source has to go on until its watermark is `mark`: something of `ahead` waits for that in `operator`."""

    mark: int
    operator: str
    ahead: str


def needed(plan: Plan, shards: Mapping[Asset, WaitingShard]) -> dict[Asset, NeededMark]:
    """By source. One that is there already is in it, too."""
    walk = _Walk(plan, shards)
    for shard, at in sorted(shards.items()):
        full = [(one.before_last, edge) for edge, one in at.inputs.items() if one.waiting]
        if not full:
            continue
        before, last = max(full)
        what = (operator_of(shard), _name(plan, walk.producer[last]))
        for edge, one in at.inputs.items():
            mark = before + (edge < last)
            if edge != last and one.watermark < mark:
                walk.ask(walk.producer[edge], mark, *what)
    return walk.found


class _Walk:
    """From an edge up to the sources."""

    def __init__(self, plan: Plan, shards: Mapping[Asset, WaitingShard]) -> None:
        self.found: dict[Asset, NeededMark] = {}
        self.producer = plan.topology.producer
        self._plan = plan
        self._shards = shards
        self._asked: dict[Asset, int] = {}

    def ask(self, producer: Asset, mark: int, operator: str, ahead: str) -> None:
        mark = min(mark, WATERMARK_MAX)
        if mark <= self._asked.get(producer, WATERMARK_MIN):
            return
        self._asked[producer] = mark
        spec = self._plan.topology.shard.get(producer)
        if spec is not None:
            shard = self._shards.get(producer)  # without one that does not answer, too little is asked for
            above, mark = [self.producer[edge] for edge in spec.inputs], mark + (shard.lag if shard else 0)
        else:
            stage = self._plan.stage(producer)
            above = [self.producer[edge] for name in stage.reads for edge in edges_of(self._plan.operator(name))]
            if not above:
                self.found[producer] = NeededMark(mark, operator, ahead)
        for one in above:
            self.ask(one, mark, operator, ahead)


def _name(plan: Plan, producer: Asset) -> str:
    return operator_of(producer) if producer in plan.topology.shard else producer

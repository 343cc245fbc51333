"""A clean point is one on every edge, or it is none: each way in which it can be missed, alone."""

from __future__ import annotations

from dataclasses import replace as changed

import pytest
from msgspec.structs import replace

from holdfast.checkpoint.clean import DurablePoint, unclean
from holdfast.checkpoint.manifest import Stand
from holdfast.model.ids import Edge
from holdfast.model.parts import CommitRecord, OutputPart
from holdfast.model.topology import layered

#: Two shards of a stage, and one above them that reads both; a sink reads what that one makes.
SHAPE = layered(stages=1, shards=2, tops=1)
TOP = SHAPE.shard["v0"]
READER = SHAPE.readers[0]


def part(next_: int) -> OutputPart:
    return OutputPart(0, next_, next_, (), {})


def commit(batch: int) -> CommitRecord:
    return CommitRecord(query="q", batch=batch, epoch=1, attempt=1, watermark=5, offsets=(0, 1))


def clean() -> DurablePoint:
    shards = {}
    for shard in SHAPE.shards:
        batches = {edge: 7 for edge in shard.inputs if SHAPE.is_stage_edge(edge)}
        shards[shard.id] = Stand(
            positions=dict.fromkeys(shard.inputs, 40), batches=batches, outputs={e: part(40) for e in shard.outputs}
        )
    return DurablePoint(shards, {"s0": commit(7)}, {READER.id: dict.fromkeys(READER.edges, 40)})


def moved(standing: DurablePoint, shard: str, **fields) -> DurablePoint:
    return changed(standing, shards={**standing.shards, shard: replace(standing.shards[shard], **fields)})


def test_a_point_that_is_one_on_every_edge_is_clean():
    assert unclean(SHAPE, clean()) == []


def test_before_anything_was_handed_over_the_point_is_clean():
    assert unclean(SHAPE, DurablePoint({}, {}, {})) == []


EDGE: Edge = TOP.inputs[0]
CASES = {
    "the stage has handed over a batch more": changed(clean(), commits={"s0": commit(8)}),
    "a shard lacks a batch": moved(clean(), "u0", batches={"s0>u0": 6}),
    "a shard has no checkpoint": changed(clean(), shards={k: v for k, v in clean().shards.items() if k != "u1"}),
    "a shard lacks what another has made": moved(clean(), "v0", positions={**dict.fromkeys(TOP.inputs, 40), EDGE: 39}),
    "a shard is ahead of the checkpoint of another": moved(
        clean(), "v0", positions={**dict.fromkeys(TOP.inputs, 40), EDGE: 41}
    ),
    "a sink has not read everything": changed(clean(), reads={READER.id: dict.fromkeys(READER.edges, 39)}),
    "a sink has read nothing": changed(clean(), reads={}),
    "a sink is writing": changed(clean(), writing=(READER.id,)),
}


@pytest.mark.parametrize("standing", CASES.values(), ids=CASES.keys())
def test_a_point_that_is_missed_anywhere_is_not_clean(standing: DurablePoint):
    assert unclean(SHAPE, standing)

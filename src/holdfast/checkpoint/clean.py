"""A clean point: every shard has consumed the same batches of every stage, and nothing is on its way between them.

It is what `stop --checkpoint` leaves, what a savepoint keeps, and the only moment at which a state may be cut anew by
key (trap 12 of the design). Sources are paused to get there, but that is not why it is exact: whether a point is clean
is decided from what is durable and never changes again, and from nothing else.

* A checkpoint says which batch of every stage it has consumed, and from where to where its outputs go.
* A commit says which batch a stage has handed over; one between operators says up to where it has read them.
* Spark's checkpoint of a sink says up to where the sink has written, batch by batch.

If these agree on every edge, then every element that was ever made is either in the state of whoever consumes it, or
written by a sink: there is nothing else that a run would have to go on with. A source that was not paused in time only
makes them differ, and then the point is not taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.checkpoint.manifest import Stand
from holdfast.model.ids import Asset, Consumer, Edge, stage_edge
from holdfast.model.parts import CommitRecord
from holdfast.model.topology import Topology


@dataclass(frozen=True)
class DurablePoint:
    """What is durable of a run at one moment."""

    #: Of each shard, where its newest good checkpoint stands; a shard that has none has consumed nothing.
    shards: Mapping[Asset, Stand]
    #: The last commit of each stage that has handed over anything.
    commits: Mapping[Asset, CommitRecord]
    #: Up to where each sink and each stage between operators has read, by edge.
    reads: Mapping[Consumer, Mapping[Edge, int]]
    #: Sinks that are in the middle of a batch.
    writing: tuple[Consumer, ...] = ()


def unclean(topology: Topology, standing: DurablePoint) -> list[str]:
    """What keeps this from being a clean point, in words; nothing: it is one."""
    return [*_batches(topology, standing), *_between(topology, standing), *_readers(topology, standing)]


def made(standing: DurablePoint, producer: Asset, edge: Edge) -> int:
    """How many elements a shard has made on an edge, by its checkpoint."""
    stand = standing.shards.get(producer)
    return stand.outputs[edge].next if stand is not None and edge in stand.outputs else 0


def _batches(topology: Topology, standing: DurablePoint) -> list[str]:
    found = []
    for stage in topology.stages:
        commit = standing.commits.get(stage.id)
        last = commit.batch if commit is not None else -1
        for shard in stage.shards:
            stand = standing.shards.get(shard)
            has = stand.batches.get(stage_edge(stage.id, shard), -1) if stand is not None else -1
            if has != last:
                found.append(f"{shard} has batch {has} of {stage.id} in its checkpoint, which is at {last}")
    return found


def _between(topology: Topology, standing: DurablePoint) -> list[str]:
    found = []
    for shard in topology.shards:
        stand = standing.shards.get(shard.id)
        for edge in shard.inputs:
            if topology.is_stage_edge(edge):
                continue
            has = stand.positions.get(edge, 0) if stand is not None else 0
            there = made(standing, topology.producer[edge], edge)
            if has != there:
                found.append(f"{shard.id} has {has} elements of {edge} in its checkpoint, of {there}")
    return found


def _readers(topology: Topology, standing: DurablePoint) -> list[str]:
    found = [f"{consumer} is writing" for consumer in standing.writing]
    for reader in topology.readers:
        if reader.leased:
            continue
        read = standing.reads.get(reader.id, {})
        for edge in reader.edges:
            there = made(standing, topology.producer[edge], edge)
            if read.get(edge, 0) != there:
                found.append(f"{reader.id} has read {read.get(edge, 0)} elements of {edge}, of {there}")
    return found

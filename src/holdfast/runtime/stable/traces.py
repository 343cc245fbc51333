"""Logs of footprints (`core/protect/eventual.py`): entries on their way into the store, and a state out of them again.

A restore reads the entries that the newest one names, gathers the newest footprint of every open window, and replays
what was taken after the oldest of them: rows of other shards are in the entries, those of stages in their logs, where
the batch and the digest say which try was taken. All of it happens here, beside the loop; the core gets a state that
stands where the newest entry stands, as from any checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from holdfast.checkpoint.footprints import EntryJob, FootprintEntry
from holdfast.checkpoint.head import damaged
from holdfast.checkpoint.manifest import Fit, PartFile, head_of, stand_of
from holdfast.checkpoint.restore import RestoredLog, RestoreTimes
from holdfast.core.ready import LoadBatches, PutFootprints
from holdfast.errors import StateError, check
from holdfast.model.block import Block, Rows
from holdfast.model.footprint import Control
from holdfast.model.ids import Asset, Edge
from holdfast.model.parts import CheckpointHead, LoggedBatch, OutputPart, TakenRows
from holdfast.operators import CountWindowAggregate, Join, WindowAggregate
from holdfast.operators.gather import Gather, Gathered
from holdfast.operators.traced import TracedOperator
from holdfast.runtime.net.wire import pack_value, unpack_value
from holdfast.runtime.node.operators import ShardOperator

#: Reads batches of an edge from the log of its stage; as many as one answer may hold.
ReadBatches = Callable[[LoadBatches], tuple[LoggedBatch, ...]]


@dataclass(frozen=True)
class BroughtBackState:
    """An operator that is what its log says."""

    op: WindowAggregate | CountWindowAggregate
    times: RestoreTimes


class EntryBook:
    """Which entries of this node's shards are in the store: the core names them by number, the store by file."""

    def __init__(self) -> None:
        self._parts: dict[Asset, tuple[int, dict[int, PartFile]]] = {}

    def job(self, effect: PutFootprints, fit: Fit, now_ms: Callable[[], int]) -> EntryJob:
        control = effect.image
        assert isinstance(control, Control)
        epoch, parts = self._parts.get(effect.shard, (-1, {}))
        known = parts if epoch == effect.epoch else {}
        lacking = [number for number in effect.trace.needs if number not in known]
        if lacking:
            raise StateError(
                f"{effect.shard}: entry {effect.trace.number} builds on one that is not in the store",
                detail=f"It is number {lacking[0]}.",
                hint="The next entry has everything itself.",
            )
        outputs = {edge: part.blocks for edge, part in effect.head.outputs.items() if part.blocks}
        entry = FootprintEntry(control, pack_value(outputs), pack_value(effect.trace.taken))
        return EntryJob(
            effect.shard, entry, fit, stand_of(effect.head, effect.epoch),
            needs=tuple(known[number] for number in effect.trace.needs), log_from=effect.trace.batches, now_ms=now_ms,
        )  # fmt: skip

    def keep(self, effect: PutFootprints, job: EntryJob) -> None:
        """It counts."""
        check(job.own is not None, "an entry was kept that was not written", effect.shard)
        assert job.own is not None
        epoch, parts = self._parts.get(effect.shard, (-1, {}))
        needed = {number: parts[number] for number in effect.trace.needs} if epoch == effect.epoch else {}
        self._parts[effect.shard] = (effect.epoch, {**needed, effect.trace.number: job.own})


def bring_back(
    found: RestoredLog, operator: ShardOperator, read: ReadBatches
) -> tuple[CheckpointHead, BroughtBackState]:
    """The state that the newest entry stands for, in this fresh operator."""
    op = operator.op
    if isinstance(op, Join):
        raise StateError(f"{op.name}: its operator keeps no footprints", hint="Was the pipeline changed?")
    began = time.monotonic()
    gathered = _gather(found, op)
    op.bring_back(gathered)
    found.times.maps_s = time.monotonic() - began
    began = time.monotonic()
    _replay(found, operator, gathered, read)
    op.replayed(gathered)
    found.times.step_s = time.monotonic() - began - found.times.log_s
    found.times.sequence = found.entry.sequence
    found.times.extent, found.times.replayed = (
        gathered.end.after - gathered.since.before,
        gathered.end.rows - gathered.since.rows,
    )
    return head_of(found.manifest.stand, _outputs(found)), BroughtBackState(op, found.times)


def _gather(found: RestoredLog, op: TracedOperator) -> Gathered:
    walk = Gather(op)
    for entry in reversed(found.entries):
        if walk.take(entry.control, 0):
            break
    gathered = walk.end()
    check(gathered is not None, "a log of footprints has no entry", found.manifest.shard)
    assert gathered is not None
    return gathered


def _replay(found: RestoredLog, operator: ShardOperator, gathered: Gathered, read: ReadBatches) -> None:
    taken = [
        (entry.control.step, one)
        for entry in found.entries
        if entry.control.step > gathered.since.step
        for one in unpack_value(entry.taken, f"an entry of {found.manifest.shard}", tuple[TakenRows, ...])
    ]
    began = time.monotonic()
    batches = _Batches(found, read, [one for _, one in taken])
    found.times.log_s, found.times.log_batches = time.monotonic() - began, len(batches.found)
    for step, one in taken:
        operator.replay(one.edge, one.rows if one.batch < 0 else batches.rows(one), step)


class _Batches:
    """Rows of stages that were taken, from their logs."""

    def __init__(self, found: RestoredLog, read: ReadBatches, taken: list[TakenRows]) -> None:
        self._shard = found.manifest.shard
        self.found: dict[tuple[Edge, int, int, int], Rows] = {}
        for edge in dict.fromkeys(one.edge for one in taken if one.batch >= 0):
            wanted = {one.batch for one in taken if one.edge == edge}
            first, last = min(wanted), max(wanted)
            while first <= last:
                got = read(LoadBatches(ticket=0, edge=edge, first=first, last=last))
                for one in got:
                    digest = one.held.digest
                    self.found[edge, one.held.batch, digest.rows, digest.hash] = one.held.rows
                first = max((one.held.batch for one in got), default=last) + 1

    def rows(self, one: TakenRows) -> Rows:
        rows = self.found.get((one.edge, one.batch, one.digest.rows, one.digest.hash))
        if rows is None:
            raise damaged(
                f"the log of {self._shard}", f"Batch {one.batch} of {one.edge} is not in the log of its stage."
            )
        return rows


def _outputs(found: RestoredLog) -> dict[Edge, OutputPart]:
    """The output that nobody has acknowledged, of all entries."""
    blocks: dict[Edge, list[Block]] = {}
    for entry in found.entries:
        what = f"an entry of {found.manifest.shard}"
        for edge, some in unpack_value(entry.outputs, what, dict[Edge, tuple[Block, ...]]).items():
            blocks.setdefault(edge, []).extend(some)
    return {
        edge: msgspec.structs.replace(
            part,
            start=part.trimmed,
            blocks=tuple(_block(block) for block in blocks.get(edge, ()) if block.start >= part.trimmed),
        )
        for edge, part in found.manifest.stand.outputs.items()
    }


def _block(block: Block) -> Block:
    """Msgpack knows no tuples: no rows came back as a list."""
    return block if len(block.rows) else msgspec.structs.replace(block, rows=())

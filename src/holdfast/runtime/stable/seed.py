"""The first checkpoints of a run that starts from a savepoint of another one.

Every shard of the new run gets a checkpoint in the store of the new run, before any node starts: with the state of the
savepoint, as it was or cut anew by key, or with none for an operator that is new. From there on the start is a restart
like any other: nodes find a placement record and ledgers in their journals, claim the shards, and read the checkpoints.

Nothing is on its way at a savepoint, so nothing of the old run's positions is needed: every edge of the new run starts
anew, one from a stage as if all batches so far had come without rows. What goes on are the numbers of batches, the
watermarks, and where dead letters stand, since those are files with a name. The old run's store is only read.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.checkpoint import claim, fit_of, publish, take
from holdfast.checkpoint.inspect import entry_of, head_of
from holdfast.checkpoint.look import SeenState, look_at
from holdfast.checkpoint.manifest import CheckpointManifest, Stand
from holdfast.checkpoint.restore import read_manifest
from holdfast.checkpoint.savepoint import Savepoint
from holdfast.core.copy import DEAD_LETTERS
from holdfast.core.ready import LogBatch
from holdfast.errors import StateError
from holdfast.model.block import WATERMARK_MIN, batch_length, digest_of
from holdfast.model.ids import Asset, Edge, dead_edge, maker_of, operator_of, shard_id, stage_edge
from holdfast.model.parts import CommitRecord, OutputPart
from holdfast.model.plan import OperatorPlan, Plan, StagePlan, edges_of
from holdfast.operators import StateConfig
from holdfast.operators.build import build, rows_schema
from holdfast.operators.recut import Widening, recut
from holdfast.runtime.net.wire import pack_value
from holdfast.runtime.stable import batches
from holdfast.runtime.stable.checkpoints import OUTPUTS
from holdfast.store.service import IoService

#: The claim of whoever seeds; nodes come with higher ones.
_EPOCH = 1


@dataclass(frozen=True)
class Origin:
    """Where the state comes from."""

    service: IoService
    point: Savepoint
    plan: Plan


class Seeding:
    """Of one new run. `memory`: bytes of a page and of a shard. `defaults`: by operator whose aggregates have changed,
    those of its new ones."""

    def __init__(
        self,
        origin: Origin,
        service: IoService,
        plan: Plan,
        memory: tuple[int, int],
        defaults: Mapping[str, Mapping[str, str]],
    ) -> None:
        self._origin = origin
        self._service = service
        self._plan = plan
        self._config = StateConfig(page_bytes=memory[0], limit_bytes=memory[1])
        self._defaults = defaults
        self._read: dict[Asset, CheckpointManifest] = {}
        self._kept = {one.name: one for one in origin.plan.operators}
        self.commits = {
            stage.id: commit
            for stage in plan.topology.stages
            if stage.shards and (commit := self._commit(stage.id, stage.shards)) is not None
        }

    def run(self, tell: Callable[[str], None]) -> None:
        """Write everything. What fails leaves a store that no run uses."""
        for operator in self._plan.operators:
            tell(f"writing the state of {operator.name} into {operator.shards} shards")
            stands = [self._stand(shard_id(operator.name, i), operator) for i in range(operator.shards)]
            for number, op in enumerate(self._states(operator)):
                self._write(shard_id(operator.name, number), operator, op, stands[number])
                op.pool.abandon()
        for stage, commit in self.commits.items():  # should the new run lose its directory before its first batch
            parts = dict.fromkeys(commit.ends, ())
            effect = LogBatch(
                ticket=0, stage=stage, batch=commit.batch, epoch=commit.epoch, attempt=commit.attempt, parts=parts,
                commit=commit, last=None,
            )  # fmt: skip
            self._service.run(batches.write(self._plan.query, effect))

    # --- states

    def _states(self, operator: OperatorPlan) -> Iterator[Any]:
        """The operators of all its shards, in order."""
        old = self._kept.get(operator.name)
        stored = self._stored(old) if old is not None else []
        if old is None or not stored:
            yield from (build(operator, self._config) for _ in range(operator.shards))
            return
        added = self._defaults.get(operator.name)
        if old.shards == operator.shards and added is None and self._is_as_large(stored[0]):
            yield from (self._look(shard, operator).op for shard in stored)
            return
        new = [build(operator, self._config) for _ in range(operator.shards)]
        widening = None
        if added is not None:
            was, now = (build(one).program for one in (old, operator))  # type: ignore[union-attr]
            widening = Widening(was, now, rows_schema(operator.inputs[0]), added)
        recut(self._opened(stored, old), new, widening)
        yield from new

    def _opened(self, stored: list[Asset], old: OperatorPlan) -> Iterator[Any]:
        for shard in stored:
            op = self._look(shard, old).op
            yield op
            op.pool.abandon()

    def _stored(self, old: OperatorPlan) -> list[Asset]:
        """Its shards, if they have checkpoints: all of them have, or none has consumed anything."""
        shards = [shard_id(old.name, i) for i in range(old.shards)]
        found = [shard for shard in shards if shard in self._origin.point.shards]
        if found and found != shards:
            missing = next(shard for shard in shards if shard not in found)
            raise StateError(
                f"savepoint {self._origin.point.name} has no checkpoint of {missing}",
                detail=f"It has those of {', '.join(found)}. Nothing was changed.",
                hint="Make another savepoint.",
            )
        return found

    def _look(self, shard: Asset, operator: OperatorPlan) -> SeenState[Any]:
        point = self._origin.point
        return self._origin.service.run(
            look_at(shard, point.shards[shard], lambda config: build(operator, config), point.deployment)
        )

    def _is_as_large(self, shard: Asset) -> bool:
        """Are its pages as large as the new run's? Else records are moved one by one."""
        return self._manifest(shard).fit.page_bytes == self._config.page_bytes

    def _manifest(self, shard: Asset) -> CheckpointManifest:
        if shard not in self._read:
            head = self._origin.service.run(head_of(shard))
            entry = entry_of(head, self._origin.point.shards[shard])
            self._read[shard] = self._origin.service.run(read_manifest(shard, entry))
        return self._read[shard]

    # --- where a new shard stands

    def _stand(self, shard: Asset, operator: OperatorPlan) -> Stand:
        topology = self._plan.topology
        spec = topology.shard[shard]
        old = self._kept.get(operator.name)
        before = [self._manifest(one).stand for one in self._stored(old)] if old is not None else []
        marks = self._watermarks(before)
        stage_edges = [edge for edge in spec.inputs if topology.is_stage_edge(edge)]
        dead = max((s.outputs[edge].next for s in before for edge in s.outputs if edge.endswith(".dead")), default=0)
        outputs = {edge: _nothing(0, topology.consumers[edge]) for edge in spec.outputs}
        outputs[dead_edge(shard)] = _nothing(dead, (DEAD_LETTERS,))
        return Stand(
            epoch=_EPOCH,
            positions=dict.fromkeys(spec.inputs, 0) | {edge: self._end(edge) for edge in stage_edges},
            watermarks={edge: marks.get(self._source(self._plan, edge), WATERMARK_MIN) for edge in spec.inputs},
            gap=(
                max((one.gap[0] for one in before), default=0),
                max((one.gap[1] for one in before), default=WATERMARK_MIN),
            ),
            outputs=outputs,
            batches={edge: self._batch(topology.producer[edge]) for edge in stage_edges},
        )

    def _watermarks(self, stands: list[Stand]) -> dict[str, int]:
        """Of each stage or operator that feeds it: the same on every shard, since all have consumed the same."""
        found: dict[str, int] = {}
        for stand in stands:
            for edge, mark in stand.watermarks.items():
                source = self._source(self._origin.plan, edge)
                if found.setdefault(source, mark) != mark:
                    raise StateError(
                        f"savepoint {self._origin.point.name} is not of one point",
                        detail=f"What comes from {source} is at watermarks {found[source]} and {mark}.",
                        hint="Nothing was changed. This is a bug; another savepoint may do.",
                    )
        return found

    @staticmethod
    def _source(plan: Plan, edge: Edge) -> str:
        producer = plan.topology.producer[edge]
        return producer if producer in plan.topology.stage else operator_of(producer)

    def _batch(self, stage: Asset) -> int:
        return self.commits[stage].batch if stage in self.commits else -1

    def _end(self, edge: Edge) -> int:
        commit = self.commits.get(self._plan.topology.producer[edge])
        return commit.ends[edge] if commit is not None else 0

    def _commit(self, stage: Asset, shards: tuple[Asset, ...]) -> CommitRecord | None:
        """The last one of the old stage, as if it and all before it had been handed over on the new edges without rows:
        the rows are in the states."""
        commit = self._origin.point.commits.get(stage)
        if commit is None:
            return None
        text = carried_plan(commit.plan, self._origin.plan.stage(stage), self._plan.stage(stage), self._plan)
        edges = [stage_edge(stage, shard) for shard in shards]
        ends = dict.fromkeys(edges, (commit.batch + 1) * batch_length(0))
        digests = dict.fromkeys(edges, digest_of(()))
        return msgspec.structs.replace(commit, query=self._plan.query, digests=digests, ends=ends, plan=text)

    # --- writing

    def _write(self, shard: Asset, operator: OperatorPlan, op: Any, stand: Stand) -> None:
        tenure = self._service.run(
            claim(shard, self._plan.query, epoch=_EPOCH, holder=f"{self._plan.query}.{time.time_ns()}")
        )
        job = take(
            op, shard, stand, fit_of(op, self._plan.query, operator.output), now_ms=lambda: time.time_ns() // 1_000_000,
            parts={OUTPUTS: [pack_value(stand.outputs)]},
        )  # fmt: skip
        self._service.run(publish(tenure, job))


def _nothing(at: int, consumers: Iterable[Any]) -> OutputPart:
    return OutputPart(at, at, at, (), dict.fromkeys(consumers, at))


def carried_plan(text: str, old: StagePlan, new: StagePlan, plan: Plan) -> str:
    """Spark's plan of the last batch of a stage, as the new run's query wants to find it. `plan` is the new one."""
    if not text:
        return text
    if new.kind == "source":
        return _with_outlets(text, _outlets(old), _outlets(new)) if old.outlets != new.outlets else text
    return moved_plan(text, plan)


def _outlets(stage: StagePlan) -> int:
    return len(set(stage.outlets)) or 1


def _with_outlets(text: str, before: int, after: int) -> str:
    """A stage with several outlets reads its sources once for each of them, as far as Spark's plan says."""
    version, settings, *offsets = text.splitlines()
    return "\n".join([version, settings, *offsets[: len(offsets) // before] * after])


def moved_plan(text: str, plan: Plan) -> str:
    """Spark's plan of a batch whose offsets are positions of the old run: the same with the edges of the new one, which
    begin at 0, and with the watermark that the old ones had. What each line reads is said by the edges in it: a query
    may read an operator more than once. One that nothing has come from yet ("-") begins at the beginning, as ever."""
    version, settings, *offsets = text.splitlines()
    lines = [version, settings]
    for line in offsets:
        known: dict[Edge, list[int]] = json.loads(line) if line != "-" else {}
        mark = min((mark for _, mark in known.values()), default=WATERMARK_MIN)
        names = dict.fromkeys(operator_of(maker_of(edge)) for edge in known)
        moved = {edge: [0, mark] for name in names for edge in edges_of(plan.operator(name))}
        lines.append(json.dumps(moved) if known else line)  # as the data source writes it: Spark compares texts
    return "\n".join(lines)

"""A pipeline run without nodes: real Structured Streaming for its sources, its operators fed directly as shards are.

Every source stage is one real query, so that Spark's checkpoints are what `verify` finds after a real run. Lateness,
positions of watermarks and the order of input edges are as the design says; shards are cut by a hash of our own, since
results must not depend on it. Nothing is replicated and nothing fails here: that is for other tests.
"""

from __future__ import annotations

import threading
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.model.ids import operator_of, shard_id
from holdfast.model.plan import FOREVER_US, NEVER_US, InputPlan, OperatorPlan, Plan, StagePlan
from holdfast.operators import Join, WindowAggregate, build, rows_in
from holdfast.pipeline import Pipeline, feed_of, stage_frame, stage_function
from holdfast.pipeline.frames import outlet_rows
from holdfast.pipeline.layout import lay_out
from holdfast.pipeline.verify import as_written

#: A block of an edge: rows, then the watermark.
Block = tuple[pa.Table | None, int]


def shard_of(batch: pa.Table, by: tuple[str, ...], shards: int) -> list[pa.Table]:
    if shards == 1:
        return [batch]
    keys = zip(*(batch.column(c).to_pylist() for c in by), strict=True) if by else [()] * batch.num_rows
    numbers = pa.array([zlib.crc32(repr(key).encode()) % shards for key in keys], pa.int64())
    return [batch.filter(pc.equal(numbers, i)) for i in range(shards)]


def _promised(op, watermark: int) -> int:
    """The watermark of an output: a pair of a join is as old as its left row, which may be older than the input's."""
    if not isinstance(op, Join) or watermark in (NEVER_US, FOREVER_US):
        return watermark
    return watermark - (2 * op.window.reach_us)


@dataclass
class InProcess:
    pipeline: Pipeline
    plan: Plan
    run_dir: Path
    spark: object
    edges: dict[str, list[Block]] = field(default_factory=dict)
    last_batches: dict[str, int] = field(default_factory=dict)

    def run(self, batches: int) -> None:
        """Read so many batches of every source (fewer, if it ends), run all operators, and fill the sinks."""
        for stage in self.plan.stages:
            if stage.kind == "source":
                self._read(stage, batches)
        for operator in self.plan.operators:
            for given in operator.inputs:
                stage = next((s for s in self.plan.stages if s.id == given.source), None)
                if stage is not None and stage.kind == "between" and stage.id not in self.last_batches:
                    self._between(stage)
            for i in range(operator.shards):
                self._shard(operator, shard_id(operator.name, i))
        for stage in self.plan.stages:
            if stage.kind == "sink":
                self._write(stage)

    # -- stages

    def _read(self, stage: StagePlan, batches: int) -> None:
        state = {"watermark": NEVER_US}
        done = threading.Event()

        def batch(frame, k: int) -> None:
            if k >= batches:
                done.set()
                return
            self._hand_over(stage, frame, k, state)
            self.last_batches[stage.id] = k

        writer = stage_frame(self.pipeline, stage.id, self.spark).writeStream.foreachBatch(batch)
        writer = writer.option("checkpointLocation", str(self.run_dir / "checkpoints" / stage.id))
        query = writer.start()
        if self._is_files(stage):
            query.processAllAvailable()
        else:
            assert done.wait(120), f"{stage.id} has not read {batches} batches in 120 s: {query.exception()}"
        query.stop()
        self._seal(stage, FOREVER_US)

    def _is_files(self, stage: StagePlan) -> bool:
        return "FileSource" in stage_frame(self.pipeline, stage.id, self.spark)._jdf.queryExecution().toString()

    def _hand_over(self, stage: StagePlan, frame, k: int, state: dict[str, int]) -> None:
        outlets = stage.outlets or ("",) * len(stage.feeds)
        times = [f"`{outlet}`.`{stage.event_time}`" if outlet else f"`{stage.event_time}`" for outlet in outlets]
        moment = f"unix_micros(coalesce({', '.join(times)}))"
        frame = frame.where(f"{moment} is not null")
        watermark = state["watermark"]
        if watermark > NEVER_US:
            late = frame.where(f"{moment} < {watermark}L").toArrow()
            if late.num_rows:
                folder = self.run_dir / "late" / stage.id
                folder.mkdir(parents=True, exist_ok=True)
                pq.write_table(late, folder / f"batch={k}.parquet")
            frame = frame.where(f"{moment} >= {watermark}L")
        highest = frame.selectExpr(f"max({moment})").collect()[0][0]
        for (name, number), outlet in zip(stage.feeds, outlets, strict=True):
            rows = outlet_rows(frame, outlet) if outlet else frame
            self._feed(stage, rows, self.plan.operator(name), number, partial=k % 2 == 0)
        if highest is not None:
            state["watermark"] = max(watermark, highest - stage.delay_us)
        self._seal(stage, state["watermark"])

    def _feed(self, stage: StagePlan, frame, operator: OperatorPlan, number: int, partial: bool) -> None:
        """As partial aggregates or as rows: a shard takes both."""
        from pyspark.sql import functions as F

        feed = feed_of(operator, number)
        if partial and feed.partial:
            keys = [F.expr(sql).alias(name) for name, sql in feed.group.items()]
            table = frame.groupBy(*keys).agg(*(F.expr(sql).alias(n) for n, sql in feed.partial.items())).toArrow()
        else:
            table = frame.select(*feed.columns).toArrow().cast(feed.schema)
        for i, part in enumerate(shard_of(table, feed.by, operator.shards)):
            self.edges.setdefault(f"{stage.id}>{shard_id(operator.name, i)}", []).append((part, NEVER_US))

    def _seal(self, stage: StagePlan, watermark: int) -> None:
        for name, _ in stage.feeds:
            for i in range(self.plan.operator(name).shards):
                self.edges.setdefault(f"{stage.id}>{shard_id(name, i)}", []).append((None, watermark))

    def _rows_of(self, stage: StagePlan) -> dict[str, object]:
        """Everything that the operators a stage reads have emitted, as batch DataFrames."""
        frames = {}
        for name in stage.reads:
            operator = self.plan.operator(name)
            schema = pa.ipc.read_schema(pa.py_buffer(operator.output))
            tables = [t for i in range(operator.shards) for t, _ in self.edges[f"{name}-{i}.0"] if t is not None]
            whole = pa.concat_tables([schema.empty_table(), *tables])
            frames[name] = self.spark.createDataFrame(whole.combine_chunks())  # PySpark 4.3 takes the first chunk only
        return frames

    def _between(self, stage: StagePlan) -> None:
        self.last_batches[stage.id] = 0
        frame = stage_function(self.pipeline, stage.id)(self._rows_of(stage))
        for name, number in stage.feeds:
            self._feed(stage, frame, self.plan.operator(name), number, partial=True)
        self._seal(stage, FOREVER_US)

    def _write(self, stage: StagePlan) -> None:
        sink = lay_out(self.pipeline).stages[stage.id].sink
        made = as_written(stage_function(self.pipeline, stage.id)(self._rows_of(stage)), sink)
        made.write.mode("overwrite").parquet(self.sink_path(stage.id))

    def sink_path(self, sink: str) -> str:
        from holdfast.pipeline.planner import Planner

        planner = Planner(self.pipeline, self.spark)
        planner.plan()
        return planner.sinks[sink].path

    # -- shards

    def _input_of(self, edge: str, operator: OperatorPlan) -> InputPlan:
        producer = self.plan.topology.producer[edge]
        if producer in self.plan.topology.stage:
            return next(i for i in operator.inputs if i.source == producer)
        port = int(edge.rpartition(".")[2]) - 1
        for name, number, shards, _ in self.plan.operator(operator_of(producer)).feeds:
            if port < shards:
                assert name == operator.name
                return operator.inputs[number]
            port -= shards
        raise AssertionError(edge)

    def _shard(self, operator: OperatorPlan, shard: str) -> None:
        """Blocks from the edge with the lowest consumed watermark, ties by edge id; all of them."""
        spec = self.plan.topology.shard[shard]
        op = build(operator, name=shard)
        given = {edge: self._input_of(edge, operator) for edge in spec.inputs}
        consumed = dict.fromkeys(spec.inputs, NEVER_US)
        at = dict.fromkeys(spec.inputs, 0)
        while any(at[e] < len(self.edges[e]) for e in spec.inputs):
            edge = min((e for e in spec.inputs if at[e] < len(self.edges[e])), key=lambda e: (consumed[e], e))
            table, watermark = self.edges[edge][at[edge]]
            at[edge] += 1
            consumed[edge] = max(consumed[edge], watermark)
            made = self._step(op, given[edge], table, min(consumed.values()))
            self._emit(operator, shard, made, _promised(op, min(consumed.values())))
        if isinstance(op, WindowAggregate):
            assert len(op.state) == 0, "everything has closed"

    def _step(self, op, given: InputPlan, table: pa.Table | None, watermark: int) -> list[pa.Table]:
        out: list[pa.Table] = []
        batches = table.combine_chunks().to_batches() if table is not None and table.num_rows else []
        for batch in batches:
            batch = rows_in(given, batch)
            if isinstance(op, Join):
                out.append(op.process(given.side, batch))
            elif "pane_start" in batch.schema.names and given.partial:
                op.process_partial(batch)
            elif isinstance(op, WindowAggregate):
                op.process(batch)
            else:
                out.append(op.process(batch))
        sides = (0, 1) if isinstance(op, Join) else (None,)
        out += [op.on_watermark(watermark) if side is None else op.on_watermark(side, watermark) for side in sides]
        return out

    def _emit(self, operator: OperatorPlan, shard: str, made: list[pa.Table], watermark: int) -> None:
        table = pa.concat_tables(made)
        self.edges.setdefault(f"{shard}.0", []).append((table, watermark))
        port = 1
        for _, _, shards, by in operator.feeds:
            for part in shard_of(table, by, shards):
                self.edges.setdefault(f"{shard}.{port}", []).append((part, watermark))
                port += 1

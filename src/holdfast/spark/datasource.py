"""`format("holdfast")`: streams of a running pipeline, for its own sinks and for any Spark program.

    spark.dataSource.register(HoldfastDataSource)
    spark.readStream.format("holdfast").option("run", "holdfast-run/netmon").option("stream", "talkers").load()

Writing, to a port of the pipeline, is in writer.py and port.py. What follows is about reading.

Options: `stream` (an operator's name); `run` (directory of the run, or its run.json), or `endpoints` and `secret_file`;
`consumer` (a name for the lease: of two programs with one name the later reads on, the earlier fails); `max_rows` a
micro-batch. A reader that is not the pipeline's own holds a lease: while it reads, nothing is trimmed before it has
committed; if it is silent for longer than the lease, rows may be gone, and it fails rather than skip them. A stream
that ends keeps its lease until it lapses, since it may be started again from its checkpoint; and Spark kills the
process so soon after it has called `stop` that this could tell nobody.

`spark.read` gives what is retained at the moment when Spark plans the query: a lease is taken then, and each task lets
go of what it has read. So a DataFrame is one look; the next one is another `load()`.

Offsets are positions and watermarks, {edge: [position, watermark]}. A guest's also name the run they are of, since its
checkpoint is its own: positions of another run would skip rows here, or point nowhere. The latest offset comes from the
core's `Reader`, which follows the edges without their rows in the driver's Python process; it never goes back. Tasks
fetch rows from the nodes directly. Spark asks for the latest offset beyond `start` only when everything before `start`
is in its commit log, so that each such question acknowledges `start`: the last batch of a stream that falls silent too.

Nothing but positions moves while no rows come; then an empty batch is planned only now and then, so that the shards'
queues can be trimmed (and at once when a stream ends, or with `watermarks`, which stages between operators set).
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from holdfast.errors import ConfigError
from holdfast.model.block import WATERMARK_MAX, WATERMARK_MIN
from holdfast.model.ids import Consumer, Edge
from holdfast.model.plan import OperatorPlan, Plan, edges_of
from holdfast.spark.connect import WAIT_S, Target, let_go, plan_of, port_of, run_of
from holdfast.spark.fetch import Order
from holdfast.spark.follower import HOLD_S_MAX, POLL_S, Follower, Offset, ReadOptions, of_another_run
from holdfast.spark.kept_plans import SinkKeeper
from holdfast.spark.latch import wait_at
from holdfast.spark.orders import bounds, hold, orders, read_order, rehearse
from holdfast.spark.writer import BatchPortWriter, StreamPortWriter

#: A batch of up to this many rows is sent along when it is planned.
SENT_ROWS_MAX = 50_000
#: The first batches of a stage's reader have at most as many. Else what has waited for a stage that starts would be one
#: large batch, and its tasks would wait until there are Python workers for them.
FIRST_BATCHES = 4
#: Without rows, a batch is planned after so long, so that positions can be acknowledged.
EMPTY_S = 2.0

#: In a guest's offsets: the run. No edge is called so.
RUN = "run"


class HoldfastDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "holdfast"

    @cached_property
    def settings(self) -> ReadOptions:
        options: Mapping[str, str] = self.options
        if not options.get("stream"):
            raise ConfigError('format("holdfast"): which stream?', hint='Give .option("stream", <operator\'s name>).')
        directory = options.get("run", "").removesuffix("run.json")
        run = run_of(options)
        if not run.deployment:
            run = msgspec.structs.replace(run, deployment=plan_of(run, directory).query)
        return ReadOptions(
            run=run,
            directory=directory,
            stream=options["stream"],
            consumer=Consumer(options.get("consumer", "")),
            epoch=_number(options, "epoch", 0),
            parallelism=_number(options, "parallelism", 4),
            max_rows=_number(options, "max_rows", 0),
            watermarks=options.get("watermarks", "") == "true",
            latch=options.get("latch", ""),
            keeps=options.get("keeps", "") == "true",
        )

    @cached_property
    def plan(self) -> Plan:
        return plan_of(self.settings.run, self.settings.directory)

    def operator(self) -> OperatorPlan:
        found = [o for o in self.plan.operators if o.name == self.settings.stream]
        if not found:
            raise ConfigError(
                f'format("holdfast"): pipeline {self.plan.pipeline!r} has no stream {self.settings.stream!r}',
                hint=f"There are {', '.join(o.name for o in self.plan.operators)}.",
            )
        return found[0]

    def schema(self) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(pa.ipc.read_schema(pa.py_buffer(self.operator().output)))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return HoldfastStreamReader(self.settings)

    def reader(self, schema: StructType) -> DataSourceReader:
        self.operator()  # an error, if there is none
        return HoldfastReader(self.settings, self.plan)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return BatchPortWriter(self._target(), schema, overwrite, self.options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return StreamPortWriter(self._target(), schema, overwrite, self.options)

    def _target(self) -> Target:
        settings = self.settings
        if not settings.directory:
            raise ConfigError(
                'format("holdfast"): to write, the directory of the run is needed',
                detail="Late rows are recorded there.",
                hint='Give .option("run", <its directory>), the --dir of `holdfast run`.',
            )
        return Target(
            run=settings.run,
            directory=os.path.abspath(settings.directory),
            plan=self.plan,
            stage=port_of(self.plan, settings.stream),
            wait_s=float(self.options.get("wait_s", WAIT_S)),
        )


def _number(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name, str(default))
    if not text.isdecimal():
        raise ConfigError(f'format("holdfast"): option {name!r} must be a number', detail=f"It is {text!r}.")
    return int(text)


class Pieces(InputPartition):
    """What one task fetches."""

    def __init__(self, order: Order) -> None:
        super().__init__(None)
        self.raw = msgspec.json.encode(order)


def read_pieces(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, Pieces):
        return  # nothing is retained: Spark plans a task all the same
    yield from read_order(msgspec.json.decode(partition.raw, type=Order))


class HoldfastReader(DataSourceReader):
    """Batch: everything that is retained now."""

    def __init__(self, settings: ReadOptions, plan: Plan) -> None:
        # a lease of its own: letting go of it must not end that of a stream with the same name
        self.settings = msgspec.structs.replace(settings, consumer=f"batch-{uuid.uuid4().hex[:12]}", epoch=0)
        self.plan = plan

    def partitions(self) -> Sequence[InputPartition]:
        follower, start, end = hold(self.settings, self.plan)
        try:
            wanted, record = follower.pieces(start, end), follower.record()
        finally:
            follower.close()
        idle = set(start) - {piece.edge for piece in wanted}
        if idle:
            let_go(self.settings.run, self.settings.consumer, idle)
        query = self.plan.topology.query
        return [Pieces(order) for order in orders(self.settings, wanted, record, query, last=True)] if wanted else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_pieces(partition)


class HoldfastStreamReader(_SimpleStreamReaderWrapper, SupportsTriggerAvailableNow):
    """Sends the rows of a small batch along with its only partition, so that no task needs a Python worker for them:
    75-81 ms a batch instead of 154-255 ms. Spark does that for the readers of this class of PySpark's alone, which has
    nothing else that is used here (`tests/unit/spark/test_spark_sent_rows.py` looks whether it still does)."""

    def __init__(self, settings: ReadOptions) -> None:
        super().__init__(self)  # pyright: ignore[reportArgumentType] (it is asked only whether it can do availableNow)
        if settings.latch:
            epoch = wait_at(settings.latch, lambda: rehearse(settings))
            settings = msgspec.structs.replace(settings, epoch=epoch)
        #: What Spark has planned last, if its rows are to be sent along.
        self._small: Pieces | None = None
        name = settings.consumer or f"reader-{uuid.uuid4().hex[:12]}"
        self.settings = msgspec.structs.replace(settings, consumer=name)
        self._follower: Follower | None = None
        self._keeper: SinkKeeper | None = None
        self._moved = time.monotonic()
        self._planned = 0
        #: With the trigger `availableNow`: where each edge ended when the query began.
        self._ends: dict[Edge, int] | None = None

    @cached_property
    def plan(self) -> Plan:
        plan = plan_of(self.settings.run, self.settings.directory)
        if not self.settings.epoch and self.settings.consumer in (*plan.topology.shard, *plan.topology.stage):
            raise ConfigError(
                f'format("holdfast"): consumer {self.settings.consumer!r} is a part of the pipeline itself',
                hint='Give another name: .option("consumer", ...), or none.',
            )
        return plan

    def follower(self, start: Offset) -> Follower:
        if self._follower is None:
            self._follower = Follower(self.settings, self.plan, start)
        return self._follower

    def _signed(self, positions: Offset) -> dict:
        """As Spark keeps it. The pipeline's own stages need no run in it: their checkpoints are claimed for one."""
        return positions if self.settings.epoch else {**positions, RUN: self.plan.query}

    def _own(self, offset: dict) -> Offset:
        """The positions of what Spark has kept, if they are of this run."""
        if not self.settings.epoch and offset.get(RUN) != self.plan.query:
            raise of_another_run(f"The run is {self.plan.query}, they are of {offset.get(RUN, 'an unknown one')}.")
        return {edge: at for edge, at in offset.items() if edge != RUN}

    def initialOffset(self) -> dict:
        if self.settings.epoch:
            return {edge: [0, WATERMARK_MIN] for edge in edges_of(self.plan.operator(self.settings.stream))}
        self.stop()
        self._follower, start, _ = hold(self.settings, self.plan)
        return self._signed(start)

    def prepareForTriggerAvailableNow(self) -> None:
        found = bounds(self.settings, edges_of(self.plan.operator(self.settings.stream)))
        self._ends = {edge: end for edge, (_, end) in found.items()}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.settings.max_rows) if self.settings.max_rows else ReadAllAvailable()

    def latestOffset(self, start: dict, limit: ReadLimit) -> dict:
        return self._signed(self._latest(self._own(start), limit))

    def _keep(self) -> None:
        """What Spark has planned and committed is in the store, if it has to be there."""
        if self.settings.keeps:
            self._keeper = self._keeper or SinkKeeper(self.settings)
            self._keeper.keep()

    def _latest(self, start: Offset, limit: ReadLimit) -> Offset:
        follower = self.follower(start)
        if not self.settings.keeps:
            follower.acknowledge(start)
        found = self._look(follower, start, limit)
        if self.settings.keeps and found == start:  # else when the next batch is planned, in one write
            self._keep()
            follower.acknowledge(start)
        return found

    def _look(self, follower: Follower, start: Offset, limit: ReadLimit) -> Offset:
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else 1 << 62
        if self.settings.epoch and self._planned < FIRST_BATCHES:
            rows_max = min(rows_max, SENT_ROWS_MAX)
        if self._ends is not None:
            follower.reach(start, {e: [end, 0] for e, end in self._ends.items()}, time.monotonic() + HOLD_S_MAX)
            return follower.latest(start, rows_max, self._ends)[0]
        latest, rows = follower.latest(start, rows_max)
        if latest == start:
            follower.wait(POLL_S)
            latest, rows = follower.latest(start, rows_max)
        now = time.monotonic()
        over = all(mark >= WATERMARK_MAX for _, mark in latest.values())
        if rows or self.settings.watermarks or over or now - self._moved > EMPTY_S:
            if latest != start:
                self._moved = now
            return latest
        return start

    def partitions(self, start: dict, end: dict) -> Sequence[InputPartition]:
        first, last = self._own(start), self._own(end)
        follower = self.follower(first)
        if self.settings.keeps:  # Spark has written its plan; nothing of it is written anywhere before this returns
            self._keep()
            follower.acknowledge(first)
        wanted = follower.pieces(first, last)
        found = [Pieces(o) for o in orders(self.settings, wanted, follower.record(), self.plan.topology.query)]
        self._planned += 1
        is_small = len(found) == 1 and sum(piece.rows for piece in wanted) <= SENT_ROWS_MAX
        self._small = found[0] if is_small else None
        return found

    def getCache(self, start: dict, end: dict) -> Iterator | None:
        """Called right after `partitions`: its rows, or None if tasks are to fetch them."""
        small, self._small = self._small, None
        return read_pieces(small) if small is not None else None

    def read(self, input_partition: InputPartition) -> Iterator:
        return read_pieces(input_partition)

    def commit(self, end: dict) -> None:
        if self._follower is not None and not self.settings.keeps:
            self._follower.acknowledge(self._own(end))

    def stop(self) -> None:
        if self._follower is not None:
            self._follower.close()
            self._follower = None
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None

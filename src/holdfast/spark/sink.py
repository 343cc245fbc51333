"""A sink stage: a query that reads operators through `format("holdfast")` and writes with the user's own writer.

Its checkpoint is Holdfast's, under the run's directory, so that the sink goes on wherever it is started next. It ends
by itself when every edge it reads is finished (watermark forever) and that batch is in Spark's commit log.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.model.block import WATERMARK_MAX
from holdfast.model.ids import Consumer
from holdfast.model.plan import Plan, StagePlan
from holdfast.pipeline.checks import SinkFacts
from holdfast.spark import checkpoint
from holdfast.spark.connect import Run
from holdfast.spark.hand_over import Say
from holdfast.spark.leftovers import check_sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


#: At most about this many rows a micro-batch. After a long pause of a sink all that waits would be one batch: too
#: large for its workers, and planned anew each time.
ROWS_MAX = 2_000_000


def frames_of(
    spark: SparkSession,
    plan: Plan,
    stage: StagePlan,
    run: Run,
    directory: Path,
    epoch: int,
    guest: Consumer,
    keeps: bool = False,
    latch: str = "",
) -> dict[str, DataFrame]:
    """A streaming DataFrame of each operator that a stage reads. Epoch 0: to warm up, as a `guest`; with a latch, it
    waits there for its epoch. `keeps`: a sink's plans go to the store before it writes."""
    from pyspark.sql.pandas.types import from_arrow_schema

    from holdfast.spark.datasource import HoldfastDataSource

    spark.dataSource.register(HoldfastDataSource)
    options = {
        "run": str(directory),
        "endpoints": json.dumps(run.endpoints),
        "secret_file": run.secret_file,
        "deployment": run.deployment,
        "consumer": stage.id if epoch or latch else guest,
        "epoch": str(epoch),
        "latch": latch,
        "max_rows": str(ROWS_MAX),
        "parallelism": str(spark.sparkContext.defaultParallelism),
        "watermarks": str(stage.kind == "between" or not (epoch or latch)).lower(),
        "keeps": str(keeps and stage.kind == "sink" and bool(epoch or latch)).lower(),
        **({"tls": json.dumps(run.tls)} if run.tls else {}),
    }
    frames = {}
    for name in stage.reads:
        schema = from_arrow_schema(pa.ipc.read_schema(pa.py_buffer(plan.operator(name).output)))
        reader = spark.readStream.format("holdfast").schema(schema)  # given, or a worker would be started to ask for it
        frames[name] = reader.options(**options).option("stream", name).load()
    return frames


class SinkStage:
    """One life of a sink's query."""

    def __init__(self, plan: Plan, stage: StagePlan, directory: Path, say: Say) -> None:
        self.plan = plan
        self.stage = stage
        self.checkpoint = directory / "checkpoints" / stage.id
        self.say = say
        self.query: StreamingQuery | None = None
        self._told = -1
        #: Since when Spark has been at work on the present batch.
        self._busy_since: float | None = None

    def park(self, writer: DataStreamWriter) -> StreamingQuery:
        """Start the query before it is this driver's turn: its readers wait at a latch."""
        checkpoint.claim(self.checkpoint, self.stage.id, self.plan.query)
        return self._named(writer).start()

    def check(self, facts: SinkFacts) -> bool:
        """Whether it may write; false: everything was written before."""
        checkpoint.claim(self.checkpoint, self.stage.id, self.plan.query)
        check_sink(self.stage.id, facts, self.checkpoint)
        return not self.is_over()

    def start(self, writer: DataStreamWriter) -> None:
        self.query = self._named(writer).start()

    def _named(self, writer: DataStreamWriter) -> DataStreamWriter:
        return writer.queryName(self.stage.id).option("checkpointLocation", str(self.checkpoint))

    def is_over(self) -> bool:
        return is_over(self.checkpoint)

    def on_idle(self) -> None:
        """Called every so often: tell what Spark has done."""
        last: Any = self.query.lastProgress if self.query is not None else None
        if last is not None and last.batchId > self._told:
            self._told, self._busy_since = last.batchId, None
            self.say("batch", progress=json.loads(last.json))

    def busy_s(self) -> float:
        status: Any = self.query.status if self.query is not None else {}
        if str(status.get("message", "")) != "Processing new data":
            self._busy_since = None
            return 0.0
        self._busy_since = self._busy_since or time.monotonic()
        return time.monotonic() - self._busy_since

    def stop(self) -> None:
        if self.query is not None:
            self.query.stop()


def is_over(folder: Path) -> bool:
    """By a sink's checkpoint: every edge that it reads has ended, and what came before that is committed."""
    last = checkpoint.last_committed(folder)
    if last < 0:
        return False
    offsets = checkpoint.source_offsets(checkpoint.plan_of(folder, last))
    return all(offset and all(mark >= WATERMARK_MAX for _, mark in offset.values()) for offset in offsets)

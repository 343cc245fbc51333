"""What a driver does for a stage, by kind of stage: build the user's DataFrame, warm it up, start it, end it."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.model.block import WATERMARK_MAX
from holdfast.model.ids import Consumer
from holdfast.model.parts import GAPS
from holdfast.model.plan import NEVER_US, StagePlan, edges_of
from holdfast.pipeline import stage_frame, stage_function, stage_writer
from holdfast.pipeline.checks import IDEMPOTENT_FILES, SinkFacts, check_writer
from holdfast.pipeline.layout import lay_out
from holdfast.pipeline.real_time import why_not
from holdfast.runtime.stable.mirror import FolderMirror
from holdfast.spark.aside import BAD, LATE
from holdfast.spark.collect import Collector
from holdfast.spark.connect import let_go
from holdfast.spark.hand_over import Say, StageHandOver
from holdfast.spark.life import ChildRole
from holdfast.spark.parked import ParkedQuery
from holdfast.spark.real_time import RealTimeStage, rehearse
from holdfast.spark.reasons import is_late_worker
from holdfast.spark.sink import SinkStage, frames_of
from holdfast.spark.stage import FeedingStage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from holdfast.spark.engine import SparkEngine

#: Group in Spark from this many rows a batch on: where the driver is the cluster, collecting costs less for longer.
SPARK_ROWS_LOCAL, SPARK_ROWS_CLUSTER = 2_000_000, 200_000
#: A JVM is warm after a few batches, not after one: its classes are loaded and what runs often is compiled.
WARM_BATCHES = 8
WARM_S_MAX = 30.0


def role_of(engine: SparkEngine, stage: StagePlan, stopping: threading.Event, say: Say) -> ChildRole:
    base = Base(engine, stage, stopping, say)
    return Writing(base) if stage.kind == "sink" else Feeding(base)


class Base:
    """What every role needs: a session of its own, the user's functions, the way to the nodes."""

    def __init__(self, engine: SparkEngine, stage: StagePlan, stopping: threading.Event, say: Say) -> None:
        self.plan = engine.plan
        self.stage = stage
        self.directory = engine.directory
        self.stopping = stopping
        self.say = say
        self.run = engine.run
        #: As whom the warm-up reads.
        self.guest = Consumer(f"{stage.id}.warm-{uuid.uuid4().hex[:8]}")
        #: Is it to be in real time, and why can no stage here?
        self.real_time, self.not_real_time = stage.id in engine.real_time, engine.not_real_time
        self.watermark_jump_us = engine.watermark_jump_us
        self.keep = engine.keep
        self.store = engine.store
        #: The store is not a folder: what Spark and stages write in the run's directory is put there as well.
        self.mirrors = engine.mirrors
        self.master = engine.master
        self.pipeline = engine.pipeline
        self.spark = engine.session(stage.id)

    def frames(self, epoch: int, latch: str = "") -> dict[str, DataFrame]:
        return frames_of(
            self.spark, self.plan, self.stage, self.run, self.directory, epoch, self.guest, self.mirrors, latch
        )  # fmt: skip

    def mirror(self) -> FolderMirror | None:
        """Of what a feeding stage needs beside its ledger."""
        if self.store is None or not self.mirrors:
            return None
        stage = self.stage.id
        paths = (f"checkpoints/{stage}/sources", f"{LATE}/{stage}", f"{BAD}/{stage}", f"{BAD}/{stage}.max")
        return FolderMirror(self.store, self.plan.query, self.directory, (*paths, f"{GAPS}/{stage}"))

    def let_go(self) -> None:
        """The warm-up reads no more. On a thread of its own: a node that hangs must not hold up who takes over."""
        edges = [edge for name in self.stage.reads for edge in edges_of(self.plan.operator(name))]
        threading.Thread(target=let_go, args=(self.run, self.guest, edges), name="let-go", daemon=True).start()

    def frame(self, epoch: int, latch: str = "") -> DataFrame:
        """The stage's rows, the user's functions applied."""
        if self.stage.kind == "source":
            return stage_frame(self.pipeline, self.stage.id, self.spark)
        return stage_function(self.pipeline, self.stage.id)(self.frames(epoch, latch))

    def parked(self) -> ParkedQuery:
        return ParkedQuery(len(self.stage.reads), self.say)


class Feeding:
    """A source stage, or one between operators."""

    def __init__(self, base: Base) -> None:
        self.base = base
        local = base.master.startswith("local")
        self.collector = Collector(base.plan, base.stage, SPARK_ROWS_LOCAL if local else SPARK_ROWS_CLUSTER)
        self._frame: DataFrame | None = base.frame(0) if base.stage.kind == "source" else None
        #: Why it runs in micro-batches though it was to be in real time.
        self.not_real_time = ""
        kind = FeedingStage
        if base.real_time:
            self.not_real_time = base.not_real_time or why_not(self._frame)
            kind = FeedingStage if self.not_real_time else RealTimeStage
        self.feeding = kind(
            base.plan, base.stage, base.directory, self.collector, base.say, base.watermark_jump_us, base.keep,
            base.mirror(),
        )  # fmt: skip
        self.parked = base.parked()

    @property
    def query(self) -> Any:
        return self.feeding.query

    @property
    def failure(self) -> BaseException | None:
        return self.feeding.failure

    def warm_up(self, scratch: Path, told: Callable[[], bool]) -> None:
        frame = self._frame if self._frame is not None else self.base.frame(0)

        def body(batch: DataFrame, number: int) -> None:
            until = time.monotonic() + WARM_S_MAX / 2
            for _ in range(WARM_BATCHES):
                self.collector.collect(batch.limit(1_000), NEVER_US)
                if told() or time.monotonic() > until:
                    break

        _warm_source(frame, body, scratch / "checkpoint", self.base.say, told)
        if isinstance(self.feeding, RealTimeStage) and not told():
            rehearse(frame, self.collector, scratch, self.base.say, told)
        self.base.let_go()
        self.collector.rows_last = 0
        if self.base.stage.kind == "between":  # only a reader of ours knows of latches
            self.parked.park(lambda latch: self.feeding.park(self.base.frame(0, latch)), told)

    def start(self, epoch: int) -> bool:
        base = self.base
        hand_over = StageHandOver(
            base.plan,
            base.stage.id,
            epoch,
            base.run.endpoints,
            base.run.security(),
            base.say,
            base.stopping,
            base.store,
        )
        if not self.feeding.open(hand_over):
            return False
        if self.not_real_time:
            base.say("micro-batches", why=self.not_real_time)
        self.feeding.query = self.parked.go(epoch)
        if self.feeding.query is None:
            self.feeding.start(self._frame if self._frame is not None else base.frame(epoch))
        return True

    def finish(self) -> bool:
        if self.base.stage.kind != "source":
            return False  # it ends when what it reads has ended
        self.feeding.finish()
        if self.feeding.failure is not None:
            raise self.feeding.failure
        return True

    def is_over(self) -> bool:
        last = self.feeding.hand_over.last if self.feeding.hand_over else None
        return self.base.stage.kind != "source" and last is not None and last.watermark >= WATERMARK_MAX

    def pause(self, until: float, mark: int) -> None:
        if self.base.stage.kind == "source":
            self.feeding.pause(until, mark)

    def is_paused(self) -> bool:
        return self.feeding.is_paused()

    def on_idle(self) -> None:
        self.feeding.on_idle()

    def busy_s(self) -> float:
        return self.feeding.busy_s()

    def stop(self) -> None:
        self.feeding.stop()

    def close(self) -> None:
        self.parked.close()
        if self.feeding.hand_over is not None:
            self.feeding.hand_over.close()


class Writing:
    """A sink."""

    failure: BaseException | None = None

    def __init__(self, base: Base) -> None:
        self.base = base
        self.sink = SinkStage(base.plan, base.stage, base.directory, base.say)
        self.parked = base.parked()

    @property
    def query(self) -> Any:
        return self.sink.query

    def warm_up(self, scratch: Path, told: Callable[[], bool]) -> None:
        """The sink's own plan over what is retained now, as a foreign reader, into files of nobody."""
        frame = self.base.frame(0)
        writer = stage_writer(self.base.pipeline, self.base.stage.id)(frame)
        if self._check(writer).format.lower() in IDEMPOTENT_FILES:  # those write where their path says
            writer = writer.option("path", str(scratch / "out"))
        else:  # whatever it is, it must not get rows before this driver is the one
            writer = frame.writeStream.foreachBatch(_rehearse)
        _warm(writer, scratch / "checkpoint", self.base.say, told)
        self.base.let_go()
        self.parked.park(lambda latch: self.sink.park(self._writer(0, latch)), told)

    def start(self, epoch: int) -> bool:
        writer = self._writer(epoch) if self.parked.query is None else None
        if not self.sink.check(self._facts):
            return False
        self.sink.query = self.parked.go(epoch)
        if self.sink.query is None:
            self.sink.start(writer or self._writer(epoch))
        return True

    def _writer(self, epoch: int, latch: str = "") -> Any:
        writer = stage_writer(self.base.pipeline, self.base.stage.id)(self.base.frame(epoch, latch))
        self._facts = self._check(writer)
        return writer

    def _check(self, writer: Any) -> SinkFacts:
        """What the sink is; an error if the writer sets what is ours to set (checkpointLocation)."""
        sink = lay_out(self.base.pipeline).stages[self.base.stage.id].sink
        assert sink is not None
        return check_writer(writer, sink)

    def finish(self) -> bool:
        return False  # it ends when what it reads has ended

    def is_over(self) -> bool:
        return self.sink.is_over()

    def pause(self, until: float, mark: int) -> None:
        """What was made has to be written all the same."""

    def is_paused(self) -> bool:
        return False

    def on_idle(self) -> None:
        self.sink.on_idle()

    def busy_s(self) -> float:
        return self.sink.busy_s()

    def stop(self) -> None:
        self.sink.stop()

    def close(self) -> None:
        self.parked.close()


def _rehearse(batch: DataFrame, number: int) -> None:
    """What a `foreachBatch` of the user's may do, without effect: aggregate, write, collect."""
    batch.groupBy().count().collect()
    batch.write.format("noop").mode("append").save()
    batch.limit(1_000).toArrow()


def _warm_source(
    frame: DataFrame,
    body: Callable[[DataFrame, int], None],
    scratch: Path,
    say: Callable[..., None],
    told: Callable[[], bool],
) -> None:
    """As `_warm`, but the batch fails when it is through. Spark would commit it to the source otherwise, and one that
    cleans up after itself (`cleanSource`) would delete what nobody has handed over."""
    warmed = threading.Event()

    def run(batch: DataFrame, number: int) -> None:
        body(batch, number)
        warmed.set()
        raise InterruptedError("the warm-up is done, and commits nothing")

    _warm(frame.writeStream.foreachBatch(run), scratch, say, told, warmed)


def _warm(
    writer: Any,
    scratch: Path,
    say: Callable[..., None],
    told: Callable[[], bool],
    warmed: threading.Event | None = None,
) -> None:
    """Run a query over a throw-away checkpoint until some batches are through (or `warmed`), `told`, or the limit.

    Again, if Spark did not wait long enough for a Python process: on a busy machine standbys are what comes last.
    """
    until = time.monotonic() + WARM_S_MAX
    error = _try_to_warm(writer, scratch, say, told, until)
    while error is not None and is_late_worker(error) and not told() and time.monotonic() < until:
        error = _try_to_warm(writer, scratch, say, told, until)
    if error is not None and not (warmed and warmed.is_set()):
        say("waiting", what="the warm-up", detail=str(error).splitlines()[0])


def _try_to_warm(
    writer: Any, scratch: Path, say: Callable[..., None], told: Callable[[], bool], until: float
) -> BaseException | None:
    """Why it ended, if it failed."""
    query = writer.option("checkpointLocation", os.fspath(scratch)).start()
    planned, commits = scratch / "offsets" / "0", scratch / "commits" / str(WARM_BATCHES - 1)
    is_planned = False
    while query.isActive and not commits.exists() and not told() and time.monotonic() < until:
        if not is_planned and planned.exists():
            is_planned = True
            say("planned")
        time.sleep(0.1)
    error = query.exception()
    try:
        query.stop()
    except Exception as late:
        say("waiting", what="the end of the warm-up", detail=str(late).splitlines()[0])
    return error

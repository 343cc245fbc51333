"""A stage that feeds operators: one Structured Streaming query whose `foreachBatch` hands micro-batches over.

When Spark runs batch k and the ledger has it, it is done at once. Otherwise the batch is collected and split against
the watermark of the last commit, handed over under Holdfast's own next batch number, and `foreachBatch` returns when it
counts. Between Spark's batches the stage seals batches of its own: after the idle time-out an empty one with an
advanced watermark, at the end a final one. Those repeat the offsets of Spark's last batch.

A stage between operators is the same with `format("holdfast")` as its source: its watermark is the lowest of the edges
it has read, which Spark's plan of the batch says.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import check
from holdfast.model.block import WATERMARK_MAX, WATERMARK_MIN
from holdfast.model.parts import CommitRecord
from holdfast.model.plan import Plan, StagePlan, to_micros
from holdfast.pipeline.gaps import gaps_of
from holdfast.runtime.stable.mirror import FolderMirror
from holdfast.spark import checkpoint
from holdfast.spark.ahead import JUMP_US, WatermarkWatch, stamp
from holdfast.spark.aside import AsideFiles
from holdfast.spark.bad import told_of
from holdfast.spark.collect import Batch, Collector
from holdfast.spark.hand_over import Say, StageHandOver, Stopped
from holdfast.spark.tidy import KEEP, Keep

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

#: A source that never runs dry: so long is read on after `finish`, then the stage ends where it stands. Long, because
#: what a finite backlog still has when it ends would never be read.
FINISH_S_MAX = 3600.0
#: A look that comes this long after the one before says nothing about the time between: the process or its JVM hung.
LOOK_S_MAX = 1.0
#: A batch that takes longer than this to end is interrupted when its stage is told to stop. Nothing of it counts then.
TURN_S_MAX = 5.0


class FeedingStage:
    """A source stage or a stage between operators, in one life of its driver."""

    def __init__(
        self,
        plan: Plan,
        stage: StagePlan,
        directory: Path,
        collector: Collector,
        say: Say,
        jump_us: int = JUMP_US,
        keep: Keep = KEEP,
        mirror: FolderMirror | None = None,
    ) -> None:
        self.plan = plan
        self.stage = stage
        self.directory = directory
        self.checkpoint = directory / "checkpoints" / stage.id
        self.collector = collector
        self.say = say
        self.keep = keep
        #: What of the run's directory must be in the store before a batch counts; None: nothing.
        self.mirror = mirror
        self.query: StreamingQuery | None = None
        self.hand_over: StageHandOver | None = None
        self.aside: AsideFiles | None = None
        #: A stage between operators takes its watermark from them.
        self.watch = WatermarkWatch(stage.id, jump_us, say) if stage.kind != "between" else None
        #: One batch at a time: Spark's or the stage's own.
        self._turn = threading.Lock()
        self._stopping = threading.Event()
        #: A batch of Spark's was turned away because of that: this, and no failure, is why its query ended.
        self._turned_away = False
        #: Since when Spark has found nothing at its source, and when it was last asked.
        self._idle_since = self._looked = time.monotonic()
        self._collecting_since: float | None = None
        #: Until then no batch is begun, neither of Spark's nor of the stage's own, once the watermark is at the mark.
        self._paused_until, self._mark = 0.0, WATERMARK_MIN
        self.failure: BaseException | None = None

    # --- a life

    def park(self, frame: DataFrame) -> StreamingQuery:
        """Start the query before it is this driver's turn: its readers wait at a latch."""
        checkpoint.claim(self.checkpoint, self.stage.id, self.plan.query)
        return self._started(frame)

    def open(self, hand_over: StageHandOver) -> bool:
        """Open the ledger, and make the checkpoint agree with it. False: the stage was finished before.

        Once in a life: a query that is started again is another driver, with an epoch of its own.
        """
        check(self.hand_over is None, "a stage was started twice in one life of its driver", self.stage.id)
        self.hand_over = hand_over
        last = hand_over.open()
        self.aside = AsideFiles(self.directory, self.stage, hand_over.epoch, self.keep)
        self.aside.recover(last)
        self._agree(last)
        if last is not None and last.watermark >= WATERMARK_MAX:
            return False
        self._idle_since = time.monotonic()
        return True

    def _agree(self, last: CommitRecord | None) -> None:
        outlets = len(set(self.stage.outlets)) or 1
        checkpoint.agree(self.checkpoint, self.stage.id, self.plan.query, last, outlets)

    def start(self, frame: DataFrame) -> None:
        """Start the query, on an open ledger."""
        self.query = self._started(frame)

    def _started(self, frame: DataFrame) -> StreamingQuery:
        writer = frame.writeStream.queryName(self.stage.id).option("checkpointLocation", str(self.checkpoint))
        if self.stage.trigger_ms:
            writer = writer.trigger(processingTime=f"{self.stage.trigger_ms} milliseconds")
        return writer.foreachBatch(self._run).start()

    def finish(self) -> None:
        """Read what is there, end the query, seal the final batch."""
        assert self.query is not None
        if not self.stage.endless:
            reader = threading.Thread(target=self._process_all, name="finish", daemon=True)
            reader.start()
            reader.join(FINISH_S_MAX)
            if reader.is_alive():
                self.say("waiting", what="the end of the source", detail="It never runs dry: the stage ends here.")
        self.end_query()
        if self.failure is None and not self._turned_away:
            self.failure = self.query.exception()  # of its source, say: what was not read must not be closed
        if self.failure is None:
            self._seal(final=True)
            assert self.hand_over is not None
            # Spark may have been stopped before it noted its last batch, and `verify` goes by Spark's checkpoint
            self._agree(self.hand_over.last)

    def _process_all(self) -> None:
        assert self.query is not None
        try:
            self.query.processAllAvailable()
        except Exception as error:  # the query's own failure is told by `query.exception()`
            self.say("waiting", what="the end of the source", detail=str(error).splitlines()[0])

    def end_query(self, limit_s: float = -1) -> None:
        """Stop between two batches: Spark must not be interrupted inside `foreachBatch`, unless it never returns."""
        self._stopping.set()
        mine = self._turn.acquire(timeout=limit_s)
        try:
            if self.query is not None:
                self.query.stop()
        finally:
            if mine:
                self._turn.release()

    def stop(self) -> None:
        if self.hand_over is not None:
            self.hand_over.stopping.set()
        self.end_query(TURN_S_MAX)

    def pause(self, until: float, mark: int = WATERMARK_MIN) -> None:
        """Begin no batch before this moment, by the monotonic clock; a moment that has passed ends the pause. As long
        as the watermark of the last commit is before `mark`, it goes on: a watermark moves only within a batch, so none
        is begun behind the first that reaches it."""
        self._mark, self._paused_until = mark, until

    def _is_held(self) -> bool:
        at = self.hand_over.watermark if self.hand_over is not None else WATERMARK_MAX
        return time.monotonic() < self._paused_until and at >= self._mark

    def is_paused(self) -> bool:
        """Is no batch under way, and will none begin? Whoever gets the turn after this looks at the pause again."""
        if not self._is_held() or not self._turn.acquire(blocking=False):
            return False
        self._turn.release()
        return True

    def busy_s(self) -> float:
        """For how long Spark has been at work on the present batch: the hand-over says itself what it waits for."""
        since = self._collecting_since
        return 0.0 if since is None else time.monotonic() - since

    def on_idle(self) -> None:
        """Called every so often: seal an advanced watermark if the source has been silent for long enough.

        Only the time counts in which Spark had looked and found nothing. While a driver starts, hangs or works, rows
        may be waiting, and a watermark that ran ahead of them would make them late.
        """
        if self.stage.idle_ns >= 1 << 60 or self._stopping.is_set():
            return
        now = time.monotonic()
        away, self._looked = now - self._looked > LOOK_S_MAX, now
        if away or self._is_held() or not self._is_waiting():
            self._idle_since = now
        idle_ns = int((now - self._idle_since) * 1e9)
        if idle_ns < self.stage.idle_ns or not self._turn.acquire(blocking=False):
            return
        try:
            if self.hand_over is not None and self.hand_over.last is not None:
                self._seal(idle_ns=idle_ns)
        finally:
            self._turn.release()

    def _is_waiting(self) -> bool:
        """Has Spark looked for new data and found none?"""
        status: Any = self.query.status if self.query is not None else {}
        return not status.get("isDataAvailable", True) and str(status.get("message", "")).startswith("Waiting")

    def _seal(self, *, final: bool = False, idle_ns: int | None = None) -> None:
        """A batch of the stage's own."""
        assert self.hand_over is not None
        last = self.hand_over.last
        spark_batch = last.offsets[0] if last else -1
        plan, positions = (last.plan, last.positions) if last else ("", {})
        commit = self.hand_over.run(
            {}, spark_batch=spark_batch, plan=plan, positions=positions, final=final, idle_ns=idle_ns
        )
        self._idle_since = time.monotonic()
        self.say("batch", progress=self._progress(Batch(), commit.batch, spark_batch, time.time(), {}))

    # --- a batch of Spark's

    @contextmanager
    def _my_turn(self) -> Iterator[None]:
        """Never returns without the turn: Spark would commit the batch."""
        told = Stopped(f"stage {self.stage.id} was told to stop")
        while not self._takes_turn():
            if self._stopping.is_set():
                raise told
        try:
            if self._stopping.is_set():
                raise told
            yield
        finally:
            self._turn.release()

    def _takes_turn(self) -> bool:
        """Waits for a moment. A pause that began while it waited counts: see `is_paused`."""
        if not self._turn.acquire(timeout=0.05):
            return False
        if not self._is_held():
            return True
        self._turn.release()
        self._stopping.wait(0.05)
        return False

    def _run(self, frame: DataFrame, spark_batch: int) -> None:
        try:
            with self._my_turn():
                self._run_batch(frame, spark_batch)
        except BaseException as error:
            if isinstance(error, Stopped):
                self._turned_away = True
            elif self.failure is None:
                self.failure = error
            raise

    def _run_batch(self, frame: DataFrame, spark_batch: int) -> None:
        assert self.hand_over is not None
        last = self.hand_over.last
        if last is not None and last.offsets[0] >= spark_batch:
            return  # the ledger has it: it counts once
        self._hand(
            lambda watermark_us, bad_max: self.collector.collect(frame, watermark_us, bad_max),
            lambda: checkpoint.plan_of(self.checkpoint, spark_batch),
            spark_batch,
        )

    def _hand(
        self,
        collect: Callable[[int, int], Batch],
        plan_of: Callable[[], str],
        spark_batch: int,
        positions: Mapping[str, int] | None = None,
        idle_ns: int | None = None,
    ) -> Batch:
        """One batch, from its rows (by the watermark and how many may be bad) to its commit."""
        assert self.hand_over is not None
        assert self.aside is not None
        last = self.hand_over.last
        began, moment = time.time(), time.perf_counter()
        batch = last.batch + 1 if last else 0
        watermark_us = to_micros(self.hand_over.watermark)
        self._collecting_since = time.monotonic()
        try:
            made = collect(watermark_us, self.aside.room(last))
        finally:
            self._collecting_since = None
        collected = time.perf_counter()
        self.aside.write(batch, made.late, made.bad, last)
        plan = plan_of()
        if self.mirror is not None:  # the list of files that its source has read, and what was set aside
            self.mirror.sync()
        commit = self.hand_over.run(
            made.parts,
            spark_batch=spark_batch,
            plan=plan,
            max_us=made.max_us,
            late=made.late_rows,
            bad=made.bad_rows,
            watermark=_lowest(plan) if self.stage.kind == "between" else None,
            gap=self._gap(plan) if self.stage.kind == "between" else 0,
            positions=positions,
            idle_ns=idle_ns,
        )
        self.aside.settle(batch, late=made.late is not None, bad=made.bad is not None)
        if made.late is not None:
            self.say("late", rows=made.late_rows, batch=batch, total=commit.late_total)
        if made.bad is not None:
            self.say("bad", batch=batch, total=commit.bad_total, **told_of(made.bad))
        if self.watch is not None:
            self.watch.look(watermark_us, to_micros(commit.watermark))
        self._idle_since = time.monotonic()
        durations = {"collect": collected - moment, "handOver": time.perf_counter() - collected}
        self.say("batch", progress=self._progress(made, commit.batch, spark_batch, began, durations))
        return made

    def _gap(self, plan: str) -> int:
        """Up to which event time rows may be missing that this stage should have read by the end of a batch."""
        ends = {edge: at for offset in checkpoint.source_offsets(plan) for edge, (at, _) in (offset or {}).items()}
        gaps = gaps_of(self.directory, self.stage.id)
        return max((gap.to for gap in gaps if gap.position < ends.get(gap.edge, 0)), default=0)

    def _progress(
        self, made: Batch, batch: int, spark_batch: int, began: float, durations: dict[str, float]
    ) -> dict[str, Any]:
        """Shaped like Spark's StreamingQueryProgress."""
        assert self.hand_over is not None
        total = sum(durations.values())
        query = self.query
        return {
            "id": checkpoint.query_id(self.plan.query, self.stage.id),
            "runId": str(query.runId) if query is not None else "",
            "name": self.stage.id,
            "timestamp": stamp(int(began * 1e6)),
            "batchId": batch,
            "sparkBatchId": spark_batch,
            "batchDuration": round(1000 * total),
            "numInputRows": made.rows,
            "numOutputRows": made.sent,
            "numLateRows": made.late_rows,
            "numBadRows": made.bad_rows,
            "numRowsWithoutTime": made.without_time,
            "groupedInSpark": made.in_spark,
            "processedRowsPerSecond": round(made.rows / total, 1) if total else 0.0,
            "handOverMs": self.hand_over.clock.take(),
            "durationMs": {k: round(1000 * v, 1) for k, v in {**durations, "triggerExecution": total}.items()},
            "eventTime": {"max": stamp(made.max_us), "watermark": stamp(to_micros(self.hand_over.watermark))},
            "stateOperators": [],
        }


def _lowest(plan: str) -> int:
    """The lowest watermark among the edges that a batch has read, in the core's terms."""
    marks = [mark for offset in checkpoint.source_offsets(plan) if offset for _, mark in offset.values()]
    return min(marks, default=WATERMARK_MIN)

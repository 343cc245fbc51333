"""A source stage in Spark's real-time mode: rows reach the stage while a long batch of Spark's goes on, and the stage
makes batches of its own of them, a few milliseconds apart.

    query    reads, maps, and pushes rows with their positions into the inlet (`inlet.py`, `java/RealTimeWriter.java`)
    loop     takes what has come, splits late and bad rows off, hands over, commits with the positions after it

What counts is in the ledger: a batch, and where every partition of the source stands after it. So Spark's checkpoint of
such a query is of no use to anybody else. Every life of a driver begins with a new one, in which stands that the
source began where the ledger ends; Spark goes on from there by its own rules, also for partitions that are new.

A commit record also has what Spark would write of a micro-batch that ends there. So the checkpoint of the stage
(`checkpoints/STAGE`), `verify`, savepoints and upgrades see no difference, and it can go on in micro-batches at any
moment. It does so twice: while the source has much that was not read yet, since a long backlog in small batches would
make rows late; and to finish, since a query that always reads never says that it has read all.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.model.parts import CommitRecord
from holdfast.model.plan import MICRO_BATCH, NEVER_US, REAL_TIME
from holdfast.pipeline import durations
from holdfast.pipeline.real_time import with_positions
from holdfast.spark import checkpoint
from holdfast.spark.collect import Batch, Collector
from holdfast.spark.hand_over import Say, Stopped
from holdfast.spark.inlet import Inlet, offsets_of, positions_of
from holdfast.spark.real_time_jar import WRITER
from holdfast.spark.reasons import Reason
from holdfast.spark.source_ends import SourceEnds
from holdfast.spark.stage import TURN_S_MAX, FeedingStage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

#: How long a batch of Spark's is, if this setting does not say otherwise: Spark looks for new partitions in between.
LONG_BATCH, LONG_BATCH_CONF = "1 minute", "spark.holdfast.realTimeBatch"
#: A task lets rows go this long after they came, or as many of them; without any it says this often that it is alive.
PUSH_MS, PUSH_ROWS, ALIVE_MS = 2, 1_000, 500
#: From the beginning of one batch to that of the next one, at least: rows that come meanwhile are in it.
PACE_S = 0.02
#: Every batch with rows that are set aside is a file: those are made less often.
ASIDE_PACE_S = 0.1
ROWS_MAX = 200_000
LOOK_S = 0.25
#: Rows whose turn has not come are looked at again after this time.
TURN_S = 0.002
#: Rows that wait in the source when a driver starts are one batch, so that none is late for another's sake. They are
#: waited for this long, or until nothing has come for this long.
FIRST_S_MAX, FIRST_QUIET_S = 3.0, 0.3
#: More rows than this in the source are read in micro-batches first.
BACKLOG_MAX = 2_000
#: More than that are left where a micro-batch reads hardly fewer than the one before it.
SETTLED = 0.7
#: A query that does not begin to push within this time may be waiting for a broker.
BEGIN_S_MAX = 20.0
#: How often the ends of the source are asked for: to say that it does not answer, and for idle sources.
ASK_S, ASK_S_MIN = 5.0, 0.2
ASKED_MAX = 64
#: A standby reads this many rows of each partition, to be warm.
REHEARSED_ROWS, REHEARSAL_S_MAX = 200, 10.0


class Silence:
    """Since when nothing has come from a source, as far as that is proven.

    A real-time query says nothing about rows that a filter leaves out, and nothing while its broker is away. So the
    ends of the source are asked for. Once the stage stands behind what was there at some moment, nothing more had come
    up to that moment.
    """

    def __init__(self, now: float) -> None:
        #: When the last row came, or when silence was last made use of.
        self.since = now
        self._asked: list[tuple[float, Mapping[str, int]]] = []

    def on_rows(self, now: float) -> None:
        self.since = now
        self._asked.clear()

    def on_ends(self, asked_at: float, ends: Mapping[str, int]) -> None:
        self._asked.append((asked_at, ends))
        if len(self._asked) > ASKED_MAX:
            del self._asked[1::2]

    def proven_s(self, positions: Mapping[str, int]) -> float:
        """For how long nothing had come, for somebody who has read up to these positions."""
        reached = (at for at, ends in self._asked if all(positions.get(p, 0) >= end for p, end in ends.items()))
        return max(0.0, max(reached, default=self.since) - self.since)

    def use(self, seconds: float) -> None:
        self.since += seconds


class Backlog:
    """What a source has when a driver starts is read in micro-batches: until when?"""

    def __init__(self) -> None:
        self._batch, self._total, self._step = -1, -1, -1

    def is_new(self, batch: int) -> bool:
        """A batch has come to its end since the last time."""
        before, self._batch = self._batch, batch
        return batch != before

    def is_read(self, positions: Mapping[str, int], behind: int) -> bool:
        """`behind`: how many rows are still there. Where a source is so fast that there are always many, batches do not
        become smaller any more."""
        total = sum(positions.values())
        step = total - self._total if self._total >= 0 else -1
        settled = step >= 0 and self._step >= 0 and step > SETTLED * self._step
        self._total, self._step = total, step
        return behind <= BACKLOG_MAX or settled


class RealTimeStage(FeedingStage):
    """In one life of its driver: in micro-batches, in real time, in micro-batches again."""

    inlet: Inlet | None = None
    #: The user's frame, without positions: what micro-batches are of.
    _plain: DataFrame | None = None
    _ends: SourceEnds | None = None
    _loop: threading.Thread | None = None
    _backlog: Backlog | None = None
    #: How many of Spark's micro-batches are in a call of this stage: one at most.
    _inside = 0
    #: Since when an answer of the source is waited for, and when that was told.
    _asking: tuple[float, float] | None = None

    def start(self, frame: DataFrame) -> None:
        """Real time, unless there is a backlog, or Spark refuses."""
        self._plain = frame
        self._ends = SourceEnds(frame, self.checkpoint / "sources" / "0")
        self._closing, self._ended = threading.Event(), threading.Event()
        self._silence = Silence(time.monotonic())
        threading.Thread(target=self._keep_asking, name=f"asks-{self.stage.id}", daemon=True).start()
        positions = self._stands()
        ends = self._ends.ends(positions)
        why = self._why_not(ends)
        behind = behind_by(positions, ends)
        if why:
            self._refuse(why)
        elif behind > BACKLOG_MAX:
            self.say("backlog", rows=behind)
            self._backlog = Backlog()
            super().start(frame)
        else:
            self._begin(positions, ends)

    def _stands(self) -> dict[str, int]:
        """Where this driver begins, or is."""
        assert self.hand_over is not None
        assert self._ends is not None
        beginning = self._ends.beginning()
        last = self.hand_over.last
        return positions_after(last) if last is not None and last.plan else beginning

    def _why_not(self, ends: Mapping[str, int]) -> str:
        """What only the driver can know."""
        assert self._plain is not None
        assert self._ends is not None
        if not self._ends.is_real_time():
            return "this version of Spark's Kafka connector has no real-time mode"
        if not ends:
            return "its source has no partitions yet"
        return no_slots(self._plain.sparkSession.sparkContext.master, len(ends))

    def _refuse(self, why: str) -> None:
        assert self._plain is not None
        self.say("micro-batches", why=why)
        super().start(self._plain)

    def _begin(self, positions: Mapping[str, int], ends: Mapping[str, int]) -> None:
        """Be a real-time query from here on; or not, if Spark refuses."""
        assert self._plain is not None
        conf = self._plain.sparkSession.conf
        long_ms = durations.micros(conf.get(LONG_BATCH_CONF, LONG_BATCH) or "", LONG_BATCH_CONF) // 1_000
        inlet = self.inlet = Inlet(self.stage.id)
        try:
            inlet.begin_at(positions)
            began_at(inlet, positions)
            query = self.query = pushing(self._plain, inlet, self.stage.id, long_ms)
            until = time.monotonic() + BEGIN_S_MAX
            while not inlet.begun and query.isActive and not self._stopping.is_set() and time.monotonic() < until:
                time.sleep(0.005)
            error = query.exception()
            if error is not None and not is_refused(error):
                raise error
        except BaseException:
            self._leave()
            raise
        if error is not None:
            self._leave()
            self._refuse(Reason(self.stage.id, error).detail)
            return
        self._silence.on_rows(time.monotonic())
        name = f"real-time-{self.stage.id}"
        self._loop = threading.Thread(target=self._run_loop, args=(inlet, dict(ends)), name=name, daemon=True)
        self._loop.start()

    # --- the loop

    def _run_loop(self, inlet: Inlet, ends: dict[str, int]) -> None:
        try:
            self._wait_for_first(inlet, ends)
            passed, pace_s, began, looked = -1, 0.0, 0.0, 0.0
            while not self._closing.is_set():
                if time.monotonic() - looked > LOOK_S:
                    looked = time.monotonic()
                    passed = self._pass_over(inlet, passed)
                if not inlet.wait(LOOK_S):
                    continue
                self._closing.wait(max(0.0, began + pace_s - time.monotonic()))
                began = time.monotonic()
                made = self._turn_of(inlet)
                pace_s = self.stage.trigger_ms / 1e3 or PACE_S
                if made is None:
                    pace_s = TURN_S  # rows of a later long batch: their turn has not come
                elif made.late is not None or made.bad is not None:
                    pace_s = max(pace_s, ASIDE_PACE_S)
        except BaseException as error:
            self._end_loop(error)

    def _end_loop(self, error: BaseException) -> None:
        if isinstance(error, Stopped):
            self._turned_away = True
        elif self._closing.is_set():
            return  # its inlet was closed
        elif self.failure is None:
            self.failure = error
        if self.query is not None:
            with contextlib.suppress(Exception):
                self.query.stop()

    def _wait_for_first(self, inlet: Inlet, ends: Mapping[str, int]) -> None:
        """Until everything has come that was in the source at the start."""
        waiting, since = 0, time.monotonic()
        until = since + FIRST_S_MAX
        while not self._closing.is_set() and (now := time.monotonic()) < until:
            if inlet.is_full() or not behind_by(inlet.stands(), ends):
                return
            if inlet.waiting != waiting:
                waiting, since = inlet.waiting, now
            if waiting and now - since > FIRST_QUIET_S:
                return  # the rest was left out by a filter
            self._closing.wait(0.005)

    def _turn_of(self, inlet: Inlet) -> Batch | None:
        """A batch of what has come; None: nothing of it may be taken yet."""
        with self._my_turn():
            table = None if self._closing.is_set() else inlet.take(ROWS_MAX)
            if table is None or not table.num_rows:
                return None
            self._silence.on_rows(time.monotonic())
            take = lambda watermark_us, bad_max: self.collector.take(table, watermark_us, bad_max)  # noqa: E731
            return self._hand_at(inlet.positions, take)

    def _progress(self, *given: Any) -> dict[str, Any]:
        return {**super()._progress(*given), "latency": REAL_TIME if self.inlet is not None else MICRO_BATCH}

    def _hand_at(
        self, positions: dict[str, int], collect: Callable[[int, int], Batch], idle_ns: int | None = None
    ) -> Batch:
        assert self.hand_over is not None
        last = self.hand_over.last
        number = last.offsets[0] + 1 if last else 0
        return self._hand(collect, lambda: plan_text(positions), number, positions, idle_ns)

    def _pass_over(self, inlet: Inlet, passed: int) -> int:
        """When a long batch is over, Spark says where it ended: rows that a filter has left out need not be read again.
        The last long batch of which that is known."""
        assert self.hand_over is not None
        home = inlet.directory / "checkpoint"
        batch = checkpoint.last_committed(home)
        if batch <= passed:
            return passed
        (stands,) = checkpoint.source_offsets(checkpoint.plan_of(home, batch))
        if not inlet.pass_over(batch, positions_of(stands or {})):
            return passed
        with self._my_turn():
            last, positions = self.hand_over.last, inlet.positions
            if not self._closing.is_set() and (last is None or positions != positions_after(last)):
                self._hand_at(positions, lambda *_: Batch(), idle_ns=0)
        return batch

    # --- silence

    def _keep_asking(self) -> None:
        """Whether the source is there, and whether it has something that is not read."""
        every_s = min(ASK_S, max(ASK_S_MIN, self.stage.idle_ns / 4e9))
        while not self._ended.wait(every_s):
            inlet, at = self.inlet, time.monotonic()
            if inlet is None or self._ends is None:
                continue
            self._asking = (at, at)
            try:
                self._silence.on_ends(at, self._ends.ends(inlet.positions))
            except Exception as error:
                if self.inlet is inlet and not self._ended.is_set():
                    self.say("waiting", what="its source", detail=Reason(self.stage.id, error).detail)
            finally:
                self._asking = None

    def _look_at_answer(self) -> None:
        """A client of Kafka's asks for minutes before it gives up."""
        if (asking := self._asking) is not None and (now := time.monotonic()) - asking[1] > ASK_S:
            self._asking = (asking[0], now)
            self.say("waiting", what="its source", detail=f"No broker has answered for {now - asking[0]:.0f} s.")

    def on_idle(self) -> None:
        inlet = self.inlet
        self._look_at_answer()
        if inlet is None:
            self._look_at_backlog()
            super().on_idle()
            return
        if self._stopping.is_set() or time.monotonic() < self._paused_until or inlet.waiting:
            return
        idle_ns = int(self._silence.proven_s(inlet.positions) * 1e9)
        if idle_ns < self.stage.idle_ns or not self._turn.acquire(blocking=False):
            return
        try:
            if self.hand_over is not None and self.hand_over.last is not None:
                self._seal(idle_ns=idle_ns)
                self._silence.use(idle_ns / 1e9)
        finally:
            self._turn.release()

    def _run(self, frame: DataFrame, spark_batch: int) -> None:
        self._inside += 1
        try:
            super()._run(frame, spark_batch)
        finally:
            self._inside -= 1

    def _look_at_backlog(self) -> None:
        """Micro-batches have read what there was: go on in real time."""
        backlog, last = self._backlog, self.hand_over.last if self.hand_over is not None else None
        if backlog is None or self._ends is None or last is None or self._stopping.is_set():
            return
        if not backlog.is_new(last.offsets[0]):
            return
        positions = positions_after(last)
        if not backlog.is_read(positions, behind_by(positions, self._ends.ends(positions))):
            return
        self._backlog = None
        try:
            super().end_query()
        except Exception:  # Spark has waited for its end, but not long enough
            with contextlib.suppress(Exception):
                self.query.awaitTermination()  # pyright: ignore[reportOptionalMemberAccess]
        while self._inside:  # a batch that was turned away, and does not know it yet
            time.sleep(0.005)
        self._stopping.clear()
        if self.failure is None and self.query is not None and (self._turned_away or self.query.exception() is None):
            self._turned_away = False
            positions = self._stands()
            self._begin(positions, self._ends.ends(positions))

    # --- the end

    def _leave(self) -> None:
        """Be a real-time query no longer. What was pushed and not taken will be read again."""
        inlet, self.inlet = self.inlet, None
        if inlet is None:
            return
        self._closing.set()
        inlet.close()
        if self.query is not None:
            with contextlib.suppress(Exception):
                self.query.stop()
        if self._loop is not None and self._loop is not threading.current_thread():
            self._loop.join(TURN_S_MAX)

    def finish(self) -> None:
        """A query that always reads never says that it has read all. Micro-batches do."""
        assert self.hand_over is not None
        if self.inlet is not None and self._plain is not None:
            with self._my_turn():
                self._closing.set()
            self._leave()
            if self.failure is not None:
                return
            self._agree(self.hand_over.last)
            super().start(self._plain)
        self._backlog = None
        super().finish()

    def end_query(self, limit_s: float = -1) -> None:
        if self.inlet is not None:
            self._stopping.set()
            mine = self._turn.acquire(timeout=limit_s)
            try:
                self._leave()  # who pushes rows cannot be stopped while nobody takes them
            finally:
                if mine:
                    self._turn.release()
        super().end_query(limit_s)
        self._ended.set()
        if self._ends is not None:
            self._ends.close()


def positions_after(commit: CommitRecord) -> dict[str, int]:
    """Where the source stands after a batch, whether it was a micro-batch or not."""
    if commit.positions:
        return dict(commit.positions)
    (offset,) = checkpoint.source_offsets(commit.plan)
    return positions_of(offset or {})


def behind_by(positions: Mapping[str, int], ends: Mapping[str, int]) -> int:
    """How many rows are before the ends; of a partition that is not known, all of them."""
    return sum(max(0, end - positions.get(partition, 0)) for partition, end in ends.items())


def no_slots(master: str | None, partitions: int) -> str:
    """Why a stage cannot be in real time with this master; "": it can."""
    found = re.fullmatch(r"local(?:\[(\d+)(?:,.*)?\])?", master or "")
    if found is None or int(found[1] or 1) > partitions:
        return ""
    return f"master {master} has no slot for each of its {partitions} partitions, and one more"


def is_refused(error: BaseException) -> bool:
    """Does Spark not do this in real-time mode?"""
    return any(sign in str(error) for sign in ("STREAMING_REAL_TIME_MODE", "with real time mode"))


def plan_text(positions: Mapping[str, int]) -> str:
    """What Spark writes ahead about a micro-batch that ends there."""
    return f'v1\n{{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{{}}}}\n{offsets_of(positions)}'


def began_at(inlet: Inlet, positions: Mapping[str, int]) -> None:
    """A checkpoint for this life alone, which says that the source began there."""
    file = inlet.directory / "checkpoint" / "sources" / "0" / "0"
    file.parent.mkdir(parents=True)
    file.write_text(f"\0v1\n{offsets_of(positions)}")  # Spark writes a zero first, for its version 2.1


def pushing(frame: DataFrame, inlet: Inlet, name: str, long_ms: int) -> StreamingQuery:
    """A real-time query that pushes the rows of a frame, with their positions."""
    from pyspark.sql.streaming.query import StreamingQuery

    made = with_positions(frame)
    jvm: Any = made.sparkSession._jvm
    zone = made.sparkSession.conf.get("spark.sql.session.timeZone")
    writer = getattr(jvm, WRITER)(inlet.path, inlet.secret, made._jdf.schema(), zone, PUSH_MS, ALIVE_MS, PUSH_ROWS)
    checkpoints = (inlet.directory / "checkpoint").as_uri()
    query = made.writeStream.queryName(name).option("checkpointLocation", checkpoints).outputMode("update")
    return StreamingQuery(query.trigger(realTime=f"{long_ms} milliseconds")._jwrite.foreach(writer).start())


def rehearse(frame: DataFrame, collector: Collector, scratch: Path, say: Say, told: Callable[[], bool]) -> None:
    """Warm a JVM up: push the last rows of the source, and do what a stage does with them, but for the hand-over."""
    inlet, ends, query = Inlet("rehearsal"), SourceEnds(frame, scratch / "source"), None
    try:
        begin_at = {partition: max(0, end - REHEARSED_ROWS) for partition, end in ends.ends({}).items()}
        began_at(inlet, begin_at)
        query = pushing(frame, inlet, "rehearsal", 60_000)
        until = time.monotonic() + REHEARSAL_S_MAX
        while query.isActive and not told() and time.monotonic() < until:
            if inlet.wait(0.1) and (table := inlet.take(PUSH_ROWS)) is not None:
                collector.take(table, NEVER_US)
            elif inlet.is_quiet():
                break
    except Exception as error:  # it would have been faster, that is all
        say("waiting", what="the warm-up", detail=Reason("", error).detail)
    finally:
        inlet.close()
        ends.close()
        if query is not None:
            with contextlib.suppress(Exception):
                query.stop()

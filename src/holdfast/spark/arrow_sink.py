"""A sink without Spark: follows a stream, fetches its rows, gives them as an Arrow table to whatever writes them.

What a batch reads is noted durably before its rows are given away, and that it is written after that, in the files
that Spark keeps of a sink: so a sink can be moved, stopped, verified and upgraded like any other. After a failure the
batch that was planned and is not committed is given again, with the same number and the same rows in the same order.
Exactly once is then the writer's part: it is given the number (`SinkBatch`). A writer is the user's function, or
`kafka_sink.py`.

A function that hangs keeps its thread. Whoever takes over gives the same batch to another one; what the old one does
afterwards is of that same batch, and the nodes refuse it anything else, since its epoch is old.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pyarrow as pa

from holdfast.errors import HoldfastError
from holdfast.model.block import WATERMARK_MAX, WATERMARK_MIN
from holdfast.model.plan import Plan, StagePlan, edges_of
from holdfast.pipeline.graph import SinkBatch
from holdfast.spark import checkpoint
from holdfast.spark.fetch import fetch
from holdfast.spark.follower import HOLD_S_MAX, Follower, Offset, ReadOptions
from holdfast.spark.kept_plans import SinkKeeper
from holdfast.spark.orders import orders

#: At most about this many rows are one table.
ROWS_MAX = 200_000
#: Without rows a batch is planned after so long, so that positions can be acknowledged.
EMPTY_S = 2.0
#: A wait for rows is woken by them; this often it looks whether it shall end.
LOOK_S = 0.1
#: Edges that are fetched from at the same time.
FETCHES = 4
#: So many characters of what the function has raised are told; all of it is in the log of its process.
SAID_MAX = 500
#: Batches whose files are kept, as Spark does here; and how often older ones are removed.
KEEP, KEEP_EVERY = 100, 20


class SinkWriter(Protocol):
    """What rows are given to."""

    @property
    def tells(self) -> bool:
        """It says itself what it waits for. If not, a person is told how long it takes."""
        ...

    def prepare(self) -> None:
        """Of a standby: whatever makes a take-over shorter, and changes nothing."""
        ...

    def begin(self, stopping: threading.Event, committed: int) -> None:
        """Before anything is planned or written in this life. `committed`: the last batch that is noted as written."""
        ...

    def write(self, table: pa.Table, batch: SinkBatch) -> None: ...

    def idle(self) -> None:
        """There is nothing to write now."""
        ...

    def close(self) -> None: ...


class FunctionWriter:
    """The user's function."""

    tells = False

    def __init__(self, function: Callable[[pa.Table, SinkBatch], Any]) -> None:
        self._function = function

    def prepare(self) -> None:
        """It is not called: it would write."""

    def begin(self, stopping: threading.Event, committed: int) -> None:
        """It knows nothing of lives."""

    def write(self, table: pa.Table, batch: SinkBatch) -> None:
        """Whatever the function raises, `sys.exit` included, is told in one line."""
        try:
            self._function(table, batch)
        except (Exception, SystemExit) as error:
            text = " ".join(str(error).split())[:SAID_MAX]
            raise HoldfastError(
                f"stage {batch.sink}: its function failed",
                detail=f"Batch {batch.number}, {table.num_rows:,} rows: {type(error).__name__}: {text}",
                hint="The batch is not noted as written. It is given to the function again.",
            ) from error

    def idle(self) -> None:
        """It is not called without rows."""

    def close(self) -> None:
        """It has nothing of ours."""


class ArrowLoop:
    """One life of an Arrow sink, on a thread of its own. To its stage it looks like a query of Spark's."""

    def __init__(
        self,
        plan: Plan,
        stage: StagePlan,
        settings: ReadOptions,
        writer: SinkWriter,
    ) -> None:
        self._plan = plan
        self._stage = stage
        self._settings = settings
        self._writer = writer
        self._operator = plan.operator(stage.reads[0])
        self._schema = pa.ipc.read_schema(pa.py_buffer(self._operator.output))
        self._checkpoint = Path(settings.directory) / "checkpoints" / stage.id
        self._keeper = SinkKeeper(settings) if settings.keeps else None
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"arrow-{stage.id}", daemon=True)
        #: Since when the writer has been at work on the present batch.
        self._busy_since: float | None = None
        #: Of the last batch, shaped like Spark's StreamingQueryProgress.
        self.progress: dict[str, Any] | None = None

    # --- as a query

    def start(self) -> None:
        self._thread.start()

    @property
    def isActive(self) -> bool:
        return self._thread.is_alive()

    def exception(self) -> BaseException | None:
        return self._error

    def stop(self) -> None:
        self._stopping.set()

    def awaitTermination(self) -> None:
        self._thread.join()

    def busy_s(self) -> float:
        """For how long the user's function has been at work on the present batch; 0: it is not."""
        since = self._busy_since
        return 0.0 if since is None or self._writer.tells else time.monotonic() - since

    # --- on its thread

    def _run(self) -> None:
        try:
            self._live()
        except BaseException as error:
            self._error = error

    def _live(self) -> None:
        number = checkpoint.last_committed(self._checkpoint)
        start = checkpoint.planned_batch(self._checkpoint, number) if number >= 0 else self._beginning()
        follower = Follower(self._settings, self._plan, start)
        pool = ThreadPoolExecutor(FETCHES, thread_name_prefix=f"fetch-{self._stage.id}")
        try:
            self._writer.begin(self._stopping, number)
            if checkpoint.newest_planned(self._checkpoint) > number:  # of a life that did not come to its end
                number += 1
                end = checkpoint.planned_batch(self._checkpoint, number)
                follower.reach(start, end, time.monotonic() + HOLD_S_MAX, self._stopping)
                start = self._batch(follower, pool, number, start, end)
            self._follow(follower, pool, number, start)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            self._writer.close()
            follower.close()
            if self._keeper is not None:
                self._keeper.close()

    def _beginning(self) -> Offset:
        return {edge: [0, WATERMARK_MIN] for edge in edges_of(self._operator)}

    def _follow(self, follower: Follower, pool: ThreadPoolExecutor, number: int, start: Offset) -> None:
        self._acknowledge(follower, start)
        moved = time.monotonic()
        while not self._stopping.is_set() and not _is_over(start):
            end, rows = follower.latest(start, ROWS_MAX)
            now = time.monotonic()
            if end == start or not (rows or _is_over(end) or now - moved > EMPTY_S):
                self._writer.idle()
                follower.wait(LOOK_S)
                continue
            number, moved = number + 1, now
            end = checkpoint.plan_batch(self._checkpoint, number, end)
            # another life's plan may be ahead of what is known here
            follower.reach(start, end, now + HOLD_S_MAX, self._stopping)
            start = self._batch(follower, pool, number, start, end)

    def _batch(self, follower: Follower, pool: ThreadPoolExecutor, number: int, start: Offset, end: Offset) -> Offset:
        """Write what is planned, and note it."""
        if self._keeper is not None:
            self._keeper.keep()
        began, moment = time.time(), time.perf_counter()
        table = self._rows(follower, pool, start, end)
        fetched = time.perf_counter()
        if table.num_rows:
            positions = {str(edge): position for edge, (position, _) in end.items()}
            told = SinkBatch(run=self._plan.query, sink=self._stage.id, number=number, positions=positions)
            self._busy_since = time.monotonic()
            try:
                self._writer.write(table, told)
            finally:
                self._busy_since = None
        written = time.perf_counter()
        checkpoint.commit_batch(self._checkpoint, number)
        if number % KEEP_EVERY == 0:
            checkpoint.forget_batches(self._checkpoint, number - KEEP)
        self._acknowledge(follower, end)
        spans = {"fetch": fetched - moment, "write": written - fetched, "commit": time.perf_counter() - written}
        self.progress = self._told(number, began, table.num_rows, spans)
        return end

    def _acknowledge(self, follower: Follower, offset: Offset) -> None:
        """That it is committed must be in the store before its rows may go, if the run has to go on from there."""
        if self._keeper is not None:
            self._keeper.keep()
        follower.acknowledge(offset)

    def _rows(self, follower: Follower, pool: ThreadPoolExecutor, start: Offset, end: Offset) -> pa.Table:
        """In one order, whenever it is asked: by edge, then by position."""
        wanted = sorted(follower.pieces(start, end), key=lambda piece: (piece.edge, piece.start))
        settings = msgspec.structs.replace(self._settings, parallelism=1)
        batches: list[pa.RecordBatch] = []
        for order in orders(settings, wanted, follower.record(), self._plan.topology.query) if wanted else ():
            for found in pool.map(lambda piece, order=order: fetch(order, piece), wanted):
                batches += found
        return pa.Table.from_batches(batches, self._schema) if batches else self._schema.empty_table()

    def _told(self, number: int, began: float, rows: int, spans: dict[str, float]) -> dict[str, Any]:
        total = sum(spans.values())
        return {
            "name": self._stage.id,
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began)),
            "batchId": number,
            "batchDuration": round(1000 * total),
            "numInputRows": rows,
            "processedRowsPerSecond": round(rows / total, 1) if total else 0.0,
            "durationMs": {what: round(1000 * span, 1) for what, span in {**spans, "triggerExecution": total}.items()},
        }


def _is_over(offset: Offset) -> bool:
    return all(mark >= WATERMARK_MAX for _, mark in offset.values())

"""An operator with continuous eventual checkpoints, and its output log on a real disk (cec §III).

Each step becomes one entry: results, and beside them what the windows have left. Entries are written as groups, and
what comes while a group is being synced goes with the next one. Results may be passed on once they are `durable` (cec,
appendix: persist before forwarding). How many windows are checked at the end of a step a `Policy` decides.

After a crash `recover` makes a fresh operator into the one that wrote the log's last entry, and the log goes on from
there. Whoever feeds it gives the input again from `needed` on: that, and the log from there, must be kept.

One operator on one node; a node's shards do not use it yet (docs/eventual.md).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from holdfast.core.eventual import Cadence, Calibration, Chosen, RecoverIn, Targets, Worth
from holdfast.core.ready import Done, DropSpill, Spill
from holdfast.errors import ConfigError, DamagedLogError, StateError
from holdfast.logs.control import LoggedBlock, with_control
from holdfast.logs.edge_log import Segment
from holdfast.model.block import WATERMARK_MAX, WATERMARK_MIN, shard_block
from holdfast.model.footprint import Extent
from holdfast.model.ids import Edge
from holdfast.operators.footprints import Footprints
from holdfast.operators.gather import Gathered
from holdfast.operators.traced import TracedOperator
from holdfast.runtime.disk.edge_logs import LOG, EdgeLogs
from holdfast.runtime.disk.footprint_reader import FootprintReader, segment_end
from holdfast.runtime.disk.log_reader import SegmentReader
from holdfast.runtime.net.rows import ArrowRows

#: After so many steps an objective is looked at anew.
CHOOSE_EVERY = 64


class InputStep(NamedTuple):
    """What an operator takes in at once: rows, then a watermark; either may be missing."""

    batch: pa.RecordBatch | None
    watermark: int | None = None
    inputs: tuple[tuple[str, int], ...] = ()


#: (first, last) -> the steps with these numbers, the last one included.
Source = Callable[[int, int], Iterable[InputStep]]


class Policy:
    """How many windows to check, by whichever of the three ways, within CI of every CP."""

    def __init__(
        self,
        how: Targets | Worth | RecoverIn | None,
        cadence: Cadence | None = None,
        costs: Calibration | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.how = how
        self.cadence = cadence
        #: What an objective comes to; without a cadence of its own, it goes by that.
        self.chosen: Chosen | None = None
        self._chooses = isinstance(how, RecoverIn) and cadence is None
        self._decisions = 0
        self.costs = costs or Calibration()
        self._clock = clock
        self._began = 0
        self._ended = 0
        self._looked = False
        #: Checks of the last step.
        self.count = 0
        #: Checks ever, and the time that went into them.
        self.checks = 0
        self.spent_ns = 0

    def decide(self, footprints: Footprints, rows: int) -> int:
        self._began = self._clock()
        self._looked = False
        self.count = 0
        how = self.how
        if how is None:
            return 0
        now = footprints.extent(rows)
        if self._chooses:
            self._choose(now.windows)
        if isinstance(how, Targets) and how.met_by(now):
            return 0
        if isinstance(how, RecoverIn) and self.costs.recovery_ns(now) <= how.left_ns:
            return 0
        most = now.windows
        if self.cadence is not None:
            left_ns = self.cadence.left_ns(self._began)
            most = min(most, int(left_ns / max(1.0, self.costs.check_ns)))
            if left_ns <= 0:
                return 0
        self._looked = True
        ages = footprints.ages(rows, most)
        if isinstance(how, Worth):
            self.count = how.checks(ages.after, min(most, ages.most), self.costs)
        elif isinstance(how, RecoverIn):
            self.count = how.checks(ages.after, min(most, ages.most), self.costs).count
        else:
            self.count = how.checks(ages.after, min(most, ages.most)).count
        return self.count

    def _choose(self, windows: int) -> None:
        """Q, U, CI and CP by what has been learnt, now and then."""
        self._decisions += 1
        if self._decisions % CHOOSE_EVERY or not isinstance(self.how, RecoverIn):
            return
        try:
            self.chosen = self.how.choose(windows, self.costs)
        except ConfigError:
            return  # it cannot be reached now: as many checks as there is time for would not do either
        wanted, has = self.chosen, self.cadence
        if has is None or not 0.8 < wanted.interval_ns * has.period_ns / (has.interval_ns * wanted.period_ns) < 1.25:
            self.cadence = Cadence(wanted.interval_ns, wanted.period_ns)

    def took(self, rows: int, began: int) -> None:
        """Rows were processed, since this reading of the clock."""
        self.costs.replayed(rows, self._clock() - began)

    def now(self) -> int:
        return self._clock()

    def done(self, tuples: int, rows: int) -> None:
        """The step is over; it brought so many tuples and rows. What the decision and its checks took is learnt."""
        now = self._clock()
        if self._ended:
            self.costs.grew(tuples - self.count, rows, now - self._ended)
        self._ended = now
        took = now - self._began
        self.checks += self.count
        self.spent_ns += took
        if self.count:
            self.costs.checked(self.count, took)
        if self._looked and self.cadence is not None:
            self.cadence.spent(took)  # to look for the oldest windows costs too


class ControlLog:
    """The writer's side of one operator's log: one group at a time is on its way, what comes meanwhile waits."""

    def __init__(
        self, directory: Path, edge: Edge, *, held: list[Segment] | None = None, start: int = 0, threads: bool = False
    ) -> None:
        self.edge = edge
        #: Up to which position of the output everything is on disk.
        self.durable = start
        self.damage: DamagedLogError | None = None
        self._refused = ""
        self._waiting: list[LoggedBlock] = []
        self._writing: list[LoggedBlock] = []
        self._tickets = 0
        self._news = threading.Condition()
        self._ended = threading.Event()
        self._threads = threads
        self._logs = EdgeLogs(directory, self._answer, self._on_damage, held={edge: held} if held is not None else None)
        if threads:
            self._logs.start(self._ended)

    @property
    def bytes(self) -> int:
        return self._logs.bytes

    def put(self, block: LoggedBlock) -> None:
        """Write it soon, with the next group. Where there are no threads, `flush` writes."""
        with self._news:
            self._waiting.append(block)
            if self._threads:
                self._go_on()

    def flush(self) -> None:
        """Wait until everything is on disk."""
        with self._news:
            self._go_on()
        while True:
            if not self._threads:
                self._logs.work()
            with self._news:
                self._news.wait_for(lambda: not self._writing or self._refused, 1.0)
                if self._refused:
                    why, self._refused = self._refused, ""
                    raise StateError("an output log could not be written", detail=why, hint="Is the disk full?")
                if not self._writing and not self._waiting:
                    return

    def drop(self, to: int) -> None:
        """Nothing before this position is needed, by consumers or by a recovery."""
        self._logs.want(DropSpill(edge=self.edge, to=to))
        if not self._threads:
            self._logs.work()

    def close(self) -> None:
        self._ended.set()

    def _go_on(self) -> None:
        if not self._writing and self._waiting:
            self._writing, self._waiting = self._waiting, []
            self._tickets += 1
            self._logs.want(Spill(ticket=self._tickets, edge=self.edge, blocks=tuple(self._writing)))

    def _answer(self, done: Done) -> None:
        with self._news:
            written, self._writing = self._writing, []
            if done.ok:
                self.durable = written[-1].end
                self._go_on()
            else:
                self._waiting = [*written, *self._waiting]  # tried again with the next step
                self._refused = done.why
            self._news.notify_all()

    def _on_damage(self, error: DamagedLogError) -> None:
        self.damage = error


class EventualOperator:
    """An operator that steps, leaves footprints, and writes both to its log."""

    def __init__(
        self, operator: TracedOperator, log: ControlLog, policy: Policy | None = None, *, step: int = 0, last: int = 0
    ) -> None:
        """`step`, `last`: of an operator that was recovered, the log's last step, and where its entry begins."""
        self.operator = operator
        self.log = log
        self.policy = policy or Policy(None)
        self.steps = step
        #: Where the next results begin on the output edge.
        self.position = log.durable
        self._last = last
        if operator.footprints is None:
            operator.keep_footprints()

    def step(self, step: InputStep) -> pa.Table:
        """Take one step's input in; its results, which may be passed on once `log.durable` has passed them."""
        operator, start, began = self.operator, self.position, self.policy.now()
        before = operator.rows
        results = stepped(operator, step)
        self.policy.took(operator.rows - before, began)
        self.steps += 1
        control = operator.leave(self.steps, start, results.num_rows, step.inputs, self._decide)
        rows = ArrowRows.of(results) if results.num_rows else ()
        time_ = max(WATERMARK_MIN, min(operator.watermark, WATERMARK_MAX))
        self.log.put(with_control(shard_block(start, rows, time_, time_), control))
        self.policy.done(control.tuples, operator.rows - before)
        self._last, self.position = start, start + results.num_rows + 1
        return results

    def _decide(self, footprints: Footprints) -> int:
        return self.policy.decide(footprints, self.operator.rows)

    @property
    def extent(self) -> Extent:
        assert self.operator.footprints is not None
        return self.operator.footprints.extent(self.operator.rows)

    @property
    def needed(self) -> tuple[int, int]:
        """(position of the log, step of the input) from which on they are needed if it fails now. The log's last entry
        always is: it says where the operator stood."""
        assert self.operator.footprints is not None
        oldest = self.operator.footprints.oldest()
        return (oldest.start, oldest.step + 1) if oldest is not None else (self._last, self.steps + 1)


def stepped(operator: TracedOperator, step: InputStep) -> pa.Table:
    """The results of one step."""
    made = [operator.output_schema.empty_table()]
    if step.batch is not None:
        made.append(operator.process(step.batch))
    if step.watermark is not None:
        made.append(operator.on_watermark(step.watermark))
    return pa.concat_tables([table for table in made if table is not None])


class BroughtBack(NamedTuple):
    """What a recovery found, and how long its parts took."""

    #: The last step that the log has, and where its results end.
    step: int
    position: int
    #: Where the results of that step begin.
    start: int
    gathered: Gathered | None
    tuples: int
    bytes_read: int
    read_ns: int
    load_ns: int
    replay_ns: int
    replayed_rows: int


def recover(
    operator: TracedOperator,
    directory: Path,
    edge: Edge,
    source: Source,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> BroughtBack:
    """Make a fresh operator the one that wrote the last entry of this log."""
    began = clock()
    reader = FootprintReader(directory / edge)
    gathered = reader.gather(operator)
    read = clock()
    if gathered is None:
        operator.keep_footprints()
        return BroughtBack(0, 0, 0, None, 0, reader.bytes, read - began, 0, 0, 0)
    operator.bring_back(gathered)
    loaded = clock()
    since, end = gathered.since, gathered.end
    for number, step in enumerate(source(since.step + 1, end.step), since.step + 1):
        if step.batch is not None:
            operator.replay(step.batch, number)
    operator.replayed(gathered)
    replayed = clock()
    assert reader.end is not None
    tuples = end.after - since.before
    times = (read - began, loaded - read, replayed - loaded)
    return BroughtBack(
        end.step, reader.end.end, reader.end.start, gathered, tuples, reader.bytes, *times, end.rows - since.rows
    )


def go_on(
    operator: TracedOperator,
    directory: Path,
    edge: Edge,
    source: Source,
    policy: Policy | None = None,
    *,
    threads: bool = False,
) -> tuple[EventualOperator, BroughtBack]:
    """Recover an operator from its log, and go on writing to it. An empty log is a start."""
    found = recover(operator, directory, edge, source)
    log = ControlLog(directory, edge, held=held_segments(directory / edge), start=found.position, threads=threads)
    live = EventualOperator(operator, log, policy, step=found.step, last=found.start)
    live.policy.costs.loaded(found.tuples, found.read_ns + found.load_ns)
    live.policy.costs.replayed(found.replayed_rows, found.replay_ns)
    return live, found


def held_segments(directory: Path) -> list[Segment]:
    """The segments of a log that an earlier life has left, oldest first. Files that hold nothing yet are deleted."""
    held: deque[Segment] = deque()
    for path in sorted(directory.glob(f"*{LOG}")):
        segment = SegmentReader(path)
        end = segment_end(segment)
        segment.close()
        if end.damage:
            raise DamagedLogError("an output log is damaged", detail=f"{path}: {end.damage}.")
        if end.head is None or end.last is None:
            path.unlink()
            path.with_suffix(".index").unlink(missing_ok=True)
        else:
            held.append(Segment.held(end.head, end.last))
    return list(held)

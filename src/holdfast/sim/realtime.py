"""A real-time stage as the core sees it: Spark's tasks push rows while a long batch goes on, the stage makes batches.

What survives a crash is the ledger alone: a new driver begins a fresh query at the ledger's positions. Inside of a life
Spark's long batches follow each other, each with a task for every partition that it knew when the batch began. A task
pushes pieces of any size, and what it has pushed takes its time to arrive: also longer than until the next long batch
has begun. Partitions come in any order, and new ones are found by the next long batch. Now and then Spark runs a task
again, from the beginning of its long batch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from random import Random

from holdfast.core.intake import Intake, Pushed, Reach, TaskStream
from holdfast.core.ready import Opened
from holdfast.core.stage import Phase, RunBatch, StageDriver
from holdfast.model.block import WATERMARK_MAX, WATERMARK_MIN, Row
from holdfast.model.config import MS
from holdfast.model.ids import Address
from holdfast.model.parts import CommitRecord
from holdfast.sim.process import Process
from holdfast.sim.spark import RowSource, SourceQuery

#: How often the stage makes a batch of what has come; and without rows, so that its watermark may move on.
PACE_NS, EMPTY_NS = 20 * MS, 100 * MS
ROWS_MAX = 40
#: When the stage looks whether a long batch has ended, and where.
LOOKS_NS = (2 * MS, 10 * MS, 200 * MS)


class PartitionedSource(RowSource):
    """The rows of a source in partitions; one more is there from the middle on."""

    def __init__(self, rows: list[tuple[int, Row]], partitions: int, seed: str) -> None:
        super().__init__(rows)
        rng = Random(f"partitions {seed}")
        grows_at = rng.randrange(len(rows) + 1)
        #: Which rows, by their numbers, each partition has.
        self.parts: dict[str, list[int]] = {f"t/{p}": [] for p in range(partitions + 1)}
        for i in range(len(rows)):
            self.parts[f"t/{rng.randrange(partitions + (i >= grows_at))}"].append(i)
        #: When it is there: a partition exists before it has rows.
        self.since_ns = dict.fromkeys(self.parts, 0)
        self.since_ns[f"t/{partitions}"] = rows[grows_at][0] if grows_at < len(rows) else rows[-1][0] if rows else 0

    def there(self, now_ns: int) -> list[str]:
        return [name for name, since_ns in self.since_ns.items() if since_ns <= now_ns]

    def end(self, partition: str, now_ns: int) -> int:
        """Up to where rows have come."""
        part = self.parts[partition]
        return bisect_left(part, True, key=lambda i: self.rows[i][0] > now_ns)

    def row(self, partition: str, position: int) -> Row:
        return self.rows[self.parts[partition][position]][1]

    def between(self, partition: str, begin: int, end: int) -> list[Row]:
        """As far as there are rows: a record may say more."""
        return [self.row(partition, at) for at in range(begin, min(end, len(self.parts[partition])))]

    def is_read(self, positions: Mapping[str, int]) -> bool:
        return self.closed and all(positions.get(name, 0) >= len(part) for name, part in self.parts.items())


def rows_of_batches(source: RowSource, commits: list[CommitRecord]) -> list[list[Row]]:
    """The rows that each batch has taken, as its record says."""
    if not isinstance(source, PartitionedSource):
        return [[row for _, row in source.rows[slice(*commit.offsets)]] for commit in commits]
    found: list[list[Row]] = []
    begins: Mapping[str, int] = {}
    for commit in commits:
        ends = sorted(commit.positions.items())
        found.append([row for name, end in ends for row in source.between(name, begins.get(name, 0), end)])
        begins = commit.positions
    return found


class LongBatch:
    """One of Spark's, in one life of a query."""

    __slots__ = ("end_ns", "number", "open", "starts")

    def __init__(self, number: int, starts: dict[str, int], end_ns: int) -> None:
        self.number = number
        #: Where each partition stands now, as Spark knows it.
        self.starts = starts
        self.end_ns = end_ns
        self.open = len(starts)


class UnderWay:
    """What one task has pushed and its stage has not got yet: in order, each at its time."""

    __slots__ = ("last_ns", "stream")

    def __init__(self, stream: TaskStream) -> None:
        self.stream = stream
        self.last_ns = 0


class RealTimeLife:
    """What one life of a driver has in memory."""

    __slots__ = ("batched_ns", "commit", "intake", "taken")

    def __init__(self, commit: CommitRecord | None) -> None:
        self.commit = commit
        self.intake = Intake(commit.positions if commit is not None else {})
        #: Rows of all batches so far; they are the offsets of the model's commits.
        self.taken = commit.offsets[1] if commit is not None else 0
        self.batched_ns = 0


class RealTimeQuery(SourceQuery):
    """One real-time stage, and the driver that runs it now (if any)."""

    source: PartitionedSource

    def __init__(self, *given, **named) -> None:
        super().__init__(*given, **named)
        self.lives: dict[Address, RealTimeLife] = {}

    def _on_opened(self, process: Process, effect: Opened) -> None:
        life = self.lives[process.address] = RealTimeLife(effect.commit)
        self.finished = self.finished or (effect.commit is not None and effect.commit.watermark == WATERMARK_MAX)
        starts = dict(life.intake.positions)
        self.world.later(process, 5 * MS, lambda: self._long_batch(process, life, 0, starts))
        self.world.later(process, PACE_NS, lambda: self._make(process, life))

    # --- Spark's part

    def _long_batch(self, process: Process, life: RealTimeLife, number: int, stood: dict[str, int]) -> None:
        starts = {name: stood.get(name, 0) for name in self.source.there(self.world.now_ns)}
        batch = LongBatch(number, starts, self.world.now_ns + self.rng.randrange(60, 500) * MS)
        names = list(starts)
        self.rng.shuffle(names)
        for name in names:
            task = int(name.partition("/")[2])
            arrival = UnderWay(life.intake.begin(number, task))
            self._next_piece(process, life, batch, name, arrival, starts[name])

    def _next_piece(
        self, process: Process, life: RealTimeLife, batch: LongBatch, name: str, arrival: UnderWay, begin: int
    ) -> None:
        after_ns = self.rng.choice((1, 5, 30)) * MS
        self.world.later(process, after_ns, lambda: self._read(process, life, batch, name, arrival, begin))

    def _read(
        self, process: Process, life: RealTimeLife, batch: LongBatch, name: str, arrival: UnderWay, begin: int
    ) -> None:
        """A task reads what is there, or some of it; its long batch is over at a time, not at a row."""
        at, stream = batch.starts[name], arrival.stream
        end = min(self.source.end(name, self.world.now_ns), at + self.rng.choice((1, 3, 50)))
        if end > at:
            rows = [(position, self.source.row(name, position)) for position in range(at, end)]
            piece = Pushed({name: Reach(at, end)}, len(rows), rows)
            self._arrives(process, arrival, lambda: life.intake.push(stream, piece))
            batch.starts[name] = end
        if end > at and self.rng.random() < 0.02:  # it dies, and Spark runs it again
            self._arrives(process, arrival, lambda: life.intake.end(stream, whole=False))
            batch.starts[name] = begin
            arrival = UnderWay(life.intake.begin(batch.number, stream.task))
        if self.world.now_ns < batch.end_ns:
            self._next_piece(process, life, batch, name, arrival, begin)
            return
        self._arrives(process, arrival, lambda: life.intake.end(arrival.stream, whole=True))
        batch.open -= 1
        if not batch.open:
            number, stood = batch.number + 1, batch.starts
            self.world.later(process, 5 * MS, lambda: self._long_batch(process, life, number, stood))
            for after_ns in LOOKS_NS:  # Spark has noted where it ended: the stage sees that now and then
                self.world.later(process, after_ns, lambda: self._pass_over(life, number - 1, stood))

    @staticmethod
    def _pass_over(life: RealTimeLife, batch: int, stood: dict[str, int]) -> None:
        life.intake.pass_over(batch, stood)

    def _arrives(self, process: Process, arrival: UnderWay, action: Callable[[], None]) -> None:
        """Behind all that its task has pushed before."""
        arrival.last_ns = max(arrival.last_ns, self.world.now_ns + self.rng.choice((0, 1, 20)) * MS) + 1

        self.world.later(process, arrival.last_ns - self.world.now_ns, action)

    # --- the stage's part

    def _make(self, process: Process, life: RealTimeLife) -> None:
        """A batch of what has come, if the last one counts."""
        driver = process.machine
        if self.finished or not isinstance(driver, StageDriver) or driver.phase is not Phase.READY:
            return
        pieces = life.intake.take(ROWS_MAX)
        rows = [row for piece in pieces for row in kept(piece)]
        final = not rows and self.source.is_read(life.intake.positions)
        if not rows and not final and self.world.now_ns - life.batched_ns < EMPTY_NS:
            self.world.later(process, PACE_NS, lambda: self._make(process, life))
            return
        life.batched_ns = self.world.now_ns
        on_time = [row for row in rows if row[1] >= driver.watermark]
        self.rng.shuffle(on_time)
        event = RunBatch(
            batch=driver.next_batch,
            parts=self._parts(on_time, self.spec.shards),
            offsets=(life.taken, life.taken + len(rows)),
            positions=dict(life.intake.positions),
            event_time_max=max((row[1] for row in rows), default=WATERMARK_MIN),
            late=len(rows) - len(on_time),
            final=final,
        )
        life.taken += len(rows)
        self.world.later(process, 5 * MS, lambda: self._feed(process, event))

    def _commit(self, process: Process, batch: int) -> None:
        """The batch counts. It was the last one if its record says so."""
        driver = process.machine
        assert isinstance(driver, StageDriver)
        self.finished = self.finished or driver.watermark == WATERMARK_MAX
        life = self.lives[process.address]
        self.world.later(process, PACE_NS, lambda: self._make(process, life))


def kept(piece: Pushed) -> list[Row]:
    """Its rows, without those that were taken before."""
    ((name, _),) = piece.spans.items()
    return [row for position, row in piece.content if position >= piece.known.get(name, 0)]

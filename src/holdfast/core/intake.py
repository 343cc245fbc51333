"""Rows of a real-time source, on their way from Spark's tasks to a batch of the stage's own: which may be taken now,
and where every source partition stands after them.

Spark's real-time query runs in long batches, and its tasks push rows while such a batch goes on. A task pushes through
a stream of its own: pieces in the order in which it has read them, and at last whether it has ended whole. Of every
piece it is known where it begins and ends in each source partition.

Why that is enough to take every row once:

- The rows of a partition come in the order of their positions. So what was taken of it is a prefix, and one number
  says all of it: the position after the last row. (Positions that no row has were left out by a filter. They are read
  again, and left out again.)
- A partition is read by one task at a time, but by another one in every long batch, and what an earlier task has pushed
  may still be on its way when a later one begins. Nothing of a long batch is taken before all streams of those before
  have ended whole: otherwise rows would be left behind that nobody would ever read again.
- What a task pushes once more (Spark has run it again) begins before the position that is known. It is cut there.
- The positions after a batch are in its commit record, so a new driver begins exactly behind what counts.

A stream that ends torn is waited for: either Spark runs its task again, or its query fails, and the driver with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from holdfast.errors import check

#: A partition of a source, by the name that the stage gives it.
Partition = str


class Reach(NamedTuple):
    """Where rows of one partition begin, and the position after the last of them."""

    first: int
    end: int


class Pushed(NamedTuple):
    spans: Mapping[Partition, Reach]
    #: How many rows it has, and whatever the driver keeps them in.
    rows: int
    content: Any
    #: Rows before these positions were taken before: whoever takes the piece leaves them out.
    known: Mapping[Partition, int] = {}


class TaskStream:
    """What one task pushes in one of Spark's long batches."""

    __slots__ = ("batch", "ended", "pieces", "stands", "task", "waiting")

    def __init__(self, batch: int, task: int) -> None:
        self.batch = batch
        self.task = task
        self.pieces: deque[Pushed] = deque()
        #: Where its last piece has ended, by partition.
        self.stands: dict[Partition, int] = {}
        #: How many rows of it wait to be taken.
        self.waiting = 0
        #: True: whole; False: torn; None: it goes on.
        self.ended: bool | None = None


class Intake:
    """Of one life of a driver."""

    __slots__ = ("batch", "positions", "streams", "waiting")

    def __init__(self, positions: Mapping[Partition, int]) -> None:
        #: The position that comes next in every partition, after all that was taken. Never goes back.
        self.positions = dict(positions)
        self.streams: list[TaskStream] = []
        #: The long batch of Spark's that rows are taken of.
        self.batch = -1
        #: How many rows wait to be taken, also of batches whose turn has not come.
        self.waiting = 0

    def begin(self, batch: int, task: int) -> TaskStream:
        """A task has begun to push. Called in the order in which they begin."""
        check(batch >= self.batch, "a task pushes rows of a batch that is over", f"batch {batch}, task {task}")
        for other in self.streams:
            if (other.batch, other.task) == (batch, task) and other.ended is None:
                other.ended = False  # the task runs again: of its first run nothing more comes
        stream = TaskStream(batch, task)
        self.streams.append(stream)
        return stream

    def push(self, stream: TaskStream, piece: Pushed) -> None:
        if stream.ended is False:
            return  # it was torn, or its task runs again
        check(stream.ended is None, "a task pushes rows after its end", f"batch {stream.batch}, task {stream.task}")
        for partition, span in piece.spans.items():
            stands = stream.stands.get(partition, 0)
            check(
                stands <= span.first < span.end,
                "rows of a source partition come out of order",
                f"{partition}: [{span.first}, {span.end}) after {stands}",
            )
            stream.stands[partition] = span.end
        stream.pieces.append(piece)
        stream.waiting += piece.rows
        self.waiting += piece.rows

    def end(self, stream: TaskStream, *, whole: bool) -> None:
        if stream.ended is None:
            stream.ended = whole

    def take(self, rows_max: int) -> list[Pushed]:
        """At least one piece, if there is any that may be taken; no further one once there are this many rows.
        `positions` are those after them."""
        taken: list[Pushed] = []
        rows = 0
        while rows < rows_max and (stream := self._next()) is not None:
            piece = self._cut(stream.pieces.popleft())
            stream.waiting -= piece.rows
            self.waiting -= piece.rows
            rows += piece.rows
            taken.append(piece)
        return taken

    def pass_over(self, batch: int, stands: Mapping[Partition, int]) -> bool:
        """Spark has ended this long batch, and says where each partition stood: what has not come before that was left
        out. True: all its rows were taken, so the positions are those at least. (A stream of a later one must have
        begun: all those of this one are known then.)"""
        self._next()
        if self.batch <= batch:
            return False
        for partition, at in stands.items():
            self.positions[partition] = max(self.positions.get(partition, 0), at)
        return True

    def stands(self) -> dict[Partition, int]:
        """The positions after all that was pushed, taken or not."""
        found = dict(self.positions)
        for stream in self.streams:
            for partition, at in stream.stands.items():
                found[partition] = max(found.get(partition, 0), at)
        return found

    def _next(self) -> TaskStream | None:
        """A stream that has a piece to be taken, of the oldest long batch that has not ended."""
        while self.streams:
            self.batch = min(stream.batch for stream in self.streams)
            streams = [stream for stream in self.streams if stream.batch == self.batch]
            found = next((stream for stream in streams if stream.pieces), None)
            if found is not None:
                # so that no task waits for another: the one that was taken of goes to the end
                self.streams.remove(found)
                self.streams.append(found)
                return found
            if not all(self._is_whole(stream, streams) for stream in streams):
                return None
            self.streams = [stream for stream in self.streams if stream.batch != self.batch]
        return None

    @staticmethod
    def _is_whole(stream: TaskStream, streams: list[TaskStream]) -> bool:
        """It has ended whole, or another run of its task has."""
        return any(other.ended for other in streams if other.task == stream.task)

    def _cut(self, piece: Pushed) -> Pushed:
        known = {p: at for p, span in piece.spans.items() if (at := self.positions.get(p, 0)) > span.first}
        for partition, span in piece.spans.items():
            self.positions[partition] = max(self.positions.get(partition, 0), span.end)
        return piece._replace(known=known) if known else piece


def check_positions(stage: str, before: Mapping[Partition, int], after: Mapping[Partition, int]) -> None:
    """No partition goes back, and none is forgotten. (A micro-batch has no positions: Spark's plan has them.)"""
    if before and after:
        back = [partition for partition, at in before.items() if after.get(partition, -1) < at]
        check(not back, "a batch goes back in its source", f"{stage}: {', '.join(back)}")

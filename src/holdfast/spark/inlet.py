"""Where the tasks of a real-time query push their rows: a Unix socket of this process, and what has come over it.

A connection is of one task in one of Spark's long batches: a secret, both numbers, an Arrow stream, one more byte if
the task ended well (`java/RealTimeWriter.java`). Connections are taken one after the other, in the order in which tasks
have begun; then each has a thread. `core/intake.py` decides which rows may be taken. A thread does not read while too
many rows of its task wait: then that waits, and in the end the source does.

The socket lies in a directory that only this user can enter; the secret keeps others of his processes out. Who does not
show it, or shows nothing for a while, is hung up on.
"""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import json
import secrets
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from holdfast.core.intake import Intake, Pushed, Reach, TaskStream
from holdfast.pipeline.real_time import OFFSET, PARTITION, POSITION, TOPIC

#: A task waits while so many of its rows wait to be taken. (Of each: a later long batch must not keep out the rest of
#: the one before.)
WAITING_ROWS_MAX = 50_000
WAITING_BYTES_MAX = 64 << 20
#: A connection that does not say within this time who it is.
HEAD_S_MAX = 10.0
#: A task that has been silent for this long may hang: it says that it is alive more often.
ALIVE_S_MAX = 2.0
SECRET_BYTES = 32
_WHOLE = b"\x01"
_PREFIX = "holdfast-rows-"


def name_of(topic: str, partition: int) -> str:
    """A partition of a source, as commit records name it. (No topic of Kafka's has a slash in its name.)"""
    return f"{topic}/{partition}"


def positions_of(offsets: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Offsets as Kafka's sources write them, {topic: {partition: offset}}, as positions."""
    return {name_of(topic, int(p)): at for topic, parts in offsets.items() for p, at in parts.items()}


def offsets_of(positions: Mapping[str, int]) -> str:
    """And the other way round, as JSON."""
    found: dict[str, dict[str, int]] = {}
    for name, at in sorted(positions.items()):
        topic, _, partition = name.rpartition("/")
        found.setdefault(topic, {})[partition] = at
    return json.dumps(found, separators=(",", ":"))


def piece_of(batch: pa.RecordBatch) -> Pushed:
    """What a task has pushed at once, which is of one partition as a rule."""
    topics, partitions = batch.column(TOPIC), batch.column(PARTITION)
    offsets = batch.column(OFFSET).to_numpy(zero_copy_only=False)
    spans: dict[str, Reach] = {}
    if len(partitions.unique()) == 1 and len(topics.unique()) == 1:
        spans[name_of(topics[0].as_py(), partitions[0].as_py())] = Reach(int(offsets[0]), int(offsets[-1]) + 1)
    else:
        for topic, partition, at in zip(topics.to_pylist(), partitions.to_pylist(), offsets.tolist(), strict=True):
            name = name_of(topic, partition)
            spans[name] = Reach(spans[name].first if name in spans else at, at + 1)
    return Pushed(spans, batch.num_rows, batch)


def rows_of(piece: Pushed) -> pa.RecordBatch:
    """Its rows without their positions, and without those that were taken before."""
    batch: pa.RecordBatch = piece.content
    if piece.known:
        topics, partitions = (batch.column(name).to_pylist() for name in (TOPIC, PARTITION))
        known = np.array([piece.known.get(name_of(*pair), 0) for pair in zip(topics, partitions, strict=True)])
        batch = batch.filter(pa.array(batch.column(OFFSET).to_numpy(zero_copy_only=False) >= known))
    return batch.drop_columns(list(POSITION))


def _rows_max(batch: pa.RecordBatch) -> int:
    """How many rows like these may wait."""
    return min(WAITING_ROWS_MAX, 1 + WAITING_BYTES_MAX * batch.num_rows // max(1, batch.nbytes))


def _sweep(home: Path) -> None:
    """Directories of processes that were killed: nobody holds the lock in them any more."""
    for left in home.glob(f"{_PREFIX}*/lock"):
        with contextlib.suppress(OSError), left.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left.parent, ignore_errors=True)


class Inlet:
    """Of one life of a stage's driver. `failure`: of a thread of it; nothing more comes then."""

    def __init__(self, name: str) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix=_PREFIX))
        _sweep(self.directory.parent)
        self._lock = (self.directory / "lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.path = str(self.directory / "s")
        self.secret = secrets.token_bytes(SECRET_BYTES)
        self.failure: BaseException | None = None
        #: How many tasks have ever begun to push.
        self.begun = 0
        self._intake = Intake({})
        #: When each task that pushes now was last heard of; and when one has last ended well.
        self._heard: dict[TaskStream, float] = {}
        #: How many rows of it may wait, by what they are like.
        self._rows_max: dict[TaskStream, int] = {}
        self._ended = 0.0
        self._changed = threading.Condition()
        self._closed = False
        self._connections: set[socket.socket] = set()
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._door.bind(self.path)
        self._door.listen(1024)
        threading.Thread(target=self._admit, name=f"inlet-{name}", daemon=True).start()

    # --- the stage's side

    def begin_at(self, positions: Mapping[str, int]) -> None:
        """Before anything is taken."""
        with self._changed:
            self._intake.positions.update(positions)

    @property
    def waiting(self) -> int:
        """Rows that wait to be taken."""
        return self._intake.waiting

    def stands(self) -> dict[str, int]:
        """Positions after all that has come."""
        with self._changed:
            return self._intake.stands()

    def is_full(self) -> bool:
        """Does a task wait?"""
        with self._changed:
            return any(
                stream.waiting >= self._rows_max.get(stream, WAITING_ROWS_MAX) for stream in self._intake.streams
            )

    def pass_over(self, batch: int, stands: Mapping[str, int]) -> bool:
        """Where Spark says that a long batch has ended; false: not all of it was taken yet."""
        with self._changed:
            return self._intake.pass_over(batch, stands)

    @property
    def positions(self) -> dict[str, int]:
        """Of all that was taken."""
        with self._changed:
            return dict(self._intake.positions)

    def wait(self, limit_s: float) -> bool:
        """Until there may be rows."""
        with self._changed:
            self._changed.wait_for(lambda: self._intake.waiting or self.failure or self._closed, limit_s)
            if self.failure is not None:
                raise self.failure
            return self._intake.waiting > 0

    def take(self, rows_max: int) -> pa.Table | None:
        """Rows that may be handed over now; None: what waits may not be taken yet."""
        with self._changed:
            pieces = self._intake.take(rows_max)
            self._changed.notify_all()
        return pa.Table.from_batches([rows_of(piece) for piece in pieces]) if pieces else None

    def is_quiet(self) -> bool:
        """Every task is alive (or the next long batch is about to begin), and what has come was taken."""
        now = time.monotonic()
        with self._changed:
            alive = all(now - at < ALIVE_S_MAX for at in self._heard.values() or (self._ended,))
            return alive and not self._intake.waiting

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            left = list(self._connections)
        for connection in (self._door, *left):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        shutil.rmtree(self.directory, ignore_errors=True)
        self._lock.close()

    # --- the tasks' side

    def _admit(self) -> None:
        """In the order in which tasks begin: those of a long batch before those of the next one."""
        while not self._closed:
            try:
                connection, _ = self._door.accept()
            except OSError as error:
                if not self._closed:
                    self._fail(error)
                return
            file = connection.makefile("rb")
            try:
                connection.settimeout(HEAD_S_MAX)
                head = file.read(SECRET_BYTES + 16)
                connection.settimeout(None)
            except OSError:
                head = b""
            if len(head) < SECRET_BYTES + 16 or not hmac.compare_digest(head[:SECRET_BYTES], self.secret):
                file.close()
                connection.close()
                continue
            batch, task = (int.from_bytes(head[SECRET_BYTES + i : SECRET_BYTES + i + 8]) for i in (0, 8))
            try:
                with self._changed:
                    self._connections.add(connection)
                    stream = self._intake.begin(batch, task)
                    self._heard[stream] = time.monotonic()
                    self.begun += 1
            except BaseException as error:
                self._fail(error)
                return
            name = f"inlet-{batch}-{task}"
            threading.Thread(target=self._read, args=(connection, file, stream), name=name, daemon=True).start()

    def _read(self, connection: socket.socket, file: BinaryIO, stream: TaskStream) -> None:
        whole = False
        try:
            with contextlib.closing(file), contextlib.closing(connection):
                self._read_pieces(file, stream)
                whole = file.read(1) == _WHOLE
        except (OSError, pa.ArrowException, ValueError):
            pass  # its task has ended in the middle: what came before that is right
        except BaseException as error:
            self._fail(error)
        with self._changed:
            self._connections.discard(connection)
            self._heard.pop(stream, None)
            self._rows_max.pop(stream, None)
            self._intake.end(stream, whole=whole)
            self._ended = time.monotonic() if whole else self._ended
            self._changed.notify_all()

    def _read_pieces(self, file: Any, stream: TaskStream) -> None:
        for batch in pa.ipc.open_stream(file):
            with self._changed:
                self._heard[stream] = time.monotonic()
                if not batch.num_rows:
                    continue
                most = self._rows_max[stream] = _rows_max(batch)
                self._changed.wait_for(lambda most=most: stream.waiting < most or self._closed)
                self._intake.push(stream, piece_of(batch))
                self._changed.notify_all()

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self.failure = self.failure or error
            self._changed.notify_all()

"""Late and bad rows come as a file a batch. Here many small files become one, and late rows that are old are removed.

Beside the data path, on a thread of its own, and in memory for a few thousand rows. A process may be killed between any
two steps, and another driver may do the same at the same time:

    lock    one at a time, by the kernel; who comes second leaves it to the first
    merge   write beside, sync, rename to `batch=3-9.parquet`, remove what is in it
    expire  write down up to which batch (`_expired.json`), remove those files

What counts in between is said in `pipeline/recorded.py`. Files are merged by size, 16 or more of about the same at a
time, so that a row is written a few times and not once for each merge; and only with files of about the same age, so
that old rows do not stay because young ones are beside them.

Never touched: batches that may not have all their files yet, what is still in Spark's hands, and `late_to`, which may
be the source of a stream.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.errors import ConfigError, InputError, check
from holdfast.pipeline.recorded import EXPIRED, Expired, Recorded, expired, which_count
from holdfast.runtime.disk import lock

#: So many files of one size are merged.
FILES_MIN = 16
#: A file belongs with those up to the first size here that it fits. Larger ones stay as they are.
SIZES = (64 << 10, 1 << 20, 16 << 20)
#: A merged file gets no larger than this, or than its last part makes it.
MERGED_BYTES_MAX = 256 << 20
#: Old rows are removed by so many parts of the time that they are kept.
AGES = 8
#: Whether something is old is looked at every ten minutes at least.
LOOK_S = 600.0
#: In memory at a time.
BATCH_ROWS, BUFFER_BYTES = 4_096, 8 << 20
_MERGED, _LOCK = ".merged.tmp", ".lock"


class Keep(NamedTuple):
    """How long rows are kept, and how many bytes of them for one stage; the oldest go first."""

    seconds: float
    bytes: int


KEEP = Keep(30 * 86_400.0, 10 << 30)


class Tidier:
    """Tidies directories of one stage, each with what of it is kept (None: everything)."""

    def __init__(self, directories: dict[Path, Keep | None]) -> None:
        self._directories = directories
        self._thread: threading.Thread | None = None
        self._files = FILES_MIN
        self._looked = 0.0

    def look(self, batch: int, files: int) -> None:
        """All files of batches up to this one have their names; this many are new. Never waits."""
        self._files += files
        if self._files < FILES_MIN and time.monotonic() - self._looked < LOOK_S:
            return
        if self._thread is not None and self._thread.is_alive():
            return
        self._files, self._looked = 0, time.monotonic()
        self._thread = threading.Thread(target=self._work, args=(batch,), name="tidy", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def _work(self, batch: int) -> None:
        for directory, keep in self._directories.items():
            try:
                tidy(directory, batch, keep, time.time())
            except (ConfigError, InputError, OSError, pa.ArrowException) as error:  # into the log; it is tried again
                print(f"holdfast: {directory} was not tidied: {error}", file=sys.stderr, flush=True)


def tidy(directory: Path, batch: int, keep: Keep | None, now: float) -> None:
    """Whatever is due, for files of batches up to this one."""
    if not directory.is_dir():
        return
    held = lock.take(directory / _LOCK, "tidy", f"{directory} is being tidied", "It is tried again.")
    try:
        files = _clear(directory, batch)
        if keep is not None:
            files = _expire(directory, files, keep, now)
        while run := _due(files, keep):
            _merge(directory, run)
            files = _clear(directory, batch)
    finally:
        held.release()


def _clear(directory: Path, batch: int) -> list[Recorded]:
    """Remove what does not count any more; the rest, up to this batch."""
    (directory / _MERGED).unlink(missing_ok=True)
    counts, rest = which_count(directory, os.listdir(directory), expired(directory).batch)
    for path in rest:
        os.unlink(path)
    return [one for one in counts if one.last <= batch]


# --- old rows


def _expire(directory: Path, files: list[Recorded], keep: Keep, now: float) -> list[Recorded]:
    """The files that are left. Oldest batches first: what has expired is everything up to one of them."""
    left = sum(one.path.stat().st_size for one in files)
    number = 0
    for one in files:
        size = one.path.stat().st_size
        if (_age(one, keep) + 1) * keep.seconds / AGES + keep.seconds > now and left <= keep.bytes:
            break
        number, left = number + 1, left - size
    if number:
        rows = sum(pq.read_metadata(one.path).num_rows for one in files[:number])
        _write(directory, Expired(batch=files[number - 1].last, rows=expired(directory).rows + rows))
        for one in files[:number]:
            os.unlink(one.path)
    return files[number:]


def _age(one: Recorded, keep: Keep | None) -> int:
    """Files of one age were written within a part of the time that they are kept."""
    return int(one.path.stat().st_mtime * AGES / keep.seconds) if keep is not None else 0


def _write(directory: Path, told: Expired) -> None:
    beside = directory / f".{EXPIRED}.tmp"
    beside.write_bytes(msgspec.json.encode(told))
    _sync(beside)
    os.replace(beside, directory / EXPIRED)
    _sync(directory)


# --- many files into one


def _due(files: list[Recorded], keep: Keep | None) -> list[Recorded]:
    """Neighbours that should be one file; none: nothing is due."""
    for size in SIZES:
        for run in _runs(files, keep, size):
            if len(run) >= FILES_MIN:
                return run
    return []


def _runs(files: list[Recorded], keep: Keep | None, size: int) -> Iterator[list[Recorded]]:
    """Files that lie beside each other, none larger than this, of one age and one schema."""
    run: list[Recorded] = []
    kind: tuple[int, pa.Schema] | None = None
    total = 0
    for one in files:
        length = one.path.stat().st_size
        schema = _schema(one.path) if length <= size else None
        if run and (schema is None or kind != (_age(one, keep), schema) or total > MERGED_BYTES_MAX):
            yield run
            run, total = [], 0
        if schema is not None:
            kind, total = (_age(one, keep), schema), total + length
            run.append(one)
    yield run


def _schema(path: Path) -> pa.Schema | None:
    """Columns and types, whatever else is noted with them; None: it cannot be read, and stays as it is."""
    try:
        return pa.schema([field.with_nullable(True).remove_metadata() for field in pq.read_schema(path)])
    except pa.ArrowInvalid:
        return None


def _merge(directory: Path, run: list[Recorded]) -> None:
    schema = _schema(run[0].path)
    assert schema is not None
    merged, rows = directory / _MERGED, 0
    with pq.ParquetWriter(merged, schema) as out:
        for table in _pieces(run, schema):
            out.write_table(table)
            rows += table.num_rows
    check(rows == sum(pq.read_metadata(one.path).num_rows for one in run), "a merge has lost rows", str(directory))
    _sync(merged)
    youngest = max(one.path.stat().st_mtime for one in run)
    os.utime(merged, (youngest, youngest))
    os.replace(merged, directory / f"batch={run[0].first}-{run[-1].last}.parquet")
    _sync(directory)
    for one in run:
        os.unlink(one.path)


def _pieces(run: list[Recorded], schema: pa.Schema) -> Iterator[pa.Table]:
    """All rows of these files, in pieces of about one size."""
    held: list[pa.Table] = []
    for one in run:
        with pq.ParquetFile(one.path) as source:
            for batch in source.iter_batches(BATCH_ROWS):
                held.append(pa.Table.from_batches([batch]).cast(schema))
                if sum(table.nbytes for table in held) >= BUFFER_BYTES:
                    yield pa.concat_tables(held)
                    held = []
    if held:
        yield pa.concat_tables(held)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

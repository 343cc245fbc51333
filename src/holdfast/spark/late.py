"""Late rows of a stage, or bad ones, one file a batch: recorded exactly once, however often the batch runs.

A file is written under the name of its attempt before the batch is handed over, and gets its final name when the
batch counts. A driver that was fenced in between never renames; the next one finds the attempt that the ledger names
and does it instead. Attempts of a batch that does not count yet stay: where the ledgers are lost, an earlier one may
come to count (`runtime/stable/batches.py`). So `batch=7.parquet` is exactly what batch 7 left out, and `verify` may
subtract it. Later it is merged with others (`tidy.py`).
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.model.parts import CommitRecord
from holdfast.spark.leftovers import check_late


class LateRows:
    def __init__(self, directory: Path, epoch: int, kind: str = "late") -> None:
        self.directory = directory
        self.epoch = epoch
        self.kind = kind

    def write(self, batch: int, table: pa.Table) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        part = self._attempt(batch, self.epoch)
        pq.write_table(table, part)

    def settle(self, batch: int, epoch: int) -> None:
        """The batch counts, as that epoch of the stage handed it over."""
        attempt = self._attempt(batch, epoch)
        if attempt.exists():
            try:
                attempt.replace(self.directory / f"batch={batch}.parquet")
            except FileNotFoundError:
                return  # another life of the stage has just done it
        self._drop(batch)

    def recover(self, commit: CommitRecord | None) -> None:
        """At the start of a driver: finish the last batch, and drop what cannot count any more."""
        if commit is None:
            check_late(self.directory.name, self.directory, self.kind)
        else:
            self.settle(commit.batch, commit.epoch)
            self._drop(commit.batch)

    def _drop(self, last: int) -> None:
        """What earlier drivers have left of batches that count now."""
        for left in self.directory.glob(".batch=*.tmp"):
            batch, _, epoch = left.name.removeprefix(".batch=").removesuffix(".tmp").partition(".epoch=")
            if int(batch) <= last and int(epoch) < self.epoch:
                left.unlink(missing_ok=True)

    def _attempt(self, batch: int, epoch: int) -> Path:
        return self.directory / f".batch={batch}.epoch={epoch}.tmp"

"""What a stage sets aside of its batches: late rows and bad rows, recorded exactly once by one rule (`late.py`).

    late/STAGE, late_to/STAGE    rows that came after the watermark had passed them
    bad/STAGE                    rows that an operator cannot hold, each with its reason and the operator
    bad/STAGE.max                a limit that `holdfast bad --max` has set, in place of the pipeline's own

Bad rows are limited (`bad_rows_max`), since a source whose rows are all bad should not be read to its end in silence.
At the limit nothing of the batch is handed over, and the stage fails. The batch is tried again whenever the stage is
started again, under whatever limit there is then. `bad/STAGE/refused.parquet` shows what was too much.

Files of many batches are merged, and old late rows removed, in the background (`tidy.py`).
"""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.errors import ConfigError, InputError
from holdfast.model.parts import CommitRecord
from holdfast.model.plan import StagePlan
from holdfast.spark.bad import OPERATOR, REASON, example
from holdfast.spark.late import LateRows
from holdfast.spark.tidy import KEEP, Keep, Tidier

#: Directories of a run.
LATE, BAD = "late", "bad"


class TooManyBadRows(InputError):
    """More rows would have to be set aside than the stage may."""


def late_directories(directory: Path, stage: StagePlan) -> list[Path]:
    """Of this stage alone: batches of another have the same numbers."""
    return [directory / LATE / stage.id, *([Path(stage.late_to) / stage.id] if stage.late_to else [])]


def limit_file(directory: Path, stage: str) -> Path:
    return directory / BAD / f"{stage}.max"


def bad_rows_max(directory: Path, stage: StagePlan) -> int:
    """The limit that holds now."""
    file = limit_file(directory, stage.id)
    try:
        return int(file.read_text())
    except FileNotFoundError:
        return stage.bad_rows_max
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"stage {stage.id}: its limit of bad rows cannot be read",
            detail=f"{file}: {error}",
            hint=f"Set it again: holdfast bad --stage {stage.id} --max N.",
        ) from error


def set_bad_rows_max(directory: Path, stage: str, most: int) -> None:
    """Another limit, for a stage that runs or fails now: its next batch goes by it."""
    file = limit_file(directory, stage)
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(f".{os.getpid()}")
    new.write_text(f"{most}\n")
    os.replace(new, file)


class AsideFiles:
    """All that one life of a stage's driver sets aside."""

    def __init__(self, directory: Path, stage: StagePlan, epoch: int, keep: Keep = KEEP) -> None:
        self.directory = directory
        self.stage = stage
        self.epoch = epoch
        self.late = [LateRows(d, epoch) for d in late_directories(directory, stage)]
        self.bad = LateRows(directory / BAD / stage.id, epoch, BAD)
        #: Bad rows are limited in number, so none of them is ever old.
        self.tidier = Tidier({directory / LATE / stage.id: keep, self.bad.directory: None})

    def recover(self, last: CommitRecord | None) -> None:
        """At the start of a driver: finish the last batch, and drop what cannot count any more."""
        for files in (*self.late, self.bad):
            files.recover(last)

    def room(self, last: CommitRecord | None) -> int:
        """How many more rows may be set aside as bad."""
        return max(0, bad_rows_max(self.directory, self.stage) - (last.bad_total if last else 0))

    def write(self, batch: int, late: pa.Table | None, bad: pa.Table | None, last: CommitRecord | None) -> None:
        """Before the batch is handed over. An error if there are too many bad rows: then it must not be."""
        if bad is not None:
            self._check(batch, bad, last)
            self.bad.write(batch, bad)
            self._refused.unlink(missing_ok=True)
        if late is not None:
            for files in self.late:
                files.write(batch, late)

    def settle(self, batch: int, *, late: bool, bad: bool) -> None:
        """The batch counts, as this driver handed it over, with rows of these kinds."""
        for files in (*(self.late if late else ()), *((self.bad,) if bad else ())):
            files.settle(batch, self.epoch)
        self.tidier.look(batch, late + bad)

    @property
    def _refused(self) -> Path:
        return self.bad.directory / "refused.parquet"

    def _check(self, batch: int, bad: pa.Table, last: CommitRecord | None) -> None:
        if bad.num_rows <= self.room(last):
            return
        self._refused.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(bad, self._refused)
        before, most = last.bad_total if last else 0, bad_rows_max(self.directory, self.stage)
        raise TooManyBadRows(
            f"stage {self.stage.id}: more rows are bad than bad_rows_max={most} allows",
            detail=f"{before:,} before, and at least {bad.num_rows:,} in batch {batch}. "
            f"For {bad.column(OPERATOR)[0]}, {bad.column(REASON)[0]}: {example(bad)}. They are in {self._refused}.",
            hint="Nothing of this batch was handed over. Mend the rows at their source or leave them out in a filter, "
            f"or let more be set aside: `holdfast bad --stage {self.stage.id} --max N`. The batch is tried again.",
        )

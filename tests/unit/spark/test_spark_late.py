"""Late rows are recorded exactly once, whichever life of the stage handed the batch over."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.errors import ConfigError
from holdfast.model.parts import CommitRecord
from holdfast.spark.late import LateRows

ROWS = pa.table({"x": [1, 2]})


def commit(batch: int, epoch: int) -> CommitRecord:
    return CommitRecord(query="q", batch=batch, epoch=epoch, attempt=1, watermark=0, offsets=(0, 1))


@pytest.fixture
def late(tmp_path):
    return lambda epoch: LateRows(tmp_path / "late" / "s", epoch)


def files(late) -> list[str]:
    return sorted(p.name for p in late(0).directory.glob("*") if not p.name.startswith("."))


def test_a_batch_that_counts_leaves_its_late_rows(late):
    one = late(1)
    one.write(7, ROWS)
    assert files(late) == []
    one.settle(7, 1)
    assert pq.read_table(one.directory / "batch=7.parquet").equals(ROWS)


def test_an_attempt_that_never_counted_goes_when_another_one_of_its_batch_does(late):
    late(1).write(7, ROWS)
    late(2).recover(commit(6, 1))
    assert files(late) == []
    late(2).write(7, ROWS)
    late(2).settle(7, 2)
    assert [path.name for path in late(0).directory.iterdir()] == ["batch=7.parquet"]


def test_an_attempt_that_counts_after_all_because_the_ledgers_were_lost_still_has_its_rows(late):
    """The second driver knew that it did not count. Then all disks were lost, and the log says that it does."""
    late(1).write(7, ROWS)
    late(2).recover(commit(6, 1))
    late(20).recover(commit(7, 1))
    assert [path.name for path in late(0).directory.iterdir()] == ["batch=7.parquet"]


def test_the_next_driver_finishes_what_the_last_one_committed(late):
    late(1).write(7, ROWS)
    late(2).recover(commit(7, 1))
    assert files(late) == ["batch=7.parquet"]
    late(1).settle(7, 1)  # the old one wakes up and does it, too
    assert files(late) == ["batch=7.parquet"]


def test_an_overtaken_driver_cannot_record_anything(late):
    late(1).write(7, ROWS)
    new = late(2)
    new.recover(commit(6, 1))
    new.write(7, ROWS.slice(0, 1))
    late(1).write(7, ROWS)
    new.settle(7, 2)
    assert pq.read_table(new.directory / "batch=7.parquet").num_rows == 1


def test_a_stage_without_late_rows_makes_no_directory(late):
    late(1).recover(None)
    assert not late(1).directory.exists()


def test_a_stage_that_has_handed_nothing_over_refuses_late_rows_that_are_there(late):
    earlier = late(1)
    earlier.write(0, ROWS)
    earlier.settle(0, 1)
    with pytest.raises(ConfigError, match=r"stage s: .* holds late rows of an earlier run"):
        late(1).recover(None)
    late(2).recover(commit(5, 1))  # one that has goes on

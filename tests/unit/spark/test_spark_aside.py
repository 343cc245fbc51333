"""What a stage sets aside: late rows and bad rows by one rule, and a limit for bad ones that can be raised."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.collected import collector, operator, with_times

from holdfast.errors import ConfigError
from holdfast.model.parts import CommitRecord
from holdfast.model.plan import BAD_ROWS_MAX, FOREVER_US, NEVER_US, StagePlan
from holdfast.spark.ahead import JUMP_US, SLACK_US, WatermarkWatch
from holdfast.spark.aside import AsideFiles, TooManyBadRows, bad_rows_max, limit_file, set_bad_rows_max

ROWS = pa.table({"x": [1, 2]})
STAGE = StagePlan(id="s", kind="source", bad_rows_max=3)


def commit(batch: int, epoch: int, bad: int = 0) -> CommitRecord:
    return CommitRecord(query="q", batch=batch, epoch=epoch, attempt=1, watermark=0, offsets=(0, 1), bad_total=bad)


def bad_rows(count: int) -> pa.Table:
    table = with_times(*[FOREVER_US] * count, n=20)
    made = collector(operator()).split(table, NEVER_US, lambda: table)
    assert made.bad is not None
    return made.bad


@pytest.fixture
def aside(tmp_path):
    return lambda epoch, stage=STAGE: AsideFiles(tmp_path, stage, epoch)


def files(tmp_path) -> list[str]:
    return sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file())


def test_late_and_bad_rows_of_a_batch_get_their_names_when_it_counts(aside, tmp_path):
    one = aside(1)
    one.write(7, ROWS, bad_rows(2), None)
    assert files(tmp_path) == ["bad/s/.batch=7.epoch=1.tmp", "late/s/.batch=7.epoch=1.tmp"]
    one.settle(7, late=True, bad=True)
    one.tidier.wait()
    assert files(tmp_path) == ["bad/s/batch=7.parquet", "late/s/batch=7.parquet"]
    assert pq.read_table(tmp_path / "bad/s/batch=7.parquet").num_rows == 2


@pytest.mark.parametrize("last", [commit(7, 1), commit(7, 2), commit(8, 2)], ids=["committed", "by another", "later"])
def test_a_driver_that_died_between_writing_and_commit_leaves_what_counts(aside, tmp_path, last):
    aside(1).write(7, ROWS, bad_rows(2), None)
    aside(3).recover(last)
    assert len(files(tmp_path)) == (2 if last == commit(7, 1) else 0)
    assert not [name for name in files(tmp_path) if name.endswith(".tmp")]


def test_beyond_the_limit_nothing_is_set_aside_and_the_error_says_all(aside, tmp_path):
    with pytest.raises(TooManyBadRows) as caught:
        aside(1).write(7, ROWS, bad_rows(2), commit(6, 1, bad=2))
    error = caught.value
    assert error.what == "stage s: more rows are bad than bad_rows_max=3 allows"
    assert "2 before, and at least 2 in batch 7. For w, the event time is not in the years 1 to 9999" in error.detail
    assert "ts=9223372036854775807 us" in error.detail
    assert "holdfast bad --stage s --max N" in error.hint
    assert files(tmp_path) == ["bad/s/refused.parquet"]  # and its path is in the error
    assert str(tmp_path / "bad/s/refused.parquet") in error.detail
    aside(1).recover(None)  # no rows of another run


def test_a_stage_that_has_handed_nothing_over_refuses_bad_rows_that_are_there(aside):
    aside(1).write(0, None, bad_rows(1), None)
    aside(1).settle(0, late=False, bad=True)
    with pytest.raises(ConfigError, match=r"holds bad rows of an earlier run"):
        aside(1).recover(None)


def test_a_raised_limit_lets_the_batch_through(aside, tmp_path):
    set_bad_rows_max(tmp_path, "s", 4)
    one = aside(2)
    assert one.room(commit(6, 1, bad=2)) == 2
    one.write(7, None, bad_rows(2), commit(6, 1, bad=2))
    one.settle(7, late=False, bad=True)
    one.tidier.wait()
    assert files(tmp_path) == ["bad/s.max", "bad/s/batch=7.parquet"]
    assert one.room(commit(7, 1, bad=9)) == 0


def test_a_limit_that_cannot_be_read_is_named(tmp_path):
    assert bad_rows_max(tmp_path, STAGE) == 3
    assert StagePlan(id="s", kind="between").bad_rows_max == BAD_ROWS_MAX
    set_bad_rows_max(tmp_path, "s", 4)
    limit_file(tmp_path, "s").write_text("many")
    with pytest.raises(ConfigError, match="its limit of bad rows cannot be read"):
        bad_rows_max(tmp_path, STAGE)


# -- a watermark that runs away


@pytest.fixture
def watch():
    told: list[dict] = []
    made = WatermarkWatch("s", JUMP_US, lambda event, **fields: told.append({"event": event, **fields}))

    def look(before: int, after: int, now: int) -> list[str]:
        told.clear()
        made.look(before, after, now)
        return [f"{t['what']}. {t['detail']}" for t in told]

    return look


def test_a_watermark_that_jumps_is_told_with_its_date(watch):
    now = 1_700_000_000_000_000
    assert watch(NEVER_US, now - 9 * JUMP_US, now) == []  # the first one
    assert watch(now - 9 * JUMP_US, now - 8 * JUMP_US, now) == []
    assert watch(now - 8 * JUMP_US, now - 6 * JUMP_US, now) == [
        "The watermark of s jumped ahead by 2 days. Rows before 2023-11-08T22:13:20.000Z are late from now on."
    ]
    assert watch(now - JUMP_US, FOREVER_US, now) == []  # finished


def test_a_watermark_ahead_of_the_clock_is_told_once(watch):
    now = 1_700_000_000_000_000
    far = now + 3_000 * 31_556_952_000_000
    assert watch(now, now + SLACK_US, now) == []
    (told,) = watch(NEVER_US, far, now)
    assert told.startswith("The watermark of s is 3,000 years ahead of the clock. Rows before 5023-11-")
    assert watch(far, far + 1, now) == []
    assert watch(far, far + 1, far) == []  # the clock has come so far
    assert watch(far, far + JUMP_US, far) != []

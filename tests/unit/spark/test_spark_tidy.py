"""Files of late rows are merged and expire in the background: every row once, wherever it is cut short."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.nodes import PATHS

from holdfast.errors import ConfigError, InputError
from holdfast.model.ids import asset_id
from holdfast.model.parts import CommitRecord
from holdfast.model.plan import StagePlan
from holdfast.pipeline.recorded import EXPIRED, Expired, expired, recorded
from holdfast.runtime.disk import lock
from holdfast.spark import tidy as module
from holdfast.spark.aside import AsideFiles
from holdfast.spark.late import LateRows
from holdfast.spark.tidy import FILES_MIN, KEEP, Keep, tidy

NOW = 1_800_000_000.0
DAY = 86_400.0


def rows(*numbers: int) -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.int64()), "text": [f"row {n}" for n in numbers]})


def fill(directory: Path, batches: range, at: float = NOW) -> None:
    """Three rows a batch."""
    directory.mkdir(exist_ok=True)
    for batch in batches:
        file = directory / f"batch={batch}.parquet"
        pq.write_table(rows(*range(3 * batch, 3 * batch + 3)), file)
        os.utime(file, (at, at))


def found(directory: Path) -> Counter:
    return Counter(n for one in recorded(directory) for n in pq.read_table(one.path)["n"].to_pylist())


def names(directory: Path) -> list[str]:
    return sorted(p.name for p in directory.iterdir())


def each_once(batches: range) -> Counter:
    return Counter(range(3 * batches.start, 3 * batches.stop))


def test_many_small_files_become_one_and_every_reader_finds_all_rows(tmp_path):
    fill(tmp_path, range(2, 40))
    tidy(tmp_path, 39, KEEP, NOW)
    assert names(tmp_path) == ["batch=2-39.parquet"]
    assert found(tmp_path) == each_once(range(2, 40))
    assert Counter(pq.read_table(tmp_path)["n"].to_pylist()) == each_once(range(2, 40))  # who knows of no rule
    assert (tmp_path / "batch=2-39.parquet").stat().st_mtime == NOW


def test_few_files_and_batches_that_may_not_be_complete_stay(tmp_path):
    fill(tmp_path, range(FILES_MIN - 1))
    tidy(tmp_path, 100, KEEP, NOW)
    assert len(names(tmp_path)) == FILES_MIN - 1
    fill(tmp_path, range(40))
    tidy(tmp_path, 30, KEEP, NOW)
    assert names(tmp_path)[:2] == ["batch=0-30.parquet", "batch=31.parquet"]


def test_files_stay_few_over_a_thousand_batches(tmp_path):
    directory, most = tmp_path / "late" / "s", 0
    aside = AsideFiles(tmp_path, StagePlan(id=asset_id("s"), kind="source"), 1)
    for batch in range(1_000):
        aside.write(batch, rows(*range(3 * batch, 3 * batch + 3)), None, None)
        aside.settle(batch, late=True, bad=False)
        aside.tidier.wait()
        most = max(most, len(names(directory)))
    assert most <= 2 * FILES_MIN + 2
    assert found(directory) == each_once(range(1_000))


def test_a_row_is_not_written_again_in_every_merge(tmp_path, monkeypatch):
    """Large files are merged with large ones."""
    monkeypatch.setattr(module, "SIZES", (2_000, 8_000, 32_000))
    fill(tmp_path, range(600))
    written = 0
    monkeypatch.setattr(module, "_merge", count_bytes(module._merge, lambda size: sizes.append(size)))
    sizes: list[int] = []
    for batch in range(0, 600, FILES_MIN):
        tidy(tmp_path, batch, KEEP, NOW)
    written = sum(sizes)
    assert found(tmp_path) == each_once(range(600))
    assert written < 8 * sum(one.path.stat().st_size for one in recorded(tmp_path)) + 600 * 2_000


def count_bytes(merge, note):
    def counted(directory, run):
        note(sum(one.path.stat().st_size for one in run))
        merge(directory, run)

    return counted


def test_files_of_another_schema_or_that_cannot_be_read_stay_apart(tmp_path):
    fill(tmp_path, range(60))
    (tmp_path / "batch=20.parquet").write_bytes(b"noise")
    pq.write_table(pa.table({"n": ["text"]}), tmp_path / "batch=40.parquet")
    tidy(tmp_path, 59, None, NOW)
    assert names(tmp_path) == [
        "batch=0-19.parquet", "batch=20.parquet", "batch=21-39.parquet", "batch=40.parquet", "batch=41-59.parquet",
    ]  # fmt: skip


# --- cut short


class Killed(BaseException):
    pass


STEPS = ("replace", "unlink", "fsync", "utime", "open")


@pytest.fixture
def killed_at(monkeypatch):
    """Raise at the n-th step of a disk, before it is done; nothing of the process runs after that."""

    def arm(number: int) -> None:
        left = [number]

        def dies(call):
            def step(*args, **options):
                left[0] -= 1
                if left[0] == 0:
                    raise Killed
                return call(*args, **options)

            return step

        class Os:
            listdir, O_RDONLY, close = os.listdir, os.O_RDONLY, os.close

        for name in STEPS:
            setattr(Os, name, staticmethod(dies(getattr(os, name))))
        monkeypatch.setattr(module, "os", Os)

    yield arm
    monkeypatch.undo()


def is_killed(directory: Path, keep: Keep, now: float = NOW) -> bool:
    try:
        tidy(directory, 99, keep, now)
    except Killed:
        return True
    return False


def test_killed_before_any_step_of_a_merge_every_row_is_there_once(tmp_path, killed_at):
    died = 0
    for step in range(1, 200):
        directory = tmp_path / str(step)
        fill(directory, range(40))
        killed_at(step)
        if not is_killed(directory, KEEP):
            break
        died += 1
        assert found(directory) == each_once(range(40)), step
        killed_at(0)
        fill(directory, range(40, 44))
        tidy(directory, 99, KEEP, NOW)
        assert found(directory) == each_once(range(44)), step
        assert not [name for name in names(directory) if name.endswith(".tmp")]
    assert died >= 40 + 4


def test_killed_before_any_step_of_an_expiry_rows_are_there_or_counted_as_expired(tmp_path, killed_at):
    keep, died = Keep(30 * DAY, 1 << 30), 0
    for step in range(1, 200):
        directory = tmp_path / str(step)
        fill(directory, range(10), NOW - 40 * DAY)
        fill(directory, range(10, 14))
        killed_at(step)
        if not is_killed(directory, keep):
            break
        died += 1
        assert len(found(directory)) + expired(directory).rows == 3 * 14, step
        killed_at(0)
        tidy(directory, 99, keep, NOW)
        assert found(directory) == each_once(range(10, 14)), step
        assert expired(directory) == Expired(batch=9, rows=30), step
    assert died >= 10 + 3


PROGRAM = """
import sys, time
from pathlib import Path
from holdfast.spark.tidy import KEEP, tidy
print("up", flush=True)
while True:
    try:
        tidy(Path(sys.argv[1]), int(sys.argv[2]), KEEP, time.time())
    except Exception as error:
        if "being tidied" not in str(error): raise
"""


def test_two_drivers_at_once_that_are_killed_at_any_moment_lose_and_double_nothing(tmp_path):
    """While new files come."""
    directory, env = tmp_path / "late", {**os.environ, "PYTHONPATH": PATHS}
    begun = 0
    for turn in range(6):
        fill(directory, range(begun, begun + 200), time.time())
        begun += 200
        command = [sys.executable, "-c", PROGRAM, str(directory), str(begun - 1)]
        two = [subprocess.Popen(command, stdout=subprocess.PIPE, env=env) for _ in range(2)]
        for one in two:
            assert one.stdout is not None
            one.stdout.readline()
        time.sleep(0.01 + 0.02 * turn)
        for one in two:
            one.send_signal(signal.SIGKILL)
            one.communicate()
        assert found(directory) == each_once(range(begun)), turn
    tidy(directory, begun, KEEP, time.time())
    assert len(names(directory)) < 2 * FILES_MIN
    assert found(directory) == each_once(range(begun))


def test_who_comes_second_leaves_it_to_the_first(tmp_path):
    fill(tmp_path, range(40))
    held = lock.take(tmp_path / ".lock", "another", "", "")
    with pytest.raises(ConfigError, match="is being tidied"):
        tidy(tmp_path, 39, KEEP, NOW)
    held.release()
    assert found(tmp_path) == each_once(range(40))


def test_the_next_driver_takes_over_between_a_commit_and_a_merge(tmp_path):
    directory = tmp_path / "s"
    fill(directory, range(40))
    LateRows(directory, 1).write(40, rows(120, 121, 122))
    after = LateRows(directory, 2)
    tidy(directory, 39, KEEP, NOW)  # the old driver's thread: it knows of batches up to its last
    after.recover(CommitRecord(query="q", batch=40, epoch=1, attempt=1, watermark=0, offsets=(0, 1)))
    tidy(directory, 40, KEEP, NOW)
    assert found(directory) == each_once(range(41))


# --- old rows


def test_late_rows_expire_by_age_and_what_is_gone_is_written_down(tmp_path):
    keep = Keep(30 * DAY, 1 << 30)
    fill(tmp_path, range(20), NOW - 35 * DAY)
    fill(tmp_path, range(20, 30), NOW - 29 * DAY)
    tidy(tmp_path, 99, keep, NOW)
    assert expired(tmp_path) == Expired(batch=19, rows=60)
    assert found(tmp_path) == each_once(range(20, 30))
    tidy(tmp_path, 99, keep, NOW + 7 * DAY)
    assert expired(tmp_path) == Expired(batch=29, rows=90)
    assert names(tmp_path) == [EXPIRED]


def test_old_rows_are_not_kept_by_young_ones_that_come_all_the_time(tmp_path):
    keep = Keep(30 * DAY, 1 << 30)
    for day in range(100):
        fill(tmp_path, range(20 * day, 20 * day + 20), NOW + day * DAY)
        tidy(tmp_path, 20 * day + 19, keep, NOW + day * DAY)
    first = min(found(tmp_path)) // 60
    assert 60 <= first <= 100 - 30
    assert len(names(tmp_path)) < 10 * 2 * FILES_MIN


def test_late_rows_expire_by_size_oldest_first(tmp_path):
    fill(tmp_path, range(10))
    size = sum((tmp_path / f"batch={batch}.parquet").stat().st_size for batch in range(5, 10))
    tidy(tmp_path, 99, Keep(30 * DAY, size), NOW)
    assert found(tmp_path) == each_once(range(5, 10))
    assert expired(tmp_path) == Expired(batch=4, rows=15)


def test_bad_rows_are_merged_and_never_expire(tmp_path):
    fill(tmp_path, range(40), 0.0)
    tidy(tmp_path, 99, None, NOW)
    assert names(tmp_path) == ["batch=0-39.parquet"]


# --- what counts


def test_a_new_run_is_refused_where_only_the_note_of_expired_rows_is_left(tmp_path):
    (tmp_path / EXPIRED).write_text('{"batch": 3, "rows": 4}')
    with pytest.raises(ConfigError, match="holds late rows of an earlier run"):
        LateRows(tmp_path, 1).recover(None)


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"batch": "x"}'])
def test_a_damaged_note_of_expired_rows_is_named(tmp_path, text):
    fill(tmp_path, range(3))
    (tmp_path / EXPIRED).write_text(text)
    with pytest.raises(InputError, match=r"_expired\.json cannot be read"):
        recorded(tmp_path)


def test_files_that_no_merge_could_have_left_are_named(tmp_path):
    fill(tmp_path, range(3))
    (tmp_path / "batch=2-7.parquet").write_bytes(b"")
    (tmp_path / "batch=5-9.parquet").write_bytes(b"")
    with pytest.raises(InputError, match="two files hold the same batches"):
        recorded(tmp_path)

"""Files that stages and shards go by, damaged: Spark's checkpoint, spill, the pipeline's file, locks, limits.

What the ledger knows is made again; what nobody else knows is an error that names the file. Never a wrong row.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.core.ready import Done, Spill
from holdfast.errors import ConfigError, DamagedLogError, InputError
from holdfast.model.block import Block, shard_block
from holdfast.model.ids import shard_edge, shard_id
from holdfast.model.parts import CommitRecord
from holdfast.pipeline.replay import Progress
from holdfast.runtime.disk import lock
from holdfast.runtime.disk.edge_logs import EdgeLogs
from holdfast.runtime.net.rows import ArrowRows
from holdfast.spark import checkpoint

Hurt = Callable[[Path], Any]

#: What can happen to a file.
DAMAGE: dict[str, Hurt] = {
    "removed": lambda p: p.unlink(),
    "emptied": lambda p: p.write_bytes(b""),
    "cut in its version": lambda p: p.write_bytes(p.read_bytes()[:1]),
    "cut in the middle": lambda p: p.write_bytes(p.read_bytes()[: p.stat().st_size // 2]),
    "cut at its end": lambda p: p.write_bytes(p.read_bytes()[:-1]),
    "noise": lambda p: p.write_bytes(bytes(range(255, 0, -1))),
    "zeros": lambda p: p.write_bytes(bytes(p.stat().st_size)),
    "a directory": lambda p: (p.unlink(), p.mkdir()),
}
OFFSETS = 'v1\n{"batchWatermarkMs":0,"conf":{}}\n{"logOffset":%d}'
ENTRY = 'v1\n{"path":"file:///in/%d.json","timestamp":1,"batchId":%d}'
COMMITTED = 'v1\n{"nextBatchWatermarkMs":0}'
LAST = 3
EDGE = shard_edge(shard_id("u", 0))


@pytest.fixture
def spark(tmp_path: Path) -> Path:
    """A checkpoint of batches 0 to 3, with 4 planned."""
    home = tmp_path / "ck"
    checkpoint.claim(home, "s", "q")
    for log in ("offsets", "commits", "sources/0"):
        (home / log).mkdir(parents=True)
    for k in range(LAST + 2):
        (home / "offsets" / str(k)).write_text(OFFSETS % k)
        (home / "sources" / "0" / str(k)).write_text(ENTRY % (k, k))
        if k <= LAST:
            (home / "commits" / str(k)).write_text(COMMITTED)
    return home


def agree(home: Path) -> None:
    record = CommitRecord(
        query="q", batch=7, epoch=1, attempt=1, watermark=0, offsets=(LAST, LAST + 1), plan=OFFSETS % LAST
    )
    checkpoint.agree(home, "s", "q", record)


def is_sound(home: Path) -> bool:
    """What Spark looks at when it starts: the last two plans, and the last commit."""
    planned = max(int(p.name) for p in (home / "offsets").iterdir())
    assert (home / "offsets" / str(LAST)).read_text() == OFFSETS % LAST
    assert planned in (LAST, LAST + 1)
    for k in (planned - 1, planned):
        assert len(checkpoint.source_offsets(checkpoint.plan_of(home, k))) == 1
    return (home / "commits" / str(LAST)).read_text() == COMMITTED


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize(
    "name", [f"offsets/{LAST - 1}", f"offsets/{LAST}", f"offsets/{LAST + 1}", f"commits/{LAST - 1}", f"commits/{LAST}"]
)
def test_plans_and_commits_of_sparks_are_made_again_as_the_ledger_has_them(name, how, spark):
    DAMAGE[how](spark / name)
    if how == "a directory" and name != f"commits/{LAST - 1}":  # which nobody looks at
        with pytest.raises(ConfigError, match="stage s: its Spark checkpoint cannot be written") as error:
            agree(spark)
        assert name in error.value.detail
        return
    agree(spark)
    assert is_sound(spark)


@pytest.mark.parametrize("log", ["offsets", "commits"])
def test_a_whole_log_of_sparks_that_is_gone_is_made_again(log, spark):
    for file in (spark / log).iterdir():
        file.unlink()
    (spark / log).rmdir()
    agree(spark)
    assert is_sound(spark)


@pytest.mark.parametrize("how", DAMAGE)
def test_a_checkpoint_that_does_not_say_whose_it_is_is_refused(how, spark):
    DAMAGE[how](spark / "metadata")
    with pytest.raises(ConfigError, match="stage s: its Spark checkpoint") as error:
        agree(spark)
    assert "metadata" in error.value.detail
    assert "backup" in error.value.hint


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("entry", [LAST - 1, LAST, LAST + 1])
def test_a_damaged_list_of_files_is_refused_since_nobody_else_has_it(entry, how, spark):
    DAMAGE[how](spark / "sources" / "0" / str(entry))
    if how == "removed" and entry > LAST:
        agree(spark)  # of a batch that does not count: Spark lists its files again
        return
    with pytest.raises(ConfigError, match=r"stage s: the list of files it has read is (damaged|gone)") as error:
        agree(spark)
    assert "sources/0" in error.value.detail


@pytest.mark.parametrize("how", ["emptied", "cut in its version", "cut in the middle", "noise", "zeros"])
@pytest.mark.parametrize("name", [f"offsets/{LAST}", f"sources/0/{LAST}"])
def test_verify_names_the_file_of_the_checkpoint_that_it_cannot_read(name, how, spark):
    DAMAGE[how](spark / name)
    with pytest.raises(InputError) as error:
        Progress(spark, LAST).files(0)
    assert name in error.value.detail
    assert error.value.hint


# --- spill


def blocks(count: int) -> list[Block]:
    made: list[Block] = []
    for i in range(count):
        rows = ArrowRows([pa.record_batch({"a": pa.array(range(i, i + 500), pa.int64())})])
        made.append(shard_block(made[-1].end if made else 0, rows, i))
    return made


@pytest.mark.parametrize(
    ("how", "hurt"),
    [
        ("emptied", lambda p: os.truncate(p, 0)),
        ("cut", lambda p: os.truncate(p, p.stat().st_size - 1)),
        ("zeros", lambda p: p.write_bytes(bytes(p.stat().st_size))),
        ("noise", lambda p: p.write_bytes(b"\xff" * p.stat().st_size)),
    ],
)
def test_a_damaged_spill_file_is_found_out_and_no_row_of_it_goes_anywhere(how, hurt, tmp_path):
    said: list[Done] = []
    damaged: list[DamagedLogError] = []
    store = EdgeLogs(tmp_path / "spill", said.append, damaged.append)
    store.want(Spill(ticket=1, edge=EDGE, blocks=tuple(blocks(3))))
    store.work()
    (file,) = (tmp_path / "spill").rglob("*.log")
    hurt(file)
    for look in (lambda: said[0].kept[2].table(), lambda: said[0].kept[2].to_ipc()):
        with pytest.raises(DamagedLogError, match="does not hold what was written"):
            look()
    assert len(damaged) == 2
    assert str(file) in damaged[0].detail


def test_every_byte_of_a_spill_file_counts(tmp_path):
    said: list[Done] = []
    store = EdgeLogs(tmp_path / "spill", said.append, lambda _: None)
    store.want(Spill(ticket=1, edge=EDGE, blocks=tuple(blocks(1))))
    store.work()
    (file,) = (tmp_path / "spill").rglob("*.log")
    raw = file.read_bytes()
    before = said[0].kept[0].table()
    head = raw.index(b"\xf7HF\n")  # before it the segment says what it is, which `log verify` reads
    for at in range(head, len(raw), 97):
        with file.open("r+b") as out:
            out.seek(at)
            out.write(bytes([raw[at] ^ 0x10]))
        with pytest.raises(DamagedLogError):
            said[0].kept[0].table()
        file.write_bytes(raw)
    assert said[0].kept[0].table() == before
    file.unlink()
    assert said[0].kept[0].table() == before  # it is kept open


# --- locks and limits


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff\xfe\0", b"[1]", b'{"pid": "x"}'], ids=repr)
def test_what_stands_in_a_lock_that_nobody_holds_does_no_harm(raw, tmp_path):
    path = tmp_path / "lock"
    path.write_bytes(raw)
    assert lock.held_by(path) == ""
    held = lock.take(path, "a run", "held", "wait")
    path.write_bytes(raw)  # while it is held
    assert "Another process holds it" in lock.held_by(path)
    held.release()

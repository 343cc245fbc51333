"""Output logs on a real disk: several writes at once, group by group, and readers beside a writer."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.core.ready import Done, DropSpill, Spill
from holdfast.errors import ConfigError, DamagedLogError
from holdfast.logs import edge_log
from holdfast.model.block import Block, Gap, shard_block
from holdfast.model.ids import Edge
from holdfast.runtime.disk import edge_logs
from holdfast.runtime.disk.edge_logs import EdgeLogs
from holdfast.runtime.disk.log_reader import LogReader
from holdfast.runtime.net.rows import ArrowRows

EDGE = Edge("u0.0")


def made(count: int, start: int = 0, rows: int = 20) -> tuple[Block, ...]:
    found: list[Block] = []
    for i in range(count):
        at = found[-1].end if found else start
        batch = pa.record_batch({"a": pa.array(range(at, at + rows), pa.int64())})
        found.append(shard_block(at, ArrowRows([batch]), i, 10 * i))
    return tuple(found)


class Writer:
    """The logs of a node, worked on by whoever calls."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.said: list[Done] = []
        self.damaged: list[DamagedLogError] = []
        self.logs = EdgeLogs(path, self.said.append, self.damaged.append)

    def write(self, blocks: tuple[Block, ...], edge: Edge = EDGE) -> Done:
        self.logs.want(Spill(ticket=len(self.said) + 1, edge=edge, blocks=blocks))
        self.logs.work()
        return self.said[-1]

    def drop(self, to: int) -> None:
        self.logs.want(DropSpill(edge=EDGE, to=to))
        self.logs.work()

    def reader(self, edge: Edge = EDGE) -> LogReader:
        return LogReader(self.path / edge)


def same(found: list[Block], blocks: tuple[Block, ...]) -> None:
    assert [(b.start, b.end, b.watermark, b.highest, b.gap) for b in found] == [
        (b.start, b.end, b.watermark, b.highest, b.gap) for b in blocks
    ]
    for one, other in zip(found, blocks, strict=True):
        assert (one.rows.table() if one.rows else ()) == (other.rows.table() if other.rows else ())


def test_a_reader_finds_the_blocks_that_were_written_from_any_position_and_event_time(tmp_path: Path):
    writer = Writer(tmp_path)
    blocks = made(5)
    empty = shard_block(blocks[-1].end, (), 9, 90, Gap(to=40))
    writer.write(blocks[:2])
    writer.write((*blocks[2:], empty))
    reader = writer.reader()
    same(list(reader.blocks()), (*blocks, empty))
    same(list(reader.blocks(position=blocks[3].start)), (*blocks[3:], empty))
    same(list(reader.blocks(position=blocks[3].start + 1)), (*blocks[3:], empty))
    same(list(reader.blocks(time=21)), (*blocks[3:], empty))
    assert list(reader.blocks(position=empty.end)) == []


def test_a_reader_follows_a_log_that_grows_over_the_borders_of_segments_and_past_what_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(edge_log, "SEGMENT_BYTES", 1_500)
    writer = Writer(tmp_path)
    blocks = made(12)
    writer.write(blocks[:3])
    reader = writer.reader()
    seen = list(reader.blocks())
    for block in blocks[3:8]:
        writer.write((block,))
        reader.look()
        seen += list(reader.blocks(position=seen[-1].end))
    same(seen, blocks[:8])
    assert len(list((tmp_path / EDGE).glob("*.log"))) > 2
    writer.drop(blocks[7].start)
    writer.write(blocks[8:])
    reader.look()
    same(list(reader.blocks(position=seen[-1].end)), blocks[8:])
    assert reader.entries()[0][1].start > 0
    assert reader.log.damage == ""


def test_rows_that_were_given_up_and_written_again_stand_once_and_the_first_ones_can_still_be_read(tmp_path: Path):
    writer = Writer(tmp_path)
    blocks = made(4)
    first = writer.write(blocks[:3])
    again = writer.write(blocks[1:])
    same(list(writer.reader().blocks()), blocks)
    assert [rows.table() for rows in first.kept] == [b.rows.table() for b in blocks[:3]]
    assert [rows.table() for rows in again.kept] == [b.rows.table() for b in blocks[1:]]
    writer.drop(blocks[3].end)
    assert (writer.logs.bytes, list(tmp_path.rglob("*.log"))) == (0, [])


def test_a_failed_write_that_cannot_be_cut_off_is_followed_by_a_segment_that_says_where_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    writer = Writer(tmp_path)
    blocks = made(4)
    writer.write(blocks[:2])
    sync = os.fdatasync

    def failing(handle: int) -> None:
        raise OSError(5, "the disk is gone")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", failing)
        broken.setattr(os, "ftruncate", lambda handle, size: failing(handle))
        assert not writer.write(blocks[2:3]).ok
    assert os.fdatasync is sync
    other = (shard_block(blocks[2].start, blocks[3].rows, 7, 70),)
    assert writer.write(other).ok
    reader = writer.reader()
    same(list(reader.blocks()), (*blocks[:2], *other))
    assert reader.log.damage == ""


def test_a_log_without_its_index_is_whole_and_an_index_that_cannot_be_written_costs_nothing(tmp_path: Path):
    writer = Writer(tmp_path)
    blocks = made(4)
    writer.write(blocks[:2])
    (index,) = tmp_path.rglob("*.index")
    index.unlink()
    index.mkdir()
    assert writer.write(blocks[2:3]).ok
    same(list(writer.reader().blocks()), blocks[:3])
    index.rmdir()
    writer.write(blocks[3:])
    same(list(writer.reader().blocks()), blocks)


def test_a_segment_that_cannot_be_deleted_stops_neither_its_edge_nor_the_thread_that_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    writer = Writer(tmp_path)
    blocks = made(5)
    assert writer.write(blocks[:2]).ok

    def failing(path: Path, *, missing_ok: bool = False) -> None:
        raise OSError(30, "Read-only file system", str(path))

    with monkeypatch.context() as broken:
        broken.setattr(Path, "unlink", failing)
        assert writer.write(blocks[:2]).ok  # again, from its beginning: the first segment should go
        writer.drop(blocks[1].end)
    assert writer.write(blocks[2:4]).ok
    assert writer.write(blocks[4:]).ok
    assert writer.reader().log.damage == ""
    assert writer.logs.bytes < sum(path.stat().st_size for path in tmp_path.rglob("*.log"))


def test_rows_that_the_disk_does_not_give_back_end_the_node_as_changed_ones_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A link would try again and again to send them, and nobody would take over."""
    writer = Writer(tmp_path)
    done = writer.write(made(1))

    def failing(handle: int, buffers: list, at: int) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "preadv", failing)
    with pytest.raises(DamagedLogError, match="does not hold what was written"):
        done.kept[0].table()  # type: ignore[union-attr]
    assert ["Input/output error" in error.detail for error in writer.damaged] == [True]


def test_a_reader_that_follows_sees_the_next_life_of_its_node_from_the_beginning(tmp_path: Path):
    """Its segments have the same names as those of the life before."""
    Writer(tmp_path).write(made(3))
    reader = LogReader(tmp_path / EDGE)
    assert len(reader.entries()) == 3
    other = made(2, start=7)
    Writer(tmp_path).write(other)
    reader.look()
    assert reader.log.damage == ""
    same(list(reader.blocks()), other)


@pytest.mark.parametrize("what", ["directory", "pipe", "device"])
def test_what_is_not_a_file_in_the_place_of_a_segment_is_said(tmp_path: Path, what: str):
    Writer(tmp_path).write(made(1))
    path = tmp_path / EDGE / "00000002.log"
    if what == "directory":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match="cannot be read") as raised:
        LogReader(tmp_path / EDGE)
    assert str(path) in str(raised.value)


def test_a_segment_that_the_disk_does_not_give_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    Writer(tmp_path).write(made(1))
    reader = LogReader(tmp_path / EDGE)

    def failing(handle: int, length: int, at: int) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pread", failing)
    for read in (lambda: list(reader.blocks()), lambda: LogReader(tmp_path / EDGE)):
        with pytest.raises(DamagedLogError, match="cannot be read") as raised:
            read()
        assert "Input/output error" in raised.value.detail


def test_damage_is_raised_behind_the_rows_that_come_before_it(tmp_path: Path):
    writer = Writer(tmp_path)
    blocks = made(4)
    for block in blocks:
        writer.write((block,))
    (file,) = tmp_path.rglob("*.log")
    reader = writer.reader()
    entry = reader.entries()[2][1]
    raw = bytearray(file.read_bytes())
    raw[entry.offset + 100] ^= 1
    file.write_bytes(raw)
    came = []
    with pytest.raises(DamagedLogError, match="does not hold what was written"):
        came.extend(reader.blocks())  # believes the index, and finds it when it reads
    same(came, blocks[:2])
    thorough = LogReader(tmp_path / EDGE, all_of_it=True)
    assert "is damaged" in thorough.log.damage or "are whole" in thorough.log.damage
    assert len(thorough.entries()) == 2


def test_several_logs_are_written_at_once_and_one_of_them_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The appendix's window of outstanding I/O: a log whose disk is slow holds up no other."""
    writer, done = Writer(tmp_path), threading.Event()
    at_once, slow, gate = threading.Semaphore(0), threading.Event(), threading.Event()
    right = os.fdatasync

    def sync(handle: int) -> None:
        if slow.is_set() and "/u0.0/" in os.readlink(f"/proc/self/fd/{handle}"):
            at_once.release()
            assert gate.wait(10)
        right(handle)

    monkeypatch.setattr(os, "fdatasync", sync)
    monkeypatch.setattr(edge_logs, "WAIT_S", 0.05)
    came = threading.Condition()

    def answer(said: Done) -> None:
        with came:
            writer.said.append(said)
            came.notify_all()

    writer.logs._answer = answer
    slow.set()
    writer.logs.start(done)
    try:
        first, second = made(1), made(1, start=21)
        writer.logs.want(Spill(ticket=1, edge=EDGE, blocks=first))
        assert at_once.acquire(timeout=10)
        writer.logs.want(Spill(ticket=2, edge=EDGE, blocks=second))
        for ticket in (3, 4, 5):
            writer.logs.want(Spill(ticket=ticket, edge=Edge(f"u{ticket}.0"), blocks=first))
        with came:
            assert came.wait_for(lambda: len(writer.said) == 3, 10)
        assert sorted(said.ticket for said in writer.said) == [3, 4, 5]
        gate.set()
        with came:
            assert came.wait_for(lambda: len(writer.said) == 5, 10)
        assert [said.ticket for said in writer.said[3:]] == [1, 2]
        same(list(writer.reader().blocks()), (*first, *second))
    finally:
        gate.set()
        done.set()

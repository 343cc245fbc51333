"""What a node must not forget, and what it may put aside: torn tails, full disks (real ones), spilled rows."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from holdfast.core.ready import Done, DropSpill, Spill
from holdfast.errors import DamagedJournalError, DamagedLogError, StateError
from holdfast.model.block import Block, Digest, shard_block
from holdfast.model.found import Ballot, ledger_entry, vote_entry
from holdfast.model.parts import CommitRecord, LedgerPage
from holdfast.model.record import Place, Record
from holdfast.runtime.disk import journal as disk
from holdfast.runtime.disk.edge_logs import EdgeLogs
from holdfast.runtime.disk.journal import Journal
from holdfast.runtime.net.rows import ArrowRows

RECORD = Record(version=2, term=1, members={"n0": 1}, places={"u0": Place(primary="n0#1")})
COMMIT = CommitRecord(
    query="q",
    batch=3,
    epoch=1,
    attempt=2,
    watermark=9,
    offsets=(3, 4),
    plan="{}",
    digests={"s>u": Digest(2, 2**64 - 1)},
)
ITEMS: list[tuple[str, object]] = [
    ("life", 2),
    vote_entry(3, "n1"),
    ("record", RECORD),
    ledger_entry("s0.ledger", 2, LedgerPage("q", 1, COMMIT)),
]


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KB."""
    place = tmp_path / "tiny"
    place.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", place]).returncode:
        pytest.skip("a tiny file system can only be mounted by root")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def fill(path: Path) -> None:
    """Write until the disk is full."""
    try:
        with open(path, "wb", buffering=0) as file:
            for _ in range(1_000):
                file.write(b"x" * 4096)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            return
    raise AssertionError("the disk was not filled")


def test_what_was_written_is_there_in_the_next_life_with_its_types(tmp_path: Path):
    journal = Journal(tmp_path / "journal")
    journal.write(ITEMS)
    journal.write([vote_entry(4, None)])
    journal.close()
    assert Journal(tmp_path / "journal").content == {**dict(ITEMS), "vote": Ballot(4, None)}


def test_a_torn_tail_is_cut_off_wherever_it_was_torn(tmp_path: Path):
    path = tmp_path / "journal"
    journal = Journal(path)
    journal.write(ITEMS[:2])
    good = path.stat().st_size
    journal.write(ITEMS[2:3])
    journal.close()
    whole = path.read_bytes()
    for size in range(good, len(whole)):
        path.write_bytes(whole[:size])
        (tmp_path / "lives").unlink(missing_ok=True)  # as the process had left it, which died before it came to that
        again = Journal(path)
        assert again.content == dict(ITEMS[:2])
        again.write([("life", 9)])
        again.close()
        assert Journal(path).content["life"] == 9


def test_a_write_of_several_entries_is_torn_as_a_whole(tmp_path: Path):
    """A disk may have the end of an unsynced write and not its beginning."""
    path = tmp_path / "journal"
    journal = Journal(path)
    journal.write(ITEMS[:1])
    good = path.stat().st_size
    journal.write(ITEMS[1:])
    journal.close()
    raw = bytearray(path.read_bytes())
    raw[good : good + 20] = bytes(20)
    path.write_bytes(raw)
    assert Journal(path).content == dict(ITEMS[:1])


def test_damage_before_a_whole_write_is_said_and_the_file_is_left_alone(tmp_path: Path):
    path = tmp_path / "journal"
    journal = Journal(path)
    journal.write(ITEMS[:1])
    good = path.stat().st_size
    journal.write(ITEMS[1:2])
    later = path.stat().st_size
    journal.write(ITEMS[2:])
    journal.close()
    raw = bytearray(path.read_bytes())
    raw[good + 13] ^= 1
    path.write_bytes(raw)
    with pytest.raises(DamagedJournalError, match="must not go on") as said:
        Journal(path)
    assert f"{path}: what was written at byte {good} " in said.value.detail
    assert f"more was written at byte {later}" in said.value.detail
    assert "new name" in said.value.hint
    assert path.read_bytes() == raw


def test_damage_to_a_journal_that_was_just_compacted_is_no_torn_tail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(disk, "COMPACT_BYTES", 10)
    path = tmp_path / "journal"
    journal = Journal(path)
    journal.write(ITEMS)
    journal.close()
    raw = bytearray(path.read_bytes())
    raw[30] ^= 1
    path.write_bytes(raw)
    with pytest.raises(DamagedJournalError):
        Journal(path)


def test_a_journal_that_grows_is_compacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(disk, "COMPACT_BYTES", 2_000)
    journal = Journal(tmp_path / "journal")
    for term in range(500):
        journal.write([vote_entry(term, "n1"), *ITEMS[2:]])
    journal.close()
    assert (tmp_path / "journal").stat().st_size < 4_000
    assert Journal(tmp_path / "journal").content == {"vote": Ballot(499, "n1"), **dict(ITEMS[2:])}


def test_a_journal_that_cannot_be_compacted_leaks_nothing_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(disk, "COMPACT_BYTES", 200)
    told: list[str] = []
    journal = disk.Journal(tmp_path / "journal", told.append)
    real = os.fsync

    def fsync(handle: int) -> None:
        if os.readlink(f"/proc/self/fd/{handle}").endswith(".new"):
            raise OSError(errno.ENOSPC, "no space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    before = len(os.listdir("/proc/self/fd"))
    for life in range(1, 80):
        journal.write([("life", life)])
    assert len(os.listdir("/proc/self/fd")) <= before  # what other tests left may be closed meanwhile
    assert not (tmp_path / "journal.new").exists()
    assert 1 <= len(told) < 20  # not at every write
    monkeypatch.undo()
    journal.close()
    assert disk.Journal(tmp_path / "journal").content["life"] == 79


@pytest.mark.parametrize("found", ["dear diary", "HF", ""])
def test_a_file_that_is_no_journal_is_left_alone(tmp_path: Path, found: str):
    """A short one, too: a journal has its first bytes before it has its name."""
    path = tmp_path / "journal"
    path.write_text(found)
    with pytest.raises(DamagedJournalError, match="is damaged"):
        Journal(path)
    assert path.read_text() == found


def test_a_journal_of_another_release_is_no_damaged_one(tmp_path: Path):
    path = tmp_path / "journal"
    path.write_bytes(b"HFJ1 and more")
    with pytest.raises(StateError, match="another release") as said:
        Journal(path)
    assert not isinstance(said.value, DamagedJournalError)


@pytest.mark.parametrize("lost", [1, 60, 200])
def test_the_end_of_a_journal_that_a_disk_has_lost_is_no_torn_write(tmp_path: Path, lost: int):
    """A sector holds many writes. Those before the last one had been synced, and others know of them."""
    path = tmp_path / "journal"
    journal = Journal(path)
    for life in range(30):
        journal.write([("life", life)])
    journal.close()
    raw = path.read_bytes()
    frame = (len(raw) - 4) // 30
    path.write_bytes(raw[: len(raw) - frame - lost] + bytes(lost) + raw[len(raw) - frame :])
    with pytest.raises(DamagedJournalError):
        Journal(path)
    path.write_bytes(raw[: len(raw) - frame] + bytes(frame))  # of this the journal alone cannot tell
    with pytest.raises(DamagedJournalError, match="life 28, lives of life 29"):
        Journal(path)
    (tmp_path / "lives").unlink()
    assert Journal(path).content == {"life": 28}


def test_what_is_written_whole_is_private_whatever_was_there(tmp_path: Path):
    path = tmp_path / "run.json"
    path.write_text("old")
    path.chmod(0o644)
    with ThreadPoolExecutor(8) as pool:  # nodes that share a directory are told the same at once
        list(pool.map(lambda _: disk.write_whole(path, b"new"), range(80)))
    assert path.read_bytes() == b"new"
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_journal_on_a_full_disk_says_so_and_waits(tiny: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(disk, "RETRY_S", 0.02)
    said: list[str] = []
    journal = Journal(tiny / "journal", said.append)
    journal.write([("life", 1)])
    ballast = tiny / "ballast"
    fill(ballast)
    big = Record(version=3, term=1, members={}, places={f"u{i}": Place(primary="n0#1") for i in range(500)})
    writer = threading.Thread(target=journal.write, args=([("record", big)],))
    writer.start()
    until = time.monotonic() + 5
    while not said and time.monotonic() < until:
        time.sleep(0.01)
    assert "No space left" in said[0]
    assert writer.is_alive()
    ballast.unlink()
    writer.join(5)
    assert not writer.is_alive()
    journal.close()
    assert Journal(tiny / "journal").content == {"life": 1, "record": big}


def blocks(count: int, rows: int = 500) -> list[Block]:
    made: list[Block] = []
    at = 0
    for i in range(count):
        batch = pa.record_batch({"a": pa.array(range(i, i + rows), pa.int64())})
        made.append(shard_block(at, ArrowRows([batch]), i))
        at = made[-1].end
    return made


class SpillingStore:
    """The output logs of a node, and what they say of every write."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.said: list[Done] = []
        self.damaged: list[DamagedLogError] = []
        self.store = EdgeLogs(path, self.said.append, self.damaged.append)
        self.ticket = 0

    def want(self, made: list[Block], edge: str = "u0.0") -> None:
        self.ticket += 1
        self.store.want(Spill(ticket=self.ticket, edge=edge, blocks=tuple(made)))

    def drop(self, to: int, edge: str = "u0.0") -> None:
        self.store.want(DropSpill(edge=edge, to=to))

    def spill(self, made: list[Block]) -> Done:
        self.want(made)
        self.store.work()
        return self.said[-1]

    def files(self) -> list[Path]:
        return sorted(path for path in self.path.rglob("*") if path.suffix in (".log", ".index"))


def tables(kept: Iterable[Any]) -> list[pa.Table]:
    return [rows.table() for rows in kept]


def test_spilled_rows_leave_memory_and_come_back(tmp_path: Path):
    made = blocks(4)
    before = tables(b.rows for b in made)
    spilling = SpillingStore(tmp_path / "spill")
    done = spilling.spill(made[:3])
    assert (done.ticket, done.ok, done.why) == (1, True, "")
    assert [rows.nbytes for rows in done.kept] == [0, 0, 0]
    assert tables(done.kept) == before[:3]
    assert tables(b.rows for b in made) == before  # who has them in memory keeps them
    assert spilling.store.bytes > 0
    spilling.drop(made[2].end)
    spilling.store.work()
    assert (spilling.store.bytes, spilling.files()) == (0, [])
    assert tables(done.kept) == before[:3]  # somebody still has it open


def test_blocks_without_rows_are_spilled_like_any_other(tmp_path: Path):
    made = blocks(1)
    done = SpillingStore(tmp_path / "spill").spill([shard_block(0, (), 1), *made])
    assert (done.ok, done.kept[0], done.kept[1].table()) == (True, (), made[0].rows.table())


def test_spilled_rows_are_read_to_their_end_though_the_kernel_gives_them_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Linux reads less than 2 GiB at once: a window of twelve million wide rows, read back by one call, was damaged."""
    (block,) = blocks(1)
    before = block.rows.table()
    (kept,) = SpillingStore(tmp_path / "spill").spill([block]).kept
    whole, wholev = os.pread, os.preadv
    monkeypatch.setattr(os, "pread", lambda file, length, at: whole(file, min(length, 1_000), at))
    monkeypatch.setattr(os, "preadv", lambda file, views, at: wholev(file, [views[0][:1_000]], at))
    assert kept.table() == before


def test_many_small_spills_need_few_open_files(tmp_path: Path):
    """Each step of a shard that waits for its sink spills a block: a file for each would soon be one too many."""
    made = blocks(200, rows=10)
    spilling = SpillingStore(tmp_path / "spill")
    opened = len(os.listdir("/proc/self/fd"))
    for block in made:
        spilling.spill([block])
    assert len(os.listdir("/proc/self/fd")) - opened < 5
    assert [done.ticket for done in spilling.said] == list(range(1, 201))
    assert tables(rows for done in spilling.said for rows in done.kept) == tables(b.rows for b in made)


def test_a_slow_disk_gets_one_write_per_edge_however_often_it_was_asked_meanwhile(tmp_path: Path):
    made = {edge: blocks(100, rows=10) for edge in ("u0.0", "u0.1")}
    spilling = SpillingStore(tmp_path / "spill")
    for first, second in zip(*made.values(), strict=True):
        spilling.want([first], "u0.0")
        spilling.want([second], "u0.1")
    spilling.store.work()
    assert [done.ticket for done in spilling.said] == [199, 200]


def test_files_of_a_copy_that_went_go_even_if_the_next_one_spills_before_they_could(tmp_path: Path):
    made = blocks(4)
    spilling = SpillingStore(tmp_path / "spill")
    spilling.spill(made)
    before = spilling.store.bytes
    spilling.drop(made[3].end)
    spilling.want(blocks(1))
    spilling.store.work()
    assert 0 < spilling.store.bytes < before
    assert len(spilling.files()) == 2  # a log and its index


def test_a_full_disk_refuses_says_why_and_takes_the_same_rows_later(tiny: Path):
    made = blocks(40)
    before = tables(b.rows for b in made)
    spilling = SpillingStore(tiny / "spill")
    first = spilling.spill(made[:6])
    held = spilling.store.bytes
    refused = spilling.spill(made[6:])
    assert (first.ok, refused.ok, refused.kept) == (True, False, ())
    assert "No space left" in refused.why
    assert spilling.store.bytes == held  # the file is as it was
    assert tables(first.kept) == before[:6]
    assert not spilling.spill(made[6:]).ok
    subprocess.run(["mount", "-o", "remount,size=4m", tiny], check=True)
    again = spilling.spill(made[6:])
    assert again.ok
    assert tables((*first.kept, *again.kept)) == before


def test_a_directory_that_vanished_loses_nothing_and_is_made_again(tmp_path: Path):
    made = blocks(4)
    before = tables(b.rows for b in made)
    spilling = SpillingStore(tmp_path / "spill")
    first = spilling.spill(made[:2])
    shutil.rmtree(tmp_path / "spill")
    assert tables(first.kept) == before[:2]
    second = spilling.spill(made[2:3])  # into the file that nobody sees any more
    spilling.drop(made[2].end)
    third = spilling.spill(made[3:])
    assert (second.ok, third.ok) == (True, True)
    assert len(spilling.files()) == 2
    assert tables((*first.kept, *second.kept, *third.kept)) == before


def test_a_directory_that_cannot_be_written_refuses(tmp_path: Path):
    spilling = SpillingStore(tmp_path / "spill")
    shutil.rmtree(tmp_path / "spill")
    (tmp_path / "spill").write_text("in the way")
    done = spilling.spill(blocks(1))
    assert (done.ok, done.kept) == (False, ())
    assert "Not a directory" in done.why


def test_whatever_goes_wrong_with_a_write_is_an_answer(tmp_path: Path):
    class Damaged(ArrowRows):
        def to_ipc(self) -> pa.Buffer:
            raise pa.ArrowInvalid("damaged")

    spilling = SpillingStore(tmp_path / "spill")
    made = blocks(1)[0]
    done = spilling.spill([msgspec.structs.replace(made, rows=Damaged(made.rows.batches))])
    assert (done.ticket, done.ok) == (1, False)
    assert "damaged" in done.why
    assert spilling.spill([made]).ok


def test_files_of_an_earlier_life_are_removed(tmp_path: Path):
    (tmp_path / "spill").mkdir()
    (tmp_path / "spill" / "old.arrows").write_text("x")
    SpillingStore(tmp_path / "spill")
    assert list((tmp_path / "spill").iterdir()) == []

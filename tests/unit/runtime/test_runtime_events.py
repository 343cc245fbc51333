"""The diary: JSON lines on disk, in order, and nobody who tells an event waits for that disk or for a reader."""

from __future__ import annotations

import io
import json
import os
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.errors import ConfigError
from holdfast.runtime.config import NodeConfig
from holdfast.runtime.node import __main__ as node
from holdfast.runtime.node import events
from holdfast.runtime.node.events import KEPT_BYTES, EventLog


class Stalled:
    """A file on a disk that hangs until it is let go."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.hangs = threading.Event()
        self.go_on = threading.Event()

    def write(self, raw: bytes) -> int:
        self.hangs.set()
        self.go_on.wait(20)
        return self._file.write(raw)

    def tell(self) -> int:
        return self._file.tell()


def on_disk(log: EventLog) -> list[dict[str, Any]]:
    log.flush()
    return [json.loads(line) for line in log.path.read_text().splitlines() if line]


def a_log(tmp_path: Path) -> EventLog:
    return EventLog(tmp_path / "events.jsonl", "n0")


def stall(log: EventLog) -> Stalled:
    log._file = disk = Stalled(log._file)  # pyright: ignore[reportAttributeAccessIssue]
    log.write("waiting", "The disk hangs over this.")
    assert disk.hangs.wait(5)
    return disk


def test_what_repeats_is_counted(tmp_path: Path):
    log = a_log(tmp_path)
    log.write("started", "Up.", seat="n0#1")
    for _ in range(5):
        log.limited("k", 60, "damaged", "Bad bytes.", peer="n1")
    lines = on_disk(log)
    assert [line["event"] for line in lines] == ["started", "damaged"]
    assert lines[0]["node"] == "n0"
    assert lines[0]["text"] == "Up."
    assert [e["event"] for e in log.since(1)] == ["damaged"]


def test_what_strangers_cause_is_limited_and_the_rest_is_counted(tmp_path: Path, monkeypatch):
    log = a_log(tmp_path)
    for i in range(1_000):
        log.trouble("turned-away", f"stranger-{i}", "wrong secret")
    for _ in range(3):
        log.trouble("refused", "n1", "wrong secret")  # another kind has lines of its own
    lines = [line["event"] for line in on_disk(log)]
    assert lines == ["turned-away"] * events.TROUBLES_MAX + ["refused"]
    monkeypatch.setattr(events, "MINUTE_S", 0.0)
    log.write("stopped", "It stops.")
    told = on_disk(log)[-2:]
    assert [line["event"] for line in told] == ["left-out", "stopped"]
    assert (told[0]["kind"], told[0]["left_out"]) == ("turned-away", 1_000 - events.TROUBLES_MAX)


def test_events_go_to_a_second_place_if_wanted(tmp_path: Path):
    out = io.StringIO()
    log = EventLog(tmp_path / "events.jsonl", "n0", out)
    log.write("waiting", "It waits.")
    assert on_disk(log) == [json.loads(out.getvalue())]
    out.close()
    log.write("waiting", "Nobody listens.")
    assert len(on_disk(log)) == 2
    assert log.lost == 0


def test_a_disk_that_hangs_holds_nobody_up(tmp_path: Path):
    log = a_log(tmp_path)
    disk = stall(log)
    began = time.monotonic()
    for i in range(100):
        log.write("record", f"{i}")
    assert time.monotonic() - began < 1
    assert log.last == 101
    assert [e["number"] for e in log.since(99)] == [100, 101]
    assert log.path.read_text() == ""
    disk.go_on.set()
    assert [e["number"] for e in on_disk(log)] == list(range(1, 102))


def test_what_waits_for_a_disk_is_bounded_and_what_was_lost_is_told(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(events, "WAITING_MAX", 10)
    log = a_log(tmp_path)
    disk = stall(log)
    for i in range(25):
        log.write("record", f"{i}")
    assert log.lost == 15
    disk.go_on.set()
    lines = on_disk(log)
    assert [e["number"] for e in lines] == [*range(1, 12), 27]
    assert lines[-1]["event"] == "unwritten"
    assert lines[-1]["lost"] == 15
    assert log.last == 27
    log.write("record", "All is well.")
    assert [e["event"] for e in on_disk(log)][-2:] == ["unwritten", "record"]  # told once


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux only")
def test_what_a_full_disk_did_not_take_is_told_when_it_takes_lines_again(tmp_path: Path):
    log = a_log(tmp_path)
    file, log._file = log._file, open("/dev/full", "ab", buffering=0)  # noqa: SIM115
    log.write("record", "1")
    log.write("record", "2")
    log.flush()
    assert log.lost == 2
    log._file.close()
    log._file = file
    file.write(b'{"half')  # as far as it got
    log.write("record", "3")
    log.flush()
    torn, *rest = log.path.read_text().splitlines()
    assert torn == '{"half'
    assert [(e["number"], e.get("lost")) for e in map(json.loads, rest)] == [(3, None), (4, 2)]


def test_a_reader_that_is_stuck_keeps_nothing_from_the_disk(tmp_path: Path):
    read, write = os.pipe()
    with open(read, "rb") as reader, open(write, "w") as out:
        log = EventLog(tmp_path / "events.jsonl", "n0", out)
        for _ in range(300):
            log.write("record", "x" * 1_000)  # far more than a pipe holds
        began = time.monotonic()
        log.flush(0.5)
        assert time.monotonic() - began < 2
        assert len(log.path.read_text().splitlines()) == 300
        lines = [reader.readline() for _ in range(300)]
        assert [json.loads(line)["number"] for line in lines] == list(range(1, 301))


def test_a_long_diary_that_cannot_get_another_name_goes_on(tmp_path: Path, monkeypatch):
    """Without a descriptor for a new file the old one was closed, and every event from then on was lost."""
    monkeypatch.setattr(events, "FILE_BYTES_MAX", 1_000)
    log = EventLog(tmp_path / "events.jsonl", "n0")
    (tmp_path / "events.new").mkdir()
    for i in range(20):
        log.write("late", "x" * 100, i=i)
    log.flush()
    assert log.lost == 0
    assert len((tmp_path / "events.jsonl").read_text().splitlines()) == 20
    (tmp_path / "events.new").rmdir()
    log.write("late", "the last")
    log.flush()
    assert (tmp_path / "events.1.jsonl").exists()


def test_a_long_diary_gets_another_name(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(events, "FILE_BYTES_MAX", 1_000)
    log = a_log(tmp_path)
    for _ in range(15):
        log.write("record", "x")
    numbers = [e["number"] for e in on_disk(log)]
    older = [json.loads(line)["number"] for line in (tmp_path / "events.1.jsonl").read_text().splitlines()]
    assert (older + numbers)[-1] == 15
    assert older + numbers == list(range(older[0], 16))


@pytest.mark.parametrize("fails", [False, True])
def test_a_node_that_ends_has_written_why(tmp_path: Path, monkeypatch, fails: bool):
    log = a_log(tmp_path)
    disk = stall(log)
    threading.Timer(0.3, disk.go_on.set).start()
    done = threading.Event()
    done.set()

    def start() -> None:
        if fails:
            log.write("journal-damaged", "Why it ends.")
            raise ConfigError("it cannot start")

    def close() -> None:
        log.write("stopped", "Why it ends.")

    process = SimpleNamespace(events=log, start=start, done=done, close=close, exit_code=0)
    monkeypatch.setattr(node, "NodeProcess", lambda config, echo: process)
    monkeypatch.setattr(node, "be_lean", lambda: None)
    monkeypatch.setattr(node.sys, "setswitchinterval", lambda seconds: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    try:
        node.run(NodeConfig(name="n0", dir=str(tmp_path), endpoints={}))
    except ConfigError:
        assert fails
    assert json.loads(log.path.read_text().splitlines()[-1])["text"] == "Why it ends."


def test_what_is_kept_in_memory_is_bounded_in_bytes_and_kept_as_text(tmp_path):
    log = EventLog(tmp_path / "events.jsonl", "n0")
    for number in range(1_000):
        log.write("stage-batch", "batch", progress={str(field): "x" * 200 for field in range(50)}, batch=number)
    kept = log._kept
    assert sum(len(line) for _, line in kept) <= KEPT_BYTES
    assert len(kept) < 300
    assert [e["batch"] for e in log.since(998)] == [998, 999]
    assert log.since(0)[0]["number"] == kept[0][0]

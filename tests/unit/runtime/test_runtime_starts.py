"""What can wait gives way to stages that start, on one machine, and not for ever."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from holdfast.runtime.node import starts as module
from holdfast.runtime.node.starts import GIVE_WAY_S_MAX, HeldStart, Starts
from holdfast.runtime.node.wanted import Wanted

HOLDER = """
import sys
from pathlib import Path
from holdfast.runtime.node.starts import Starts
held = Starts(Path(sys.argv[1])).hold()
print("held", flush=True)
sys.stdin.read()
"""


def test_starts_are_under_way_until_the_last_one_is_over(tmp_path: Path):
    starts = Starts(tmp_path)
    assert not starts.are_under_way()
    first, second = starts.hold(), Starts(tmp_path).hold()
    first.over()
    first.over()  # told twice
    assert starts.are_under_way()
    second.over()
    assert not starts.are_under_way()


def test_a_process_that_dies_lets_go_of_its_start(tmp_path: Path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    assert Starts(tmp_path).are_under_way()
    holder.kill()
    holder.wait()
    assert not Starts(tmp_path).are_under_way()


def test_a_start_does_not_wait_for_a_process_that_was_stopped_while_it_looked(tmp_path: Path):
    """Whoever looks has the lock alone for a moment; frozen in that moment, it would keep all stages from starting."""
    starts = Starts(tmp_path)
    starts.hold().over()
    (file,) = (tmp_path / "starts").iterdir()
    with file.open("r+") as looking:
        fcntl.flock(looking, fcntl.LOCK_EX)
        held: list[HeldStart] = []
        waiting = threading.Thread(target=lambda: held.append(starts.hold()), daemon=True)
        waiting.start()
        waiting.join(10)
        assert held
    held[0].over()
    assert not starts.are_under_way()


def test_starts_of_another_machine_are_nothing_to_this_one(tmp_path: Path, monkeypatch):
    here = Starts(tmp_path)
    monkeypatch.setattr(module.platform, "node", lambda: "elsewhere")
    held = Starts(tmp_path).hold()
    assert not here.are_under_way()
    held.over()


def test_where_the_file_cannot_be_opened_nobody_gives_way(tmp_path: Path):
    (tmp_path / "starts").write_text("in the way")
    for starts in (Starts(tmp_path), Starts(None)):
        held = starts.hold()
        assert not starts.are_under_way()
        held.over()


def test_a_standby_begins_after_its_delay_and_gives_way_to_starts_for_a_while(tmp_path: Path):
    starts = Starts(tmp_path)
    wanted, now = Wanted(starts), time.monotonic()
    wanted.add("s0", 2.0)
    assert wanted.take_due(now + 1.9) == []
    held = starts.hold()
    assert wanted.take_due(now + 3) == []
    assert wanted.waiting() == ["s0"]
    held.over()
    assert wanted.take_due(now + 4) == ["s0"]
    assert wanted.take_due(now + 5) == wanted.waiting() == []
    wanted.again("s0")
    held = starts.hold()
    assert wanted.take_due(now + GIVE_WAY_S_MAX - 1) == []
    assert wanted.take_due(now + GIVE_WAY_S_MAX + 3) == ["s0"]
    held.over()


def test_a_standby_that_is_not_wanted_any_more_does_not_begin_again():
    wanted = Wanted(Starts(None))
    wanted.add("s0", 0.0)
    wanted.forget("s0")
    wanted.again("s0")
    assert wanted.take_due(time.monotonic() + 1) == []

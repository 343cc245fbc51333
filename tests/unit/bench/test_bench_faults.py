"""Kills of processes that may end by themselves just then."""

from __future__ import annotations

import subprocess

import psutil

from bench.faults import jvms_below, kill_found


def sleeping() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "1000"])


def test_a_process_that_has_ended_before_it_is_killed_is_looked_for_again():
    gone, there = sleeping(), sleeping()
    left = [psutil.Process(gone.pid), None, psutil.Process(there.pid)]
    gone.kill()
    gone.wait()
    assert kill_found(lambda: left.pop(0), "one").pid == there.pid
    assert there.wait() == -9


def test_a_driver_process_that_has_ended_has_no_jvms():
    gone = sleeping()
    gone.kill()
    gone.wait()
    assert jvms_below(gone.pid) == []

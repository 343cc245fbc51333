"""A standby's reader waits at a latch until its driver says with which epoch to go on, or is gone."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from holdfast.errors import HoldfastError
from holdfast.spark.latch import Latch, wait_at

READER = "import sys; from holdfast.spark.latch import wait_at; print(wait_at(sys.argv[1], lambda: None))"
DRIVER = "import sys; from holdfast.spark.latch import Latch; print(Latch().directory, flush=True); sys.stdin.read()"
LIMIT_S = 60.0


def started(program: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_every_reader_goes_on_with_the_epoch_when_the_gate_opens():
    latch = Latch()
    readers = [started(READER, str(latch.directory)) for _ in range(2)]
    wait_for(lambda: latch.waiting == 2)
    assert all(reader.poll() is None for reader in readers)
    latch.open(7)
    assert [reader.communicate(timeout=LIMIT_S)[0].strip() for reader in readers] == ["7", "7"]
    latch.close()


def test_who_comes_after_it_was_opened_does_not_wait():
    latch = Latch()
    latch.open(3)
    assert wait_at(str(latch.directory), lambda: None) == 3
    latch.close()
    assert not latch.directory.exists()


def test_who_waits_does_something_meanwhile_and_who_need_not_wait_does_not():
    latch = Latch()
    done: list[str] = []
    waiting = threading.Thread(target=lambda: wait_at(str(latch.directory), lambda: done.append("waited")))
    waiting.start()
    wait_for(lambda: bool(done))
    latch.open(4)
    waiting.join(LIMIT_S)
    assert wait_at(str(latch.directory), lambda: done.append("did not wait")) == 4
    assert done == ["waited"]
    latch.close()


def test_a_gate_that_is_closed_lets_nobody_through():
    latch = Latch()
    reader = started(READER, str(latch.directory))
    wait_for(lambda: latch.waiting == 1)
    latch.close()
    assert "is not needed any more" in reader.communicate(timeout=LIMIT_S)[1]
    with pytest.raises(HoldfastError, match="is not needed any more"):
        wait_at(str(latch.directory), lambda: None)


def test_a_reader_does_not_outlive_a_driver_that_was_killed():
    driver = started(DRIVER)
    assert driver.stdout is not None
    directory = driver.stdout.readline().strip()
    reader = started(READER, directory)
    wait_for(lambda: any(name.startswith("here-") for name in os.listdir(directory)))
    driver.kill()
    assert "is not needed any more" in reader.communicate(timeout=LIMIT_S)[1]
    driver.wait()

"""A latch before which a standby's query waits: started, planned and connected, but not yet looking at its checkpoint.

Spark starts a Python process for every source of a query and asks it for a reader before it reads the query's
checkpoint. Starting that process is most of what a take-over costs, so a standby does it beforehand: its reader
waits here, and when the stage's node has died the driver opens the latch with the stage's epoch. Only then does Spark
read where the stage stood.

    wait       a pipe whose other end the driver holds: it is hung up when the latch opens, or when the driver dies
    go         the epoch; there before the pipe is hung up
    here-PID   a reader that waits

A latch is of one life of a stage, on the driver's machine, where Spark starts these processes.
"""

from __future__ import annotations

import os
import select
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from holdfast.errors import HoldfastError


class Latch:
    """The driver's side."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="holdfast-latch-"))
        os.mkfifo(self.directory / "wait")
        # for both ways, since nobody reads yet
        self._held: int | None = os.open(self.directory / "wait", os.O_RDWR)

    @property
    def waiting(self) -> int:
        """How many readers are at the latch."""
        return sum(1 for _ in self.directory.glob("here-*"))

    def open(self, epoch: int) -> None:
        part = self.directory / "part"
        part.write_text(str(epoch))
        part.replace(self.directory / "go")
        self._hang_up()

    def close(self) -> None:
        """Whoever still waits fails."""
        self._hang_up()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _hang_up(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            os.close(held)


def wait_at(directory: str, meanwhile: Callable[[], None]) -> int:
    """The reader's side: wait until the latch is opened. The epoch; an error if it never will be. Who has to wait does
    `meanwhile`, on another thread: it is not waited for."""
    home = Path(directory)
    go = home / "go"
    if not go.exists():
        try:
            # without waiting for a driver that may be gone
            pipe = os.open(home / "wait", os.O_RDONLY | os.O_NONBLOCK)
            (home / f"here-{os.getpid()}").touch()
        except OSError as error:
            raise _shut(directory) from error
        threading.Thread(target=meanwhile, name="meanwhile", daemon=True).start()
        try:
            poll = select.poll()
            poll.register(pipe, select.POLLHUP)
            while not go.exists() and not any(event & select.POLLHUP for _, event in poll.poll()):
                pass
        finally:
            os.close(pipe)
    try:
        return int(go.read_text())
    except FileNotFoundError:
        raise _shut(directory) from None


def _shut(directory: str) -> HoldfastError:
    return HoldfastError(
        "this standby is not needed any more",
        detail=f"The driver that made {directory} has ended, or has stopped the stage.",
    )

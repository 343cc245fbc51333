"""Starts of stages that somebody waits for, on this machine: what can wait gives way to them.

A take-over that finds no warm standby needs all that a small machine has. Just then the node that died comes back,
other standbys warm up and JVMs start for them; beside those it took twice as long. So a driver process holds a lock for
each of its stages until their first batches are through, and whoever warms up a standby, starts a process for one or
practises looks first whether anybody holds it. It is a lock of the kernel's on a file of the run's directory, one for
each machine: a process that dies lets go of it. What gives way does so for `GIVE_WAY_S_MAX` in all. Where the file
cannot be opened, nobody gives way.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import threading
import time
from pathlib import Path

#: So long each standby waits for starts of others in all: stages that fail again and again must not keep it cold.
GIVE_WAY_S_MAX = 30.0
#: How often a start tries to get the lock, and how long it waits in between.
TRIES, PAUSE_S = 50, 0.01


class HeldStart:
    """One start that is under way, until it is `over`; on a file that is open, or on none."""

    def __init__(self, file: int | None) -> None:
        self._file = file
        self._lock = threading.Lock()

    def over(self) -> None:
        with self._lock:
            file, self._file = self._file, None
        if file is not None:
            os.close(file)


class Starts:
    """Of this machine, in the directory of one run; None: nobody gives way."""

    def __init__(self, directory: Path | None) -> None:
        self._path = directory / "starts" / (platform.node() or "here") if directory is not None else None

    def hold(self) -> HeldStart:
        """Whoever looks has the lock alone for a moment. A process that was frozen in that moment is not waited for:
        then nobody gives way to this start."""
        for _ in range(TRIES):
            try:
                return HeldStart(self._locked(fcntl.LOCK_SH | fcntl.LOCK_NB))
            except BlockingIOError:
                time.sleep(PAUSE_S)
        return HeldStart(None)

    def are_under_way(self) -> bool:
        if self._path is None or not self._path.exists():
            return False
        try:
            file = self._locked(fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        if file is not None:
            os.close(file)
        return False

    def _locked(self, how: int) -> int | None:
        """The open file; None: it cannot be opened."""
        if self._path is None:
            return None
        file = None
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(file, how)
        except OSError as error:
            if file is not None:
                with contextlib.suppress(OSError):
                    os.close(file)
            if isinstance(error, BlockingIOError):
                raise
            return None
        return file

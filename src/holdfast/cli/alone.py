"""Run one of our own programs to its end, in a process of its own (it may need a JVM, which should not stay).

In a session of its own, too: the terminal sends Ctrl-C to everything in the foreground, and a program that dies of it
would look like one that failed. Here only the command hears it, and ends what it has started.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import typer

from holdfast.runtime.node import leash

LOOK_S = 0.1
#: What a shell says of a command that was ended by Ctrl-C; `main` adds the line.
INTERRUPTED = 130


def run_alone(
    arguments: list[str],
    *,
    limit_s: float,
    given: str = "",
    told: threading.Event | None = None,
    cwd: str | None = None,
    look: Callable[[], None] = lambda: None,
) -> subprocess.CompletedProcess[str]:
    """`python ARGUMENTS`, `given` at its stdin. Raises TimeoutExpired, or ends this command when it is `told` to.
    Meanwhile it calls `look` again and again."""
    command = [sys.executable, "-I", "-S", leash.__file__, str(os.getpid()), sys.executable, *arguments]
    process = subprocess.Popen(
        command,
        cwd=cwd,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    left: str | None = given  # said once, however often it is asked for an answer
    until = time.monotonic() + limit_s
    try:
        while True:
            if told is not None and told.is_set():
                raise typer.Exit(INTERRUPTED)
            try:
                out, err = process.communicate(left, timeout=LOOK_S)
                return subprocess.CompletedProcess(command, process.returncode, out, err)
            except subprocess.TimeoutExpired:
                left = None
                look()
                if time.monotonic() > until:
                    raise
    finally:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # and its JVM
            process.wait()

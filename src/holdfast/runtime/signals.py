"""Signals that end a process in good order: Ctrl-C, a service manager's, Ctrl-backslash, a terminal that was closed.

A terminal that was closed takes no more lines, and a process must not fail for that while it stops: what went to the
terminal goes nowhere from then on. Under `nohup` a closed terminal is to be ignored, and stays so.

A handler takes no lock. It runs in the middle of whatever the main thread does, which may hold that very lock: a second
signal right after the first once found the first handler inside `Event.set`, and the process hung for good. So it only
writes a byte, and a thread that waits for it does the rest.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
#: Whoever started this process may have them ignored: `nohup` the first, a shell's `&` the second.
_MAY_BE_IGNORED = (signal.SIGHUP, signal.SIGQUIT)


def on_end(end: Callable[[], None]) -> dict[signal.Signals, Any]:
    """Call `end` once on any of them, on a thread of its own, instead of dying of it; the handlers that were there."""
    terminal = [handle for handle in (1, 2) if os.isatty(handle)]
    reading, writing = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(writing, False)

    def told(number: int, _: object) -> None:
        if number == signal.SIGHUP and terminal:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            for handle in terminal:
                os.dup2(nowhere, handle)
            os.close(nowhere)
        with contextlib.suppress(BlockingIOError):  # thousands came before it
            os.write(writing, b"x")

    def wait() -> None:
        if os.read(reading, 1):
            end()

    threading.Thread(target=wait, name="signals", daemon=True).start()
    ignored = [sign for sign in _MAY_BE_IGNORED if signal.getsignal(sign) is signal.SIG_IGN]
    return {sign: signal.signal(sign, told) for sign in ENDS if sign not in ignored}

"""Signals that end a process in good order: Ctrl-C, a service manager's, Ctrl-backslash, a terminal that was closed.

A terminal that was closed takes no more lines, and a process must not fail for that while it stops: what went to the
terminal goes nowhere from then on. Under `nohup` a closed terminal is to be ignored, and stays so.

No handler of ours does anything. One that runs in Python runs on the main thread, in the middle of whatever that does:
it must take no lock, since the main thread may hold it. And it may never run: a kernel may give a signal to any thread,
and a main thread that waits for a lock is not woken up by that. So Python's own handler in C, which runs at once and
wherever the signal arrives, writes the signal's number into a pipe (`signal.set_wakeup_fd`), and a thread that waits
there does the rest.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
#: Whoever started this process may have them ignored: `nohup` the first, a shell's `&` the second.
_MAY_BE_IGNORED = (signal.SIGHUP, signal.SIGQUIT)


def on_end(end: Callable[[], None]) -> Callable[[], None]:
    """Call `end` once on any of them, on a thread of its own, instead of dying of it; how to have it as before."""
    terminal = [handle for handle in (1, 2) if os.isatty(handle)]
    reading, writing = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(writing, False)

    def wait() -> None:
        ended = False
        while numbers := os.read(reading, 64):
            if signal.SIGHUP in numbers and terminal:
                _let_go(terminal)
            if not ended and any(sign in numbers for sign in ENDS):
                ended = True
                end()
        os.close(reading)

    threading.Thread(target=wait, name="signals", daemon=True).start()
    ignored = [sign for sign in _MAY_BE_IGNORED if signal.getsignal(sign) is signal.SIG_IGN]
    before = {sign: signal.signal(sign, _noticed) for sign in ENDS if sign not in ignored}
    fd_before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)  # thousands came before it: it is full

    def restore() -> None:
        signal.set_wakeup_fd(fd_before)
        for sign, handler in before.items():
            signal.signal(sign, handler)
        os.close(writing)  # the thread ends

    return restore


def _noticed(number: int, frame: object) -> None:
    """The pipe has its number already."""


def _let_go(handles: list[int]) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for handle in handles:
        os.dup2(nowhere, handle)
    os.close(nowhere)

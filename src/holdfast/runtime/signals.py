"""Signals that end a process in good order: Ctrl-C, a service manager's, Ctrl-backslash, a terminal that was closed.

A terminal that was closed takes no more lines, and a process must not fail for that while it stops: what went to the
terminal goes nowhere from then on. Under `nohup` a closed terminal is to be ignored, and stays so.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
#: Whoever started this process may have them ignored: `nohup` the first, a shell's `&` the second.
_MAY_BE_IGNORED = (signal.SIGHUP, signal.SIGQUIT)


def on_end(end: Callable[[], None]) -> dict[signal.Signals, Any]:
    """Call `end` on any of them, instead of dying of it; the handlers that were there before."""
    terminal = [handle for handle in (1, 2) if os.isatty(handle)]

    def told(number: int, _: object) -> None:
        if number == signal.SIGHUP and terminal:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            for handle in terminal:
                os.dup2(nowhere, handle)
            os.close(nowhere)
        end()

    ignored = [sign for sign in _MAY_BE_IGNORED if signal.getsignal(sign) is signal.SIG_IGN]
    return {sign: signal.signal(sign, told) for sign in ENDS if sign not in ignored}

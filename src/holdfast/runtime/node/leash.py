"""Run a command that dies with its parent: `python -I -S leash.py PARENT_PID command …`.

The kernel kills a driver process the moment its node is gone (PR_SET_PDEATHSIG), however the node went. This is a
step of its own before `exec`, because running Python code between fork and exec of a process with threads may hang.

What the command has started is not on its leash: a JVM goes on for a while, and may write to a checkpoint that the next
driver reads already. So a command that leads a group of processes gets a guard, who kills the group when it is gone.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        if os.getpgrp() == os.getpid():
            _guard()
        _die_with_parent(signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)  # it died before the leash was on
    os.execvp(command[0], command)


def _die_with_parent(number: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def _guard() -> None:
    """A child of the command's, of its group: outlives it by a moment."""
    parent = os.getpid()
    if os.fork():
        return
    signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))
    _die_with_parent(signal.SIGTERM)
    if os.getppid() != parent:
        os.killpg(0, signal.SIGKILL)
    for number in range(3):
        os.close(number)  # whoever reads what the command says must hear its end
    while True:
        signal.pause()


if __name__ == "__main__":
    main()

"""Run a command that dies with its parent: `python -I -S leash.py PARENT_PID command …`.

The kernel kills a stage's process the moment its node is gone (PR_SET_PDEATHSIG), however the node went. This is a
step of its own before `exec`, because running Python code between fork and exec of a process with threads may hang.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)  # it died before the leash was on
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()

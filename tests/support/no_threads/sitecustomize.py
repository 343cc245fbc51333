"""On the path of a node's process: no thread can be started while the file that HOLDFAST_TEST_NO_THREADS names exists.

As Python says it at the limit of a user or of a control group (RLIMIT_NPROC, pids.max), which binds no root.
"""

import os
import threading

_NONE = os.environ["HOLDFAST_TEST_NO_THREADS"]
_start = threading.Thread.start


def _start_if_there_is_one(thread: threading.Thread) -> None:
    if os.path.exists(_NONE):
        raise RuntimeError("can't start new thread")
    _start(thread)


threading.Thread.start = _start_if_there_is_one

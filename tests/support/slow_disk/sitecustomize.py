"""On the path of a node's process: its disk takes no spill while the file that HOLDFAST_TEST_SLOW names exists.

The journal is on another disk, so to speak: only spill files wait.
"""

import os
import time

LIMIT_S = 60.0
_SLOW = os.environ["HOLDFAST_TEST_SLOW"]
_fdatasync = os.fdatasync


def _wait_and_sync(handle: int) -> None:
    until = time.monotonic() + LIMIT_S
    if "/spill/" in os.readlink(f"/proc/self/fd/{handle}"):
        while os.path.exists(_SLOW) and time.monotonic() < until:
            time.sleep(0.01)
    _fdatasync(handle)


os.fdatasync = _wait_and_sync

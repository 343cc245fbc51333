"""What takes a machine's CPU, memory or disk away from others. Run as a program of its own, without our package:

cpu SECONDS SHARE         use SHARE of a core (0.6: 60%)
memory SECONDS MEGABYTES  touch so much memory over and over
disk SECONDS DIRECTORY    write there and sync, as fast as the disk takes it; 16 MB are rewritten, and gone at the end

It ends after SECONDS by itself, and at once when whoever started it is gone (its standard input ends).
"""

from __future__ import annotations

import os
import select
import sys
import time

#: A share of a core is a share of each of these: shorter than any heartbeat.
SLICE_S = 0.02
PAGE = 4096
FILE_BYTES, PIECE_BYTES = 16 << 20, 1 << 20


def wanted(until: float, wait_s: float = 0.0) -> bool:
    """Go on? Waits so long before it looks."""
    left = until - time.monotonic()
    return left > 0 and not select.select([sys.stdin], [], [], min(wait_s, left))[0]


def cpu(until: float, share: float) -> None:
    """Be busy in each slice until the share is used up. What others took of a slice is not made good later."""
    while wanted(until):
        begun, used = time.monotonic(), time.process_time()
        while time.process_time() - used < share * SLICE_S and time.monotonic() - begun < SLICE_S:
            pass
        rest = SLICE_S - (time.monotonic() - begun)
        if rest > 0 and not wanted(until, rest):
            return


def memory(until: float, megabytes: int) -> None:
    taken = bytearray(megabytes << 20)
    while wanted(until):
        for start in range(0, len(taken), 4 << 20):
            taken[start : start + (4 << 20) : PAGE] = b"x" * len(range(start, min(start + (4 << 20), len(taken)), PAGE))


def disk(until: float, directory: str) -> None:
    path = os.path.join(directory, f"hog-{os.getpid()}")
    piece = os.urandom(PIECE_BYTES)
    handle = os.open(path, os.O_CREAT | os.O_RDWR)
    try:
        at = 0
        while wanted(until):
            os.pwrite(handle, piece, at)
            os.fsync(handle)
            at = (at + PIECE_BYTES) % FILE_BYTES
    finally:
        os.close(handle)
        os.unlink(path)


if __name__ == "__main__":
    what, seconds, given = sys.argv[1:4]
    end = time.monotonic() + float(seconds)
    if what == "cpu":
        cpu(end, float(given))
    elif what == "memory":
        memory(end, int(given))
    else:
        disk(end, given)

"""What the kernel says of the CPUs: how busy all of them are, and how long one thread has waited for one (Linux).

Files stay open and are read from their beginning again, which is all that a sample costs. Elsewhere than on Linux
nothing is known, and nothing is made up.
"""

from __future__ import annotations

import contextlib
import os

#: user nice system idle iowait irq softirq steal: the first line of /proc/stat.
_FIELDS = 8


class CpuClock:
    """Of the whole machine."""

    def __init__(self) -> None:
        self._file = _opened("/proc/stat")
        self._last = self._read()
        #: Of the last look, the part that another machine on the same hardware took.
        self.stolen = 0.0

    def busy(self) -> float:
        """Which part of all CPUs was not idle since the last look; 0 where that is not known."""
        before, now = self._last, self._read()
        if not now or not before or sum(now) <= sum(before):
            return 0.0
        self._last = now
        spent = [after - sooner for sooner, after in zip(before, now, strict=True)]
        self.stolen = spent[7] / sum(spent)
        return 1 - (spent[3] + spent[4]) / sum(spent)

    def _read(self) -> list[int]:
        if self._file < 0:
            return []
        line = os.pread(self._file, 256, 0).partition(b"\n")[0].split()
        return [int(field) for field in line[1 : 1 + _FIELDS]]

    def close(self) -> None:
        self._file = _closed(self._file)


class RunQueue:
    """Of one thread of this process."""

    def __init__(self, thread_id: int) -> None:
        self._file = _opened(f"/proc/self/task/{thread_id}/schedstat")
        self.waited_ns = self._read()

    def waited(self) -> int:
        """Nanoseconds since the last look in which the thread wanted a CPU and had none."""
        now_ns = self._read()
        since_ns, self.waited_ns = now_ns - self.waited_ns, now_ns
        return max(0, since_ns)

    def _read(self) -> int:
        with contextlib.suppress(OSError, IndexError, ValueError):  # the thread has ended
            if self._file >= 0:
                return int(os.pread(self._file, 64, 0).split()[1])
        return 0

    def close(self) -> None:
        self._file = _closed(self._file)


def _opened(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY)
    except OSError:
        return -1


def _closed(file: int) -> int:
    if file >= 0:
        os.close(file)
    return -1

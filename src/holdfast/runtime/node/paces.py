"""How long starts and take-overs of stages take on this cluster: what `status` says that the next one would cost.

Measured whenever one happens: from the word to start until the first batch is through, by how warm the stage was then;
and how long a JVM takes to come up. A mean in which the last ones count most, since machines get busier and quieter.
What no node has measured yet is a guess (two cores that have other work, too). Each node keeps its means in a file of
the run's directory, which all of them share, and reads those of the others: a node that has seen no take-over knows all
the same. Without that directory (on a disk that fails) it knows its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from pathlib import Path

#: Seconds until a session is up, and from then on, by what a standby has said of itself last. A start without a standby
#: in a process that is up is one at `session`.
GUESSES = {"up": 12.0, "session": 9.0, "planned": 4.0, "ready": 0.6}
#: Of stages without Spark.
GUESSES |= {"light up": 2.0, "light session": 0.5, "light ready": 0.1}
#: What the last one counts in the mean; and for how many the mean of a node counts among the others' at most.
SHARE, COUNT_MAX = 0.3, 10
#: How often the others' files are read.
READ_S = 5.0
#: More than this between start and first batch that neither took: the source had nothing to read.
IDLE_S = 5.0


def pace(step: str, light: bool) -> str:
    """Under which name a step is measured: without Spark it takes much less time."""
    return f"light {step}" if light else step


def took_s(asked: float, ran: float, now: float, batch_s: float) -> float:
    """What a start has cost whose first batch is through now: it was asked for, it ran, the batch took `batch_s`."""
    waited = now - ran - batch_s
    return now - asked if waited < IDLE_S else ran - asked + batch_s


class Paces:
    def __init__(self, directory: Path | None, name: str = "") -> None:
        self._file = directory / name if directory is not None else None
        #: Mean and number, by step: of this node, and of the others by their files.
        self._own: dict[str, tuple[float, int]] = {}
        self._others: list[dict[str, tuple[float, int]]] = []
        self._read_at = 0.0
        self._lock = threading.Lock()

    def add(self, step: str, seconds: float) -> None:
        with self._lock:
            mean, count = self._own.get(step, (seconds, 0))
            self._own[step] = (mean + SHARE * (seconds - mean), count + 1)
            self._write()

    def seconds(self, step: str) -> float:
        """The mean over all nodes; a guess where none has seen one."""
        with self._lock:
            self._read()
            known = [means[step] for means in (self._own, *self._others) if step in means]
        weights = [min(count, COUNT_MAX) for _, count in known]
        if not sum(weights):
            return GUESSES[step]
        return sum(mean * weight for (mean, _), weight in zip(known, weights, strict=True)) / sum(weights)

    def _write(self) -> None:
        """Whole or not at all: others read it at any time."""
        if self._file is None:
            return
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            part = self._file.with_name(f".{self._file.name}.{os.getpid()}")
            part.write_text(json.dumps(self._own))
            os.replace(part, self._file)

    def _read(self) -> None:
        now = time.monotonic()
        if self._file is None or (self._read_at and now - self._read_at < READ_S):
            return
        self._read_at = now
        found = []
        with contextlib.suppress(OSError):
            for path in sorted(self._file.parent.glob("[!.]*")):
                if path.name != self._file.name:
                    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
                        told = json.loads(path.read_text())
                        found.append({step: (float(mean), int(count)) for step, (mean, count) in told.items()})
        self._others = found

"""A node's diary: one JSON line per event, with the wall time and a sentence that a person can read.

What happens often (captures, damaged messages, refusals) is counted and told at most once a second, so that the
diary stays readable and small. The last events are kept in memory too, for whoever asks the node itself (its `events`
action); `holdfast events` reads the files.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections import deque
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

#: Every kind of event, of nodes, their stages and the run as a whole. `holdfast events --kind` knows these.
KINDS = frozenset(
    (
        # failures and what follows
        "suspicion", "unreachable", "dismissed", "no-quorum", "spared", "promotion", "joining", "demoted", "dropped",
        "stable", "degraded", "lost", "unit-failed", "paste-failed", "misfit", "lease-lapsed", "trimmed", "broken",
        # who decides
        "campaign", "elected", "record",
        # what was refused
        "fenced", "turned-away", "refused", "damaged", "foreign", "unsendable", "untold",
        # a node's life
        "metrics", "waiting", "compiling", "started", "incomplete", "undeployed", "finish", "stopped", "clock",
        "journal-damaged",
        # rows
        "captures", "queues", "disk-full", "disk-again", "spill-late",
        # stages
        "stage-start", "stage-ready", "stage-running", "stage-batch", "stage-late", "stage-waiting", "stage-odd",
        "stage-silent", "stage-failed", "stage-died", "stage-finished", "stage-end",
        # the run
        "kill", "prescribed", "sla-unmet", "sla-failed", "finished",
    )
)  # fmt: skip
KEPT = 5_000
#: A wall clock that moves by more than this against the monotonic one has jumped: clocks that are set right drift less.
JUMP_S = 1.0
FILE_BYTES_MAX = 16 << 20


class EventLog:
    """Safe to use from any thread. Never raises: a diary that cannot be written must not stop a node."""

    def __init__(self, path: Path, node: str, echo: TextIO | None = None) -> None:
        self.path = path
        self.node = node
        #: Where else every event goes: `holdfast node --json`.
        self._echo = echo
        self.lost = 0
        self._lock = threading.Lock()
        self._kept: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._number = 0
        self._wall_ahead_s = time.time() - time.monotonic()
        #: When each rate-limited key was last told, and how often it happened since.
        self._told: dict[object, tuple[float, int]] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115 (as long as the process)

    def write(self, event: str, text: str, **fields: Any) -> None:
        with self._lock:
            self._look_at_clock()
            self._enter(event, text, fields)

    def _look_at_clock(self) -> None:
        """Nothing goes by the wall clock, but who reads this diary should know that its times are not one line."""
        ahead_s = time.time() - time.monotonic()
        jumped_s, self._wall_ahead_s = ahead_s - self._wall_ahead_s, ahead_s
        if abs(jumped_s) > JUMP_S:
            where = "ahead" if jumped_s > 0 else "back"
            text = f"The clock of {self.node}'s machine jumped {where} by {abs(jumped_s):,.1f} s."
            text += " Only the times in this diary go by it; set the clock right to read diaries side by side."
            self._enter("clock", text, {"seconds": round(jumped_s, 3)})

    def _enter(self, event: str, text: str, fields: dict[str, Any]) -> None:
        self._number += 1
        entry = {
            "number": self._number,
            "time": datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="milliseconds"),
            "node": self.node,
            "event": event,
            "text": text,
            **fields,
        }
        self._kept.append(entry)
        line = json.dumps(entry, default=str) + "\n"
        if self._echo is not None:
            with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
                self._echo.write(line)
                self._echo.flush()
        try:
            self._file.write(line)
            if self._file.tell() > FILE_BYTES_MAX:
                self._file.close()
                os.replace(self.path, self.path.with_suffix(".1.jsonl"))
                self._file = open(self.path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115
        except (OSError, ValueError):
            self.lost += 1

    def limited(self, key: object, every_s: float, event: str, text: str, **fields: Any) -> None:
        """Tell it at most once in so many seconds; `times` says how often it happened since."""
        now = time.monotonic()
        with self._lock:
            last, times = self._told.get(key, (-every_s, 0))
            if now - last < every_s:
                self._told[key] = (last, times + 1)
                return
            self._told[key] = (now, 0)
            if len(self._told) > 10_000:
                self._told.clear()
        self.write(event, text, **fields, **({"times": times + 1} if times else {}))

    def since(self, number: int, limit: int = 1_000) -> list[dict[str, Any]]:
        with self._lock:
            return [entry for entry in self._kept if entry["number"] > number][:limit]

    @property
    def last(self) -> int:
        return self._number

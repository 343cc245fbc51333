"""A node's event log: one JSON line per event, with the wall time and a sentence that a person can read.

What happens often (captures, damaged messages, refusals) is counted and told at most once a second, so that the
log stays readable and small. The last events are kept in memory too, for whoever asks the node itself (its `events`
action); `holdfast events` reads the files.

Whoever tells an event waits for nobody: threads of their own write to the disk and to stdout. A disk that hangs for
seconds would otherwise stop the heartbeats of a node, and others would take it for dead.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from holdfast.model.notes import all_notes

#: Every kind of event, of nodes, their stages and the run as a whole. `holdfast events --kind` knows these. A note says
#: itself as which kind it is told.
KINDS = frozenset(note.told.event for note in all_notes() if note.told) | frozenset(
    (
        # failures, what follows, and who decides
        "promotion", "recovered", "stable", "record", "broken",
        # what was refused
        "refused", "turned-away", "hung-up", "left-out", "damaged", "impostor", "unsendable", "untold",
        # a node's life
        "metrics", "waiting", "compiling", "started", "incomplete", "undeployed", "finish", "stopped", "clock",
        "left", "journal-damaged", "spill-damaged", "unwritten", "descriptors",
        # rows
        "captures", "queues", "disk-full", "set-aside",
        # the stable store
        "checkpoint", "checkpoint-bad", "checkpoints-kept", "store-waits", "restored", "replayed",
        "clean-point", "savepoint",
        "peace-alone", "peace-elsewhere",
        # stages, and the processes they are in
        "stage-start", "stage-session", "stage-planned", "stage-ready", "stage-running", "stage-batch", "stage-late",
        "stage-paused", "stage-micro-batches", "stage-backlog",
        "stage-bad", "stage-ahead", "stage-waiting", "stage-odd", "stage-silent", "stage-stuck", "stage-failed",
        "stage-died", "stage-finished", "stage-end", "stage-alone", "driver-start", "driver-end",
        # the run
        "kill", "prescribed", "sla-unmet", "sla-failed", "finished",
    )
)  # fmt: skip
#: What a node keeps of its latest events for whoever asks it, as lines: an entry is several times as large as its line.
KEPT_BYTES = 2 << 20
#: A wall clock that moves by more than this against the monotonic one has jumped: clocks that are set right drift less.
JUMP_S = 1.0
FILE_BYTES_MAX = 16 << 20
#: So many events wait for a slow disk or reader; what comes beyond that is counted only.
WAITING_MAX = 10_000
#: Lines a minute about what strangers can cause, of each kind of event. What comes beyond that is counted only.
TROUBLES_MAX = 20
MINUTE_S = 60.0
#: A node that ends waits so long for its last events to be written.
FLUSH_S = 5.0


class Lines:
    """Lines on their way to a place that may be slow: a thread of its own writes them."""

    def __init__(self, write: Callable[[str], None], on_lost: Callable[[int], None]) -> None:
        self._write = write
        #: Told how many were lost, once there is room again and the place takes lines again.
        self._on_lost = on_lost
        self.lost = 0
        self._lost_told = 0
        self._waiting: deque[str] = deque()
        self._writing = False
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="events", daemon=True).start()

    def put(self, line: str) -> None:
        with self._changed:
            if len(self._waiting) >= WAITING_MAX:
                self.lost += 1
                return
            self._waiting.append(line)
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until all is written; False: it is not."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._writing, timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting)
                line = self._waiting.popleft()
                self._writing = True
            try:
                self._write(line)
            except (OSError, ValueError):
                with self._changed:
                    self.lost += 1
                continue
            with self._changed:
                # not while it is nearly full: each line that is written would have another one say that more were lost
                has_room = len(self._waiting) <= WAITING_MAX // 2
                lost = self.lost - self._lost_told if has_room else 0
                self._lost_told += lost
            if lost:
                self._on_lost(lost)


class EventLog:
    """Safe to use from any thread. Never raises: an event log that cannot be written must not stop a node."""

    def __init__(self, path: Path, node: str, echo: TextIO | None = None) -> None:
        self.path = path
        self.node = node
        self._lock = threading.Lock()
        self._kept: deque[tuple[int, str]] = deque()
        self._kept_bytes = 0
        self._number = 0
        self._wall_ahead_s = time.time() - time.monotonic()
        #: When each rate-limited key was last told, and how often it happened since.
        self._told: dict[object, tuple[float, int]] = {}
        #: Kinds of trouble: since when they are counted, and how many lines that time has had.
        self._troubles: dict[str, tuple[float, int]] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 (as long as the process)
        self._torn = False
        self._disk = Lines(self._to_file, lambda lost: self._tell_lost(lost, f"written to {path}"))
        #: Where else every event goes: `holdfast node --json`. Its reader may be slow: the disk must not wait for it.
        self._echo = Lines(_printer(echo), lambda lost: self._tell_lost(lost, "printed")) if echo is not None else None

    @property
    def lost(self) -> int:
        """Events that are not in the file."""
        return self._disk.lost

    def flush(self, timeout_s: float = FLUSH_S) -> None:
        """Wait until all that was told is written, but not without a limit: at the end of the process."""
        until = time.monotonic() + timeout_s
        for lines in (self._disk, self._echo):
            if lines is not None:
                lines.flush(max(0.0, until - time.monotonic()))

    def write(self, event: str, text: str, **fields: Any) -> None:
        with self._lock:
            self._look_at_clock()
            self._tell_left_out()
            self._enter(event, text, fields)

    def _look_at_clock(self) -> None:
        """Nothing depends on the wall clock, but a reader of this log should know when its times jump."""
        ahead_s = time.time() - time.monotonic()
        jumped_s, self._wall_ahead_s = ahead_s - self._wall_ahead_s, ahead_s
        if abs(jumped_s) > JUMP_S:
            where = "ahead" if jumped_s > 0 else "back"
            text = f"The clock of {self.node}'s machine jumped {where} by {abs(jumped_s):,.1f} s."
            text += " Only the times in this event log depend on it; logs of several nodes compare badly now."
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
        line = json.dumps(entry, default=str) + "\n"
        self._keep(line)
        self._disk.put(line)
        if self._echo is not None:
            self._echo.put(line)

    def _keep(self, line: str) -> None:
        self._kept.append((self._number, line))
        self._kept_bytes += len(line)
        while self._kept_bytes > KEPT_BYTES:
            self._kept_bytes -= len(self._kept.popleft()[1])

    def _to_file(self, line: str) -> None:
        """On the disk's thread."""
        rest = memoryview((b"\n" if self._torn else b"") + line.encode())  # what follows half a line is one of its own
        self._torn = True
        while rest:
            rest = rest[self._file.write(rest) :]
        self._torn = False
        if self._file.tell() > FILE_BYTES_MAX:
            with contextlib.suppress(OSError):  # no descriptor or no space: the old one goes on
                self._turn_over()

    def _turn_over(self) -> None:
        fresh = open(self.path.with_suffix(".new"), "wb", buffering=0)  # noqa: SIM115
        os.replace(self.path, self.path.with_suffix(".1.jsonl"))
        os.replace(fresh.name, self.path)
        self._file.close()
        self._file = fresh

    def _tell_lost(self, lost: int, how: str) -> None:
        self.write("unwritten", f"{lost:,} events could not be {how} and are missing here.", lost=lost)

    def limited(self, key: object, every_s: float, event: str, text: str, **fields: Any) -> None:
        """Tell it at most once in this many seconds; `times` says how often it happened since."""
        with self._lock:
            times = self._times(key, every_s, time.monotonic())
        if times:
            self.write(event, text, **fields, **({"times": times} if times > 1 else {}))

    def _times(self, key: object, every_s: float, now: float) -> int:
        """How often this has happened since it was told last; 0: that was just now, and it is not to be told."""
        last, times = self._told.get(key, (-every_s, 0))
        if now - last < every_s:
            self._told[key] = (last, times + 1)
            return 0
        if len(self._told) > 10_000:
            self._told.clear()
        self._told[key] = (now, 0)
        return times + 1

    def trouble(self, event: str, peer: str, text: str) -> None:
        """What others cause, and perhaps mean: once in 5 s of one peer, and a limited number of lines a minute."""
        now = time.monotonic()
        with self._lock:
            self._tell_left_out()
            since, lines = self._troubles.get(event, (now, 0))
            times = self._times((event, peer), 5.0, now) if lines < TROUBLES_MAX else 1
            if times:
                self._troubles[event] = (since, lines + 1)
        if times and lines < TROUBLES_MAX:
            self.write(event, text, peer=peer, **({"times": times} if times > 1 else {}))

    def _tell_left_out(self) -> None:
        now = time.monotonic()
        for event, (since, lines) in list(self._troubles.items()):
            if now - since >= MINUTE_S:
                del self._troubles[event]
                if (left_out := lines - TROUBLES_MAX) > 0:
                    text = f"{left_out:,} more events of kind {event!r} within {now - since:.0f} s were left out."
                    self._enter("left-out", text, {"kind": event, "left_out": left_out})

    def since(self, number: int, limit: int = 1_000) -> list[dict[str, Any]]:
        with self._lock:
            lines = list(islice((line for at, line in self._kept if at > number), limit))
        return [json.loads(line) for line in lines]

    @property
    def last(self) -> int:
        return self._number


def _printer(stream: TextIO) -> Callable[[str], None]:
    def write(line: str) -> None:
        stream.write(line)
        stream.flush()

    return write

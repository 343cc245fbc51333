"""The event logs of all nodes as one story: `holdfast events`.

Every node writes one JSON object per line: when, who, what, and a sentence. Clocks of machines differ a little, so the
order of two nodes' events is as good as their clocks; within a node it is exact.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

Event = dict[str, Any]


def read_events(directory: Path) -> list[Event]:
    """All events of a run, oldest first. A last line that is being written is left out."""
    return EventLogs(directory).news()


class EventLogs:
    """The event logs of a run, read on from where they were read before."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        #: How far each file was read, by device and inode: an event log that has grown long gets another name.
        self._read: dict[tuple[int, int], int] = {}

    def news(self) -> list[Event]:
        """What was not told before, oldest first."""
        events: list[Event] = []
        for path in [*sorted(self._directory.glob("nodes/*/events*.jsonl")), self._directory / "events.jsonl"]:
            events.extend(self._lines(path))
        return sorted(events, key=lambda event: str(event.get("time", "")))

    def _lines(self, path: Path) -> list[Event]:
        try:
            with path.open("rb") as file:
                found = os.fstat(file.fileno())
                which = (found.st_dev, found.st_ino)
                at = self._read.get(which, 0)
                if at > found.st_size:
                    at = 0  # a new file that got the inode of one that is gone
                file.seek(at)
                text, _, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:  # not yet, or renamed just now: then it is found the next time
            return []
        self._read[which] = at + len(text) + 1 if text else at
        events = []
        for line in text.splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict):
                events.append(event)
        return events


def write_event(directory: Path, kind: str, text: str, **more: object) -> None:
    """An event of the run as a whole, not of a node (kills in a demo, prescriptions)."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    with (directory / "events.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"time": now, "node": "run", "event": kind, "text": text, **more}) + "\n")


def sentence(event: Event) -> str:
    clock = str(event.get("time", "")).partition("T")[2].partition("+")[0]
    return f"{clock:<12}  {event.get('node', '?'):<4} {event.get('text', '')}"

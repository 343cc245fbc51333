"""The event logs of all nodes as one story: `holdfast events`.

Every node writes one JSON object per line: when, who, what, and a sentence. Clocks of machines differ a little, so the
order of two nodes' events is as good as their clocks; within a node it is exact.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

Event = dict[str, Any]


def read_events(directory: Path) -> list[Event]:
    """All events of a run, oldest first. A last line that is being written is left out."""
    events: list[Event] = []
    for file in sorted(directory.glob("nodes/*/events*.jsonl")) + sorted(directory.glob("events.jsonl")):
        events.extend(_lines(file))
    return sorted(events, key=lambda event: str(event.get("time", "")))


def _lines(file: Path) -> Iterator[Event]:
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            try:
                event = json.loads(line)
            except json.JSONDecodeError:
                continue
            if isinstance(event, dict):
                yield event


def write_event(directory: Path, kind: str, text: str, **more: object) -> None:
    """An event of the run as a whole, not of a node (kills in a demo, prescriptions)."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    with (directory / "events.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"time": now, "node": "run", "event": kind, "text": text, **more}) + "\n")


def sentence(event: Event) -> str:
    clock = str(event.get("time", "")).partition("T")[2].partition("+")[0]
    return f"{clock:<12}  {event.get('node', '?'):<4} {event.get('text', '')}"

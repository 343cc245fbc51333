"""The event logs of all nodes as one story: `holdfast events`.

Every node writes one JSON object per line: when, who, what, and a sentence. Clocks of machines differ a little, so the
order of two nodes' events is as good as their clocks; within a node it is exact.

Most events are routine: a batch, a checkpoint, a record that every node hears of. Who asks what happened wants the rest
(`StoryTeller`): failures and what followed, moves, warnings, starts, ends, switches. What every node tells is one line.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

Event = dict[str, Any]

#: Kinds of events that come all the time while everything is well, or that only say how something else was done which
#: is told too (every promotion follows a record, ends with `stable`, and drops and joins copies on its way).
ROUTINE = frozenset(
    (
        "record", "campaign", "joining", "demoted", "dropped", "fenced", "turned-away", "misfit", "scan-again",
        "captures", "queues", "checkpoint", "checkpoints-kept", "restoring", "replayed",
        "metrics", "driver-start", "stage-batch", "stage-session", "stage-planned", "stage-ready",
    )
)  # fmt: skip
#: The epoch in events about the standby of a stage: it starts and ends beside one that runs.
STANDS_BY = 0
#: What several nodes say in the same words within this time is one thing that happened.
TOGETHER_S = 60.0


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


def is_routine(event: Event) -> bool:
    kind = event.get("event")
    return kind in ROUTINE or (kind in ("stage-start", "stage-end") and event.get("epoch") == STANDS_BY)


class StoryTeller:
    """Which events are told to a person, and how many were left out."""

    def __init__(self, *, routine: bool = False) -> None:
        #: Routine events are told, too.
        self._routine = routine
        self.left_out: Counter[str] = Counter()
        #: Who said something last, and when.
        self._said: dict[tuple[str, str], tuple[str, float]] = {}

    def tells(self, event: Event) -> bool:
        if not self._routine and is_routine(event):
            self.left_out[str(event.get("event"))] += 1
            return False
        return not self._is_said(event)

    def _is_said(self, event: Event) -> bool:
        """By another node, just before."""
        key, node = (str(event.get("event")), str(event.get("text"))), str(event.get("node"))
        try:
            at = datetime.fromisoformat(str(event.get("time"))).timestamp()
        except ValueError:
            return False
        who, when = self._said.get(key, (node, at))
        if who != node and at - when <= TOGETHER_S:
            return True
        self._said[key] = (node, at)
        return False

    def last_line(self) -> str:
        """How many routine events are not shown, and how to see them; "": none."""
        count = sum(self.left_out.values())
        if not count:
            return ""
        kinds = self.left_out.most_common()
        most = ", ".join(f"{times:,} {kind}" for kind, times in kinds[:3]) + (", …" if len(kinds) > 3 else "")
        what = "1 routine event is" if count == 1 else f"{count:,} routine events are"
        return f"{what} not shown ({most}): --all shows all, --kind {kinds[0][0]} those of one kind."

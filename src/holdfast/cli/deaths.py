"""What a person who watches `holdfast run` without a live table has to hear: a node that died, its return, a take-over.

A line each, as it happens. Deaths are those of the processes that `run` started (`runtime/client/local.py`); take-overs
are read from the nodes' own events, and the shards that one node takes over from another at a time are one line.
"""

from __future__ import annotations

import signal
from collections import defaultdict
from contextlib import suppress
from typing import Any

from holdfast.errors import DAMAGED, LEFT
from holdfast.runtime.client.local import LocalNodes

from .story import Event, EventLogs, is_routine

#: Of shards that are taken over, this many are named.
SHOWN = 4


class Deaths:
    """Looked at once a second; what is new, a line each."""

    def __init__(self, nodes: LocalNodes, logs: EventLogs) -> None:
        self._nodes = nodes
        self._logs = logs
        self._logs.news()  # what was before is not news
        #: Nodes that have died, and have not answered since.
        self._dead: set[str] = set()
        #: The process that was found dead, by node: it is told once.
        self._told: dict[str, int] = {}

    def look(self, status: dict[str, Any]) -> list[str]:
        """`status`: as the nodes tell it now."""
        return [*self._died(), *self._came_back(status), *take_overs(self._logs.news())]

    def _died(self) -> list[str]:
        lines = []
        for name, process in sorted(self._nodes.processes.items()):
            code = process.poll()
            if code is None or self._told.get(name) == process.pid:
                continue
            self._told[name] = process.pid
            if code == 0:
                continue  # it was told to stop
            if code == LEFT:
                lines.append(f"node {name} has left the cluster for good")
                continue
            self._dead.add(name)
            stays = code == DAMAGED or name in self._nodes.retired or self._nodes.restart_s is None
            then = "it is not started again" if stays else f"it is started again after {self._nodes.restart_s:g} s"
            lines.append(f"node {name} has died ({how(code)}); {then}")
        return lines

    def _came_back(self, status: dict[str, Any]) -> list[str]:
        back = [
            name for name in sorted(self._dead & set(status["nodes"])) if self._nodes.processes[name].poll() is None
        ]
        self._dead -= set(back)
        return [f"node {name} is back" for name in back]


def how(code: int) -> str:
    """How a process ended."""
    if code < 0:
        with suppress(ValueError):
            return signal.Signals(-code).name
    return f"exit code {code}"


def take_overs(events: list[Event]) -> list[str]:
    """Shards that went to another node, and stages whose standby goes on."""
    shards: dict[str, list[str]] = defaultdict(list)
    lines = []
    for event in events:
        text = str(event.get("text", ""))
        if event.get("event") == "promotion" and " takes over " in text:
            shards[str(event.get("node"))].append(str(event.get("shard")))
        elif event.get("event") == "stage-start" and not is_routine(event) and " takes over" in text:
            lines.append(f"node {event.get('node')} takes over stage {event.get('stage')}: its standby goes on")
    for node, found in sorted(shards.items()):
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        lines.append(f"node {node} takes over {', '.join(sorted(found)[:SHOWN])}{more}")
    return lines

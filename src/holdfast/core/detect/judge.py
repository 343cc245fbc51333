"""What every method of detection has in common: it is told of heartbeats and of time, and answers with a level."""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol


class Level(IntEnum):
    #: Heard in time.
    GREEN = 0
    #: Suspicious: the first heartbeat is missing. Reason enough for what can be undone (a stand-in).
    YELLOW = 1
    #: Taken for dead. Reason to ask the coordinator for what cannot be undone.
    RED = 2


class Judge(Protocol):
    """One peer, as one method sees it."""

    #: When it was last heard.
    heard_ns: int

    def expect(self, interval_ns: int, now_ns: int) -> None:
        """From now on it says something every `interval_ns`."""
        ...

    def on_heard(self, now_ns: int) -> None: ...

    def level(self, now_ns: int) -> Level: ...

"""Stages that shall stand by on this node, and when those of them begin to that do not yet.

Not at once: what a standby takes while it starts is missing where others take over from a dead node at that moment. And
not while a stage of this machine starts that somebody waits for (`starts.py`), for as long as that may take.
"""

from __future__ import annotations

import time

from holdfast.model.ids import Asset
from holdfast.runtime.node.starts import GIVE_WAY_S_MAX, Starts


class Wanted:
    def __init__(self, starts: Starts) -> None:
        self._starts = starts
        self._stages: set[Asset] = set()
        #: When they may begin; not those that have.
        self._due: dict[Asset, float] = {}

    def add(self, stage: Asset, delay_s: float) -> None:
        self._stages.add(stage)
        self._due[stage] = time.monotonic() + delay_s

    def forget(self, stage: Asset) -> None:
        self._stages.discard(stage)
        self._due.pop(stage, None)

    def again(self, stage: Asset) -> None:
        """Its standby has died: it begins anew, if it is still wanted."""
        if stage in self._stages:
            self._due[stage] = time.monotonic()

    def waiting(self) -> list[Asset]:
        return list(self._due)

    def take_due(self, now: float) -> list[Asset]:
        due = [stage for stage, at in self._due.items() if at <= now]
        if due and self._starts.are_under_way():
            due = [stage for stage in due if now - self._due[stage] > GIVE_WAY_S_MAX]
        for stage in due:
            del self._due[stage]
        return due

"""High-availability work of a node as tasks: captures that are due, captures that are held and not yet pasted.

Rows come first. A task runs in an idle moment (`Idle`), and at the latest with the next tick, so that a
node that is never idle is protected all the same. Which task runs is a scheduler's choice (cooperative-ha §5), a pure
function over what is there; `period` takes them in the order in which they came.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from holdfast.core.ready import Ready
from holdfast.model.ids import Asset

CAPTURE, PASTE = "capture", "paste"


class Task(msgspec.Struct, frozen=True):
    """One piece of work for one shard. `run` does it, or one piece of it, and says whether it is finished."""

    kind: str
    shard: Asset
    #: What it will take, as measured so far.
    cost_ns: int
    run: Callable[[int, Ready], bool]


class Scheduler(Protocol):
    def pick(self, tasks: list[Task], now_ns: int) -> Task | None:
        """The task to run now, if any."""
        ...


class Period:
    """Held captures first, in the order in which they came, then whatever has reached its period."""

    def pick(self, tasks: list[Task], now_ns: int) -> Task | None:
        return next((t for t in tasks if t.kind == PASTE), tasks[0] if tasks else None)


_SCHEDULERS: dict[str, Scheduler] = {"period": Period()}


def scheduler_of(name: str) -> Scheduler:
    return _SCHEDULERS[name]

"""High-availability work of a node as tasks, and who says which of them runs: schedulers (cooperative-ha §5).

Rows come first: a task runs in an idle moment (`Idle`). A capture has two bounds on its interval (§3.4). Before the
lower one, its period, it is not offered. Beyond the upper one it is *pressing*, and so is a capture that has been
held for as long and is not pasted, or one that something else waits for: an image that is being brought up, a shard
that hands over. What is pressing goes before everything else, and also runs with a tick, so that a node that is never
idle is protected all the same. So no scheduler can starve a task, and none can do more than change an order: what is
acknowledged, and what happens at a failure, does not depend on it.

    period        pastes, then captures, in the order in which they came; every one with the next tick, idle or not
    round_robin   whichever was not done for the longest time (the paper's baseline)
    whole         everything that a node runs at once, when nothing of it is under way (the second baseline)
    min_max       what helps the segment with the longest expected recovery time most (§5.3, figure 4)

Pastes from one sender are first in, first out: only the oldest of each is offered (`core/agenda.py`), since the sender
has chosen the order (§5.2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from holdfast.core.ready import Ready
from holdfast.core.recovery import HaSegment, Outlook
from holdfast.model.ids import Asset

CAPTURE, PASTE = "capture", "paste"


class Task(msgspec.Struct, frozen=True):
    """One piece of work for one shard. `run` does it, or one piece of it, and says whether it is finished."""

    kind: str
    shard: Asset
    #: What the next piece will take, as measured so far; and all of it.
    cost_ns: int
    run: Callable[[int, Ready], bool]
    whole_ns: int = 0
    #: Whom it helps; None: no segment, since there is no complete image.
    segment: HaSegment | None = None
    #: When a capture of it was last begun, or when what is to be pasted came.
    since_ns: int = 0
    #: By how much it makes a recovery shorter: of a capture, the work that need not be done again, less the pasting.
    gain_ns: int = 0
    #: It cannot wait for a better moment.
    pressing: bool = False


class Agenda(Protocol):
    """What could be done now for the sake of availability, and what is known about it."""

    @property
    def tasks(self) -> Sequence[Task]: ...

    @property
    def is_under_way(self) -> bool:
        """Is a capture of this node's shards not pasted yet?"""
        ...

    def outlook(self) -> Outlook:
        """Expected recovery times of what runs here, and of what is backed up here. Not free: asked for when needed."""
        ...


class Scheduler(Protocol):
    def pick(self, agenda: Agenda, *, idle: bool) -> Task | None:
        """The task to run now, if any. Not idle: a tick, while rows may be waiting."""
        ...


class Period:
    """Held captures first, in the order in which they came, then whatever has reached its period."""

    def pick(self, agenda: Agenda, *, idle: bool) -> Task | None:
        tasks = agenda.tasks
        return next((t for t in tasks if t.kind == PASTE), tasks[0] if tasks else None)


class RoundRobin:
    """What was not done for the longest time."""

    def pick(self, agenda: Agenda, *, idle: bool) -> Task | None:
        found = _pressing(agenda.tasks) or (list(agenda.tasks) if idle else [])
        return min(found, key=lambda task: task.since_ns, default=None)


class Whole:
    """One capture of all that runs here, as if it were one unit; in between, pastes in the order in which they came."""

    def pick(self, agenda: Agenda, *, idle: bool) -> Task | None:
        found = _pressing(agenda.tasks)
        if found or not idle:
            return min(found, key=lambda task: task.since_ns, default=None)
        paste = next((t for t in agenda.tasks if t.kind == PASTE), None)
        if paste is not None or agenda.is_under_way or not agenda.tasks:
            return paste
        return together(agenda.tasks)


class MinMax:
    """Figure 4: the best capture of the worst segment, or a paste for a segment that is worse still.

    What is compared is how long a segment would take to recover at the moment when the task is about to end. A capture
    that would bring nothing, since its pasting takes as long as what it saves, waits (until it is pressing). Where
    nothing can be captured for the worst segment, since all of it is on its way, the worst of the others gets the
    moment: the paper's figure would let it pass.
    """

    def pick(self, agenda: Agenda, *, idle: bool) -> Task | None:
        found = _pressing(agenda.tasks)
        if found or not idle:
            return min(found, key=lambda task: task.since_ns, default=None)
        captures = [task for task in agenda.tasks if task.kind == CAPTURE and task.gain_ns > 0]
        pastes = [task for task in agenda.tasks if task.kind == PASTE]
        if not captures and len(pastes) < 2:
            return pastes[0] if pastes else None
        outlook = agenda.outlook()
        best = _best_capture(captures, outlook)
        most_ns = _at_end(best, outlook) if best else -1
        for paste in pastes:
            if _at_end(paste, outlook) > most_ns:
                best, most_ns = paste, _at_end(paste, outlook)
        return best


def _best_capture(captures: list[Task], outlook: Outlook) -> Task | None:
    """Of those whose segment will be the worst when they end: the one that brings most for its cost."""
    if not captures:
        return None
    helps = [task for task in captures if task.segment]
    worst = [task for task in helps if _at_end(task, outlook) >= _query_at_end(task, outlook)]
    if not worst:
        most_ns = max(_at_end(task, outlook) for task in captures)
        worst = [task for task in captures if _at_end(task, outlook) == most_ns]
    return max(worst, key=lambda task: task.gain_ns / max(1, task.whole_ns))


def _at_end(task: Task, outlook: Outlook) -> int:
    return outlook.segment_ns(task.segment, task.whole_ns) if task.segment else 0


def _query_at_end(task: Task, outlook: Outlook) -> int:
    return outlook.query_ns(task.segment.primary, task.whole_ns) if task.segment else 0


def _pressing(tasks: Sequence[Task]) -> list[Task]:
    return [task for task in tasks if task.pressing]


def together(tasks: Sequence[Task]) -> Task:
    """Captures as one, which nothing interrupts."""

    def run(now_ns: int, ready: Ready) -> bool:
        for task in tasks:
            task.run(now_ns, ready)
        return True

    first, cost_ns = tasks[0], sum(task.cost_ns for task in tasks)
    since_ns, gain_ns = min(task.since_ns for task in tasks), sum(task.gain_ns for task in tasks)
    return Task(CAPTURE, first.shard, cost_ns, run, cost_ns, first.segment, since_ns, gain_ns)


_SCHEDULERS: dict[str, Scheduler] = {
    "period": Period(),
    "round_robin": RoundRobin(),
    "whole": Whole(),
    "min_max": MinMax(),
}


def scheduler_of(name: str) -> Scheduler:
    return _SCHEDULERS[name]

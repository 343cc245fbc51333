"""Footprints of windows for continuous eventual checkpoints (cec §II-III).

An operator leaves a trace of each window in its output log: one when the window opens, more while it is open, and its
result when it closes. A checkpoint is then not taken at a moment; it is whatever the log holds of every open window.
This keeps the order of the windows by their last footprint (cec: by τ2), because the oldest one decides how far back a
recovery has to read (the extent, q) and to replay (u). Both are known exactly at any time.

What a window is, its operator says (`traced.py`): a (pane, key) of an aggregate, so sliding windows count panes; a
key of a count window. Every footprint has an ordinal: its place among all tuples of the log. Windows are pushed to the
end of a queue when they open, and again when they are checked, so its front is always the oldest. A window that has
closed or has left a newer footprint is recognised when it comes to the front, or when the queue is tidied up.

A window that opens and closes within one step leaves nothing. It needs nothing: footprints of a step are taken at its
end, and stand in one entry with its results, so a recovery goes to the end of some step t. If the window was
there within t or before, it is not open at t, and of the rows up to t a recovery applies only those of windows that are
open at t (`gather.py`). If it came after t, its rows come after t too, and are processed as they always are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from holdfast.model.footprint import Control, Extent, Footprint, FootprintKind, Records

Ids = NDArray[np.int64]
_NONE = np.zeros(0, np.int64)
#: Ordinal of a window whose footprint is still to be taken, or that is not there.
UNTRACED = -1
#: The queue is tidied up when it holds so many times more than there are windows.
TIDY_FACTOR, TIDY_MIN = 2, 4096
#: How many windows are looked at together at the front.
_LOOK = 512


class Windows(Protocol):
    """What an operator says of its windows."""

    @property
    def fingerprint(self) -> int: ...

    def window_count(self) -> int: ...

    def windows(self) -> Ids:
        """The numbers of all."""
        ...

    def are_there(self, ids: Ids) -> NDArray[np.bool_]: ...

    def have_closed(self, ids: Ids) -> NDArray[np.bool_]:
        """Which of them are only a number to go on with."""
        ...

    def records_of(self, ids: Ids) -> tuple[Records, ...]: ...


class Moment(NamedTuple):
    """Where an operator stands at the end of a step."""

    step: int
    rows: int
    watermark: int
    below: int
    #: Where its results begin on its output edge, and how many there are.
    start: int
    results: int
    inputs: tuple[tuple[str, int], ...] = ()


class FootprintRun:
    """Footprints that were left together."""

    __slots__ = ("at", "ids", "moment", "ordinals")

    def __init__(self, ids: Ids, ordinals: Ids, moment: Moment) -> None:
        self.ids = ids
        self.ordinals = ordinals
        self.moment = moment
        #: All before this are dead.
        self.at = 0


class Ages:
    """The oldest windows, and what the extent would be if some of them were checked now."""

    def __init__(self, now: Extent, tuples: int, rows: int, ordinals: Ids, rows_at: Ids) -> None:
        self._now = now
        self._tuples = tuples
        self._rows = rows
        self._ordinals = ordinals
        self._rows_at = rows_at

    @property
    def most(self) -> int:
        """How many of them may be asked about."""
        return min(len(self._ordinals), self._now.windows)

    def after(self, checks: int) -> Extent:
        """The extent when the `checks` oldest windows have been checked."""
        windows = self._now.windows
        if checks >= windows:
            return Extent(windows, windows, 0)
        q = self._tuples + checks - int(self._ordinals[checks])
        return Extent(windows, q, self._rows - int(self._rows_at[checks]))


class Footprints:
    """Which windows have opened, have closed, or are due for a check."""

    def __init__(self, state: Windows) -> None:
        self._state = state
        self._queue: deque[FootprintRun] = deque()
        self._queued = 0
        #: By number of a window: the ordinal of its newest footprint.
        self._newest = np.full(1024, UNTRACED, np.int64)
        self._changed: list[Ids] = []
        #: Tuples of all kinds that the log has.
        self.tuples = 0
        self.changed(state.windows())

    def resume(self, tuples: int, left: list[FootprintRun]) -> None:
        """Go on from what a recovery has found: the newest footprint of every window, oldest first."""
        self._queue.clear()
        self._changed.clear()
        self._newest[:] = UNTRACED
        self._queued = 0
        self.tuples = tuples
        for run in left:
            self._push(run)

    def changed(self, ids: Ids) -> None:
        """Windows that are new, or have other records than before: their footprint is due at the next `take`."""
        if not len(ids):
            return
        self._make_room(int(ids.max()) + 1)
        self._newest[ids] = UNTRACED
        self._changed.append(ids.copy())

    def _make_room(self, top: int) -> None:
        if top > len(self._newest):
            more = np.full(2 * top - len(self._newest), UNTRACED, np.int64)
            self._newest = np.concatenate([self._newest, more])

    def take(self, moment: Moment, decide: Decide | None = None) -> Control:
        """What to write to the log at the end of a step: windows that closed and opened, and as many of the oldest as
        `decide` says, which is asked when the others count already."""
        fresh = _NONE
        if self._changed:
            fresh = np.unique(np.concatenate(self._changed))
            fresh = fresh[self._state.are_there(fresh)]
            self._changed.clear()
        closed = self._state.have_closed(fresh)
        before, footprints = self.tuples, []
        self._leave(FootprintKind.CLOSE, fresh[closed], moment, footprints)
        self._leave(FootprintKind.OPEN, fresh[~closed], moment, footprints)
        if decide is not None and (checks := decide(self)) > 0:
            self._leave(FootprintKind.CHECK, self._oldest(checks, moment), moment, footprints)
        if self._queued > TIDY_MIN + TIDY_FACTOR * self._state.window_count():
            self._tidy()
        return Control(
            moment.step, moment.rows, moment.watermark, self._state.window_count(), before, moment.results,
            moment.below, moment.inputs, tuple(footprints), self._state.fingerprint,
        )  # fmt: skip

    def _leave(self, kind: FootprintKind, ids: Ids, moment: Moment, footprints: list[Footprint]) -> None:
        if len(ids):
            footprints.append(Footprint(kind, ids.astype("<u4").tobytes(), self._state.records_of(ids)))
            self._push(FootprintRun(ids, self.tuples + np.arange(len(ids)), moment))
        self.tuples += max(moment.results, len(ids)) if kind == FootprintKind.CLOSE else len(ids)

    def _push(self, left: FootprintRun) -> None:
        if not len(left.ids):
            return
        self._make_room(int(left.ids.max()) + 1)
        self._newest[left.ids] = left.ordinals
        self._queue.append(left)
        self._queued += len(left.ids)

    def _tidy(self) -> None:
        """Let go of all that is dead, also behind a window that stays."""
        kept: deque[FootprintRun] = deque()
        for left in self._queue:
            alive = self._alive(left, left.at, len(left.ids))
            if alive.any():
                kept.append(FootprintRun(left.ids[left.at :][alive], left.ordinals[left.at :][alive], left.moment))
        self._queue = kept
        self._queued = sum(len(left.ids) for left in kept)

    def _alive(self, left: FootprintRun, start: int, end: int) -> NDArray[np.bool_]:
        """Whose newest footprint is still this one, and who are still there."""
        ids = left.ids[start:end]
        return (self._newest[ids] == left.ordinals[start:end]) & self._state.are_there(ids)

    def _front(self) -> FootprintRun | None:
        """What holds the oldest footprint of all windows that are there, at its `at`."""
        while self._queue:
            left = self._queue[0]
            while left.at < len(left.ids):
                alive = self._alive(left, left.at, left.at + _LOOK)
                if alive.any():
                    left.at += int(alive.argmax())
                    return left
                left.at = min(left.at + _LOOK, len(left.ids))
            self._queue.popleft()
            self._queued -= len(left.ids)
        return None

    def extent(self, rows: int) -> Extent:
        """How far back a recovery would have to go now, at this row. Exact at the end of a step."""
        front = self._front()
        windows = self._state.window_count()
        if front is None:
            return Extent(windows, 0, 0)
        return Extent(windows, self.tuples - int(front.ordinals[front.at]), rows - front.moment.rows)

    def oldest(self) -> Moment | None:
        """When the oldest footprint was left: the log and the input are needed from there on. None: from now on."""
        front = self._front()
        return front.moment if front is not None else None

    def older_than(self, step: int) -> int:
        """How many windows have their newest footprint before this step."""
        count = 0
        for left in self._queue:
            if left.moment.step >= step:
                break
            count += int(self._alive(left, left.at, len(left.ids)).sum())
        return count

    def ages(self, rows: int, most: int) -> Ages:
        """What to decide by: at least the `most` oldest windows, or all."""
        now = self.extent(rows)
        ordinals, rows_at, have = [], [], 0
        for left in self._queue:
            if have > most:
                break
            alive = self._alive(left, left.at, len(left.ids))
            found = left.ordinals[left.at :][alive]
            ordinals.append(found)
            rows_at.append(np.full(len(found), left.moment.rows))
            have += len(found)
        return Ages(now, self.tuples, rows, _joined(ordinals), _joined(rows_at))

    def _oldest(self, n: int, moment: Moment) -> Ids:
        """The oldest windows, but none that leaves a footprint at this very moment."""
        taken, have = [], 0
        while have < n and (left := self._front()) is not None and left.moment is not moment:
            ids = left.ids[left.at :]
            alive = np.flatnonzero(self._alive(left, left.at, len(left.ids)))[: n - have]
            taken.append(ids[alive])
            have += len(alive)
            left.at += int(alive[-1]) + 1
        return _joined(taken)


#: How many windows to check now.
Decide = Callable[[Footprints], int]


def _joined(parts: list[Ids]) -> Ids:
    return np.concatenate(parts) if parts else _NONE

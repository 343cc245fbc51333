"""Footprints of windows for continuous eventual checkpoints (cec §II-III).

An operator leaves a trace of each window in its output log: one when the window opens, more while it is open, and its
result when it closes. A checkpoint is then not taken at a moment; it is whatever the log holds of every open window.
This keeps track of which window has the oldest trace, because that one decides how far back a recovery has to read
(the extent) and to replay.

A "window" here is a (pane, key) record of an aggregate. Order of the traces: windows are pushed when they open, and
pushed again when they are checked, so the front of the queue is always the oldest trace. A window that has closed
is recognised when it comes to the front: its record is gone, or another one has opened in its place.
"""

from __future__ import annotations

from collections import deque

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.operators.panes import PaneMap
from holdfast.state.heap import extract_long

_LOW4 = 0xFFFFFFFF


class Footprint(msgspec.Struct, frozen=True):
    """States of some windows at one position. OPEN and CHECK carry states; CLOSE says which panes are gone."""

    kind: str  # "open" | "check" | "close"
    #: Rows that the operator had taken when this was written.
    position: int
    #: Windows open at that time: how many different ones a recovery has to find.
    open_windows: int
    #: Records, whole: null bits, pane and key words, value words; and the long values that they refer to.
    words: bytes = b""
    blob: bytes = b""
    #: "close": panes below this.
    closed_below: int = 0

    def rows(self, record_words: int) -> NDArray[np.int64]:
        return np.frombuffer(self.words, np.int64).reshape(-1, record_words)


class Footprints:
    """Which windows have opened, closed, or are due for a check."""

    def __init__(self, state: PaneMap) -> None:
        self._state = state
        #: Runs of windows by the age of their last trace, oldest first: (rids, when they opened).
        self._queue: deque[tuple[NDArray[np.int64], NDArray[np.int64]]] = deque()
        #: When the record of a rid opened, counted in openings; 0: not tracked.
        self._opened_at = np.zeros(1024, np.int64)
        self._openings = 0
        self._new: list[NDArray[np.int64]] = []
        self._closed_below: int | None = None
        self.opened(state.map.slots.rids())

    def opened(self, rids: NDArray[np.int64]) -> None:
        """New windows; their footprint is due at the next `take`."""
        if not len(rids):
            return
        top = int(rids.max()) + 1
        if top > len(self._opened_at):
            self._opened_at = np.concatenate([self._opened_at, np.zeros(2 * top - len(self._opened_at), np.int64)])
        self._openings += 1
        self._opened_at[rids] = self._openings
        self._new.append(rids.copy())

    def closed(self, below: int) -> None:
        """Panes below this have been dropped."""
        self._closed_below = below

    def take(self, position: int, checks: int = 0) -> list[Footprint]:
        """What to write to the log now: closed panes, windows that opened, and the `checks` oldest states."""
        out: list[Footprint] = []
        count = len(self._state)
        if self._closed_below is not None:
            out.append(Footprint("close", position, count, closed_below=self._closed_below))
            self._closed_below = None
        if self._new:
            rids = np.unique(np.concatenate(self._new))
            self._new.clear()
            stamps = self._opened_at[rids]
            alive = self._alive(rids, stamps)
            if len(alive[0]):
                out.append(self._footprint("open", position, count, alive[0]))
                self._queue.append(alive)
        if checks > 0:
            due = self._oldest(checks)
            if len(due[0]):
                out.append(self._footprint("check", position, count, due[0]))
                self._queue.append(due)
        return out

    def _alive(self, rids: NDArray[np.int64], stamps: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Those whose record is still the one that opened then."""
        keep = self._state.map.slots.is_live(rids) & (self._opened_at[rids] == stamps)
        return rids[keep], stamps[keep]

    def _oldest(self, n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        taken: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        have = 0
        while self._queue and have < n:
            rids, stamps = self._alive(*self._queue.popleft())
            want = n - have
            if len(rids) > want:
                self._queue.appendleft((rids[want:], stamps[want:]))
                rids, stamps = rids[:want], stamps[:want]
            taken.append((rids, stamps))
            have += len(rids)
        if not taken:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        return np.concatenate([r for r, _ in taken]), np.concatenate([s for _, s in taken])

    def _footprint(self, kind: str, position: int, count: int, rids: NDArray[np.int64]) -> Footprint:
        slots = self._state.map.slots
        words = slots.gather(rids, 0, slots.record_words)
        words[:, 0] &= _LOW4
        blob = extract_long(slots.pool.at, slots.heap.at, words, slots.var_at)
        return Footprint(kind, position, count, words.tobytes(), blob.tobytes())

"""Operators that leave footprints in their output log, and can be brought back from them (cec §II).

`keep_footprints()` starts it. `bring_back(gathered)` makes a fresh operator of what a walk back through the log has
found: windows as they were at different times, none of which is now. Then `replay` takes the input in again from the
oldest of these times on, and each window passes over what it knows. When all of it has been replayed, the operator is
the one that wrote the log's last entry, and processes what comes after as if nothing had happened.

While it is replayed no window opens or closes for good: a window that has other records than at its last footprint
leaves a new one at the end of that very step. So records are brought back under their old numbers, and none is in the
way of another.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.errors import InputError, check
from holdfast.model.footprint import Control, Footprint, Records
from holdfast.operators.capture import RIDS_END, Part, StateCapture, bytes_of, digest_of
from holdfast.operators.chunk import END, Chunk
from holdfast.operators.footprints import Decide, FootprintRun, Footprints, Moment
from holdfast.operators.gather import Gathered, joined
from holdfast.operators.operator import NEVER, StatefulOperator
from holdfast.state.checkpoint import Checkpoint
from holdfast.state.heap import extract_long
from holdfast.state.slots import SlotStore

_LOW4 = 0xFFFFFFFF
_EMPTY = memoryview(b"")
#: Under this name an aggregate over time keeps the bound below which all panes are gone.
_BOUND = "dropped_below"


class TracedOperator(StatefulOperator):
    """Base of aggregates over time and count windows."""

    footprints: Footprints | None = None
    #: While it is being brought back: up to which step each window knows the input, by its number.
    _known: NDArray[np.int64] | None = None

    # -- what subclasses provide ------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def output_schema(self) -> pa.Schema: ...

    @abstractmethod
    def process(self, batch: pa.RecordBatch) -> pa.Table | None: ...

    @abstractmethod
    def on_watermark(self, watermark: int) -> pa.Table: ...

    @abstractmethod
    def window_count(self) -> int: ...

    @abstractmethod
    def windows(self) -> NDArray[np.int64]: ...

    @abstractmethod
    def are_there(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]: ...

    @abstractmethod
    def have_closed(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]: ...

    @abstractmethod
    def records_of(self, ids: NDArray[np.int64]) -> tuple[Records, ...]: ...

    @abstractmethod
    def replay(self, batch: pa.RecordBatch, step: int) -> None:
        """Take in again what this step took in. Gives no results: they came out before."""

    # -- footprints -------------------------------------------------------------------------------------------------

    def keep_footprints(self) -> Footprints:
        """Start to keep track of windows for continuous checkpoints."""
        self.footprints = Footprints(self)
        return self.footprints

    def restore(self, checkpoints: Iterable[Checkpoint], *, lazy: bool = False) -> None:
        super().restore(checkpoints, lazy=lazy)
        self._keep_anew()

    def _put(self, message: StateCapture | Chunk, cursor: int) -> None:
        super()._put(message, cursor)
        self._keep_anew()

    def settle(self, *, keep: bool) -> None:
        super().settle(keep=keep)
        if not keep:
            self._keep_anew()

    def _keep_anew(self) -> None:
        if self.footprints is not None:
            self.keep_footprints()

    def leave(
        self,
        step: int,
        start: int,
        results: int,
        inputs: tuple[tuple[str, int], ...] = (),
        decide: Decide | None = None,
    ) -> Control:
        """What the log is to have of this step beside its results, which begin at `start` of the output edge."""
        footprints = self.footprints or self.keep_footprints()
        below = self._extra().get(_BOUND, NEVER)
        return footprints.take(Moment(step, self.rows, self.watermark, below, start, results, inputs), decide)

    def open_at(self, footprint: Footprint, end: Control) -> NDArray[np.bool_]:
        """Which windows of a footprint were still open at the log's last control."""
        del end
        return np.ones(len(footprint), np.bool_)

    # -- recovery ---------------------------------------------------------------------------------------------------

    def bring_back(self, gathered: Gathered) -> None:
        """Become what the log holds of every open window. Whatever was here is forgotten."""
        self._start_over()
        end = gathered.end
        if _BOUND in self._extra():
            self._set_extra({_BOUND: end.below})
        for index, store in enumerate(self._stores()):
            self._put_part(index, _part(gathered, index, store, self._drops()[index]), RIDS_END)
        self.rows, self.watermark = gathered.since.rows, end.watermark
        # as after a restore: what has come in by another way is not marked, and no capture could carry it
        self.captured, self.scanned = digest_of(-1, self._digits(), [memoryview(b"brought back")]), END
        ids = [one.ids for one in gathered.found]
        known = np.full(int(max((run.max() for run in ids if len(run)), default=-1)) + 1, -1, np.int64)
        for one in gathered.found:
            known[one.ids] = one.control.step
        self._known = known
        left = [FootprintRun(one.ids, one.ordinals, one.moment) for one in reversed(gathered.found)]
        self.keep_footprints().resume(end.after, left)

    def replayed(self, gathered: Gathered) -> None:
        """All of the input up to the log's last entry has been replayed."""
        if self.rows != gathered.end.rows:
            raise InputError(
                f"{self.name}: what was replayed is not what was processed",
                detail=f"Up to step {gathered.end.step} it had {gathered.end.rows:,} rows; now it has {self.rows:,}.",
                hint="The source must give the same rows again.",
            )
        check(self.window_count() == gathered.end.windows, "a replay has opened or closed a window", self.name)
        self._known = None

    def _unknown(self, ids: NDArray[np.int64], step: int) -> NDArray[np.bool_]:
        """For each row, by the window it belongs to (-1: one that is not open any more): whether it is news."""
        known = self._known
        check(known is not None, "an operator replays without having been brought back", self.name)
        assert known is not None
        there = (ids >= 0) & (ids < len(known))
        there[there] = known[ids[there]] < step
        return there


def records(store: SlotStore, rids: NDArray[np.int64], counts: NDArray[np.int64] | None = None) -> Records:
    """Records as a footprint has them."""
    words = store.gather(rids, 0, store.record_words)
    words[:, 0] &= _LOW4
    blob = extract_long(store.pool.at, store.heap.at, words, store.var_at)
    many = b"" if counts is None else counts.astype("<u4").tobytes()
    return Records(rids.astype("<u4").tobytes(), words.tobytes(), blob.tobytes(), many)


def _part(gathered: Gathered, index: int, store: SlotStore, drop_below: int) -> Part:
    """All records of one store that were found, as a new image would get them."""
    numbers, words, blob = joined(gathered.found, index, store.record_words, store.var_at)
    new = (bytes_of(numbers.astype("<u4")), bytes_of(words), bytes_of(blob))
    return Part(*new, _EMPTY, _EMPTY, _EMPTY, drop_below, _EMPTY)

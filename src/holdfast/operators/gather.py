"""Collect the newest footprint of every open window, walking back through an output log (cec §II.B).

The log's last entry says how many windows were open. Controls are taken newest first; of each, the footprints of
windows that have none yet. Footprints of windows that have closed are passed over: time windows by the bound below
which all panes are gone, count windows because closing one leaves a newer footprint of its key. The walk is over when
as many were found as were open: how long the log is does not matter, only how far back the oldest footprint is.

Controls follow each other without a hole: each says how many tuples and steps came before it. One that is missing, is
there twice, or stands in the wrong place is found by that, whatever the log's own checksums say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import InputError
from holdfast.model.footprint import Control, Footprint, FootprintKind, Records
from holdfast.operators.footprints import Moment
from holdfast.state.heap import shift_long

if TYPE_CHECKING:
    from holdfast.operators.traced import TracedOperator

Ids = NDArray[np.int64]


class Needed(NamedTuple):
    """Footprints that count, of those that were left together."""

    control: Control
    #: Where the results of their step begin on the output edge.
    start: int
    footprint: Footprint
    #: Which of its windows, and their numbers and ordinals.
    mask: NDArray[np.bool_]
    ids: Ids
    ordinals: Ids

    @property
    def moment(self) -> Moment:
        c = self.control
        return Moment(c.step, c.rows, c.watermark, c.below, self.start, c.results, c.inputs)


class Gathered(NamedTuple):
    """All footprints that are needed, newest first."""

    #: The log's last control: the operator is to become what it was then.
    end: Control
    #: The control from which on input has to be replayed: what comes after its step.
    since: Control
    found: list[Needed]


class Gather:
    """A walk back through the controls of one operator's log."""

    def __init__(self, operator: TracedOperator) -> None:
        self._operator = operator
        self._end: Control | None = None
        self._last: Control | None = None
        self._seen = np.zeros(1024, np.bool_)
        self._found: list[Needed] = []
        #: Windows still to be found, and tuples that were walked over.
        self.missing = 0
        self.tuples = 0

    def take(self, control: Control, start: int) -> bool:
        """One more, newest first; `start` is where its results begin. True: nothing before it is needed."""
        if self._end is None:
            self._end = control
            self.missing = control.windows
        elif self._last is not None:
            self._check_follows(control, self._last)
        if control.layout != self._operator.fingerprint:
            raise self._misfit(f"Step {control.step} is of an operator with another schema, window, key or aggregates.")
        self._last = control
        self.tuples += control.tuples
        for footprint, first in reversed(_with_ordinals(control)):
            self._look(control, start, footprint, first)
        if self.missing < 0:
            raise self._misfit(f"More windows were found than the {self._end.windows:,} that were open.")
        return self.missing == 0

    def _check_follows(self, control: Control, later: Control) -> None:
        if control.after != later.before or control.step >= later.step or control.rows > later.rows:
            raise self._misfit(
                f"Step {control.step} ends at tuple {control.after:,} and row {control.rows:,}; "
                f"step {later.step} follows it and begins at tuple {later.before:,} and row {later.rows:,}."
            )

    def _look(self, control: Control, start: int, footprint: Footprint, first: int) -> None:
        assert self._end is not None
        ids = np.frombuffer(footprint.windows, "<u4").astype(np.int64)
        if not len(ids):
            return
        top = int(ids.max()) + 1
        if top > len(self._seen):
            self._seen = np.concatenate([self._seen, np.zeros(2 * top - len(self._seen), np.bool_)])
        if not self.missing:
            return
        mask = ~self._seen[ids]
        self._seen[ids] = True
        mask &= self._operator.open_at(footprint, self._end)
        if not mask.any():
            return
        self._found.append(Needed(control, start, footprint, mask, ids[mask], first + np.flatnonzero(mask)))
        self.missing -= int(mask.sum())

    def end(self) -> Gathered | None:
        """What was found; None: the log is empty. Raises if the log's beginning came before all windows were found."""
        if self._end is None:
            return None
        if self.missing:
            raise self._misfit(f"{self.missing:,} of {self._end.windows:,} open windows have no footprint in it.")
        return Gathered(self._end, self._found[-1].control if self._found else self._end, self._found)

    def _misfit(self, detail: str) -> InputError:
        return InputError(
            f"{self._operator.name}: what its log holds is not the trace of one operator",
            detail=detail,
            hint="Was something deleted from the log, or written to it by another operator?",
        )


def _with_ordinals(control: Control) -> list[tuple[Footprint, int]]:
    """Footprints, each with the ordinal of its first one."""
    found, at = [], control.before
    closes = sum(len(one) for one in control.footprints if one.kind == FootprintKind.CLOSE)
    rest = at + max(control.results, closes)
    for one in control.footprints:
        if one.kind == FootprintKind.CLOSE:
            found.append((one, at))
            at += len(one)
        else:
            found.append((one, rest))
            rest += len(one)
    return found


def joined(found: list[Needed], index: int, width: int, var_at: Ids) -> tuple[Ids, Ids, NDArray[np.uint8]]:
    """(numbers, words, long values) of the records of one store, of all windows that were found."""
    numbers, rows, blobs, shift = [], [], [], 0
    for one in found:
        part: Records = one.footprint.records[index]
        mask = one.mask
        if part.counts:
            mask = np.repeat(mask, np.frombuffer(part.counts, "<u4"))
        words = np.frombuffer(part.words, np.int64).reshape(-1, width)[mask]
        numbers.append(np.frombuffer(part.numbers, "<u4")[mask].astype(np.int64))
        if len(part.blob):
            words = words.copy()
            shift_long(words, var_at, shift)
            blobs.append(np.frombuffer(part.blob, np.uint8))
            shift += len(part.blob)
        rows.append(words)
    none = np.zeros(0, np.int64)
    return (
        np.concatenate(numbers) if numbers else none,
        np.ascontiguousarray(np.concatenate(rows)) if rows else none.reshape(0, width),
        np.concatenate(blobs) if blobs else np.zeros(0, np.uint8),
    )

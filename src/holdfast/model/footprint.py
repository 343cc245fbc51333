"""What an operator leaves in its output log for continuous eventual checkpoints (cec §II): control tuples.

The state of an operator is cut into windows: parts that can be checked by themselves, since no row changes two of them.
A window has a number for as long as it is there. A footprint is its whole state at one moment; the log's newest
footprint of every open window, and the input since the oldest of them, are the operator (`operators/gather.py`).

Everything that one step of an operator leaves is one `Control`, and stands in the log beside the results of that step,
in one entry: both are there after a crash, or neither is.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec


class FootprintKind(IntEnum):
    """Why a footprint was left, in the order in which they stand in one step."""

    #: Its last results have just come out, and what is left is a number to go on with: the R of the paper.
    CLOSE = 0
    #: It has just opened: the paper's G_open.
    OPEN = 1
    #: It is open, and its last footprint was the oldest of all: the paper's G_check.
    CHECK = 2


class Records(msgspec.Struct, frozen=True, array_like=True):
    """Records of one of an operator's stores. Numbers are little-endian."""

    #: Their numbers (uint32), all their words, and the long values that these refer to.
    numbers: bytes
    words: bytes
    blob: bytes
    #: How many of them each window has (uint32); empty: one each.
    counts: bytes = b""


class Footprint(msgspec.Struct, frozen=True, array_like=True):
    """Footprints of some windows, all of one moment."""

    kind: FootprintKind
    #: Numbers of the windows (uint32), and their records, one run for each store of the operator.
    windows: bytes
    records: tuple[Records, ...]

    def __len__(self) -> int:
        return len(self.windows) // 4


class Control(msgspec.Struct, frozen=True, array_like=True):
    """What one step has left: the time of its tuples, the number of open windows, and footprints."""

    #: Steps that the operator had taken, and rows: the time of everything in here (cec: the last tuple that came in).
    step: int
    rows: int
    watermark: int
    #: Windows open at that time: how many different footprints a recovery has to find (cec: N).
    windows: int
    #: Tuples of all kinds in the log before these.
    before: int
    #: Results of this step.
    results: int
    #: Panes below this are gone, with all footprints of windows in them.
    below: int
    #: Where the operator stood on each edge of its input.
    inputs: tuple[tuple[str, int], ...] = ()
    footprints: tuple[Footprint, ...] = ()
    #: A hash of all that shapes the records.
    layout: int = 0

    @property
    def tuples(self) -> int:
        """A window's last result and the footprint that goes with it are one tuple."""
        closes = sum(len(one) for one in self.footprints if one.kind == FootprintKind.CLOSE)
        others = sum(len(one) for one in self.footprints if one.kind != FootprintKind.CLOSE)
        return max(self.results, closes) + others

    @property
    def after(self) -> int:
        return self.before + self.tuples


class Extent(msgspec.Struct, frozen=True):
    """How far back a recovery would have to go if the operator failed now (cec §III.A)."""

    windows: int
    #: Tuples of the log from the oldest footprint of an open window on (cec: q).
    tuples: int
    #: Rows of the input since that footprint (cec: u).
    rows: int

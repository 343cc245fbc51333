"""What the core asks of an operator; the state engine and the modelled operator both answer it.

An operator is deterministic: its output is a function of the sequence of `step` calls. It knows nothing of
positions, epochs or nodes. An image is the same kind of object, pasted into instead of stepped.
"""

from __future__ import annotations

from typing import Protocol

from holdfast.model.block import Rows
from holdfast.model.ids import Edge
from holdfast.model.topology import ShardSpec


class Operator(Protocol):
    #: How far the output's watermark stays behind the input's: what comes out may be so much older.
    lag: int
    #: A step failed half-way, so that the state must not be captured.
    torn: bool
    #: What the last step could not put out, by a rule that knows only state and input: each row with its reason, in the
    #: order of the results. `()`: nothing. Windows that are hidden are not set aside.
    aside: Rows
    #: Nanoseconds of work so far: steps, deltas, and pasting those. Chunks do not count: they end with the transfer.
    busy_ns: int

    def step(self, edge: Edge, rows: Rows, watermark: int) -> tuple[Rows, ...]:
        """Take rows of one input edge, then let the shard's watermark be `watermark`: rows for each output edge.

        Rows that cannot be taken are a HoldfastError: the shard then stands still.
        """
        ...

    def letters(self, edge: Edge, rows: Rows, reason: str) -> Rows:
        """Rows of an input edge as dead letters, all for this reason. Changes nothing."""
        ...

    def hide(self, to: int) -> None:
        """From now on emit nothing that rows before event time `to` could have a part in: some of them are missing."""
        ...

    def after(self, to: int) -> int:
        """No row that input before event time `to` had a part in has this event time or a later one."""
        ...

    def delta_ns(self) -> int:
        """What a delta would take now, as measured so far."""
        ...

    def paste_ns(self, piece: object) -> int:
        """What pasting this piece will take, as measured so far."""
        ...

    def delta(self, bytes_max: int) -> tuple[object, ...]:
        """What changed since the last delta, in pieces of about `bytes_max`, at least one. Forgets what was dirty.

        Pieces are opaque and never change. They are pasted in this order, all of them or none.
        """
        ...

    def skip(self) -> None:
        """Forget what was dirty without carrying it anywhere: a new image gets everything in chunks."""
        ...

    def mark_all(self) -> None:
        """Let the next delta carry everything."""
        ...

    def chunk(self, cursor: int, bytes_max: int) -> tuple[object, int]:
        """Everything on the pages from `cursor` on, about `bytes_max`, and the cursor after it (-1: that was all).

        Called right after `delta`, so that it is of the same moment; leaves the marks of what is dirty as they are.
        """
        ...

    @property
    def scanned(self) -> int:
        """Of an image: the cursor of the next chunk; -1: it is complete."""
        ...

    def fits(self, piece: object) -> bool:
        """Does this first piece of a delta continue the image? (Positions fit already.)"""
        ...

    def paste(self, piece: object) -> None:
        """Take one piece into an image: of a delta only what lies on pages that are here; a first chunk starts anew."""
        ...

    def image(self) -> object:
        """All of the state at this moment, for a checkpoint: opaque, made at once, not changed by what follows."""
        ...

    def footprints(self, number: int, least: int, recover_ns: int) -> tuple[int, object]:
        """Entry `number` of the log: footprints of windows that opened since the last one, of those whose newest one is
        in an entry before `least`, and of as many more as it is worth, or as a recovery in `recover_ns` takes. Returns
        the entry that then has the oldest footprint of an open window, and the footprints, which never change."""
        ...

    def load(self, image: object) -> None:
        """Take the state of a checkpoint; this operator has none yet."""
        ...

    def fork(self) -> None:
        """Run on from this image in such a way that `settle` can go back to it."""
        ...

    def settle(self, *, keep: bool) -> None:
        """End a fork: keep what came of it, or be the image again that it began with."""
        ...

    def restore(self) -> None:
        """Turn a pasted image into running state (kernels are warm; indexes are rebuilt here if there are any)."""
        ...


class OperatorFactory(Protocol):
    def __call__(self, spec: ShardSpec) -> Operator: ...

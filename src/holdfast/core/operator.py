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

    def step(self, edge: Edge, rows: Rows, watermark: int) -> tuple[Rows, ...]:
        """Take rows of one input edge, then let the shard's watermark be `watermark`: rows for each output edge.

        Rows that cannot be taken are a HoldfastError: the shard then stands still.
        """
        ...

    def capture(self) -> object:
        """What changed since the last capture; forgets what was dirty."""
        ...

    def snapshot(self) -> object:
        """Everything; leaves the marks of what is dirty as they are."""
        ...

    def fits(self, state: object) -> bool:
        """Does this capture continue the image? (Positions fit already.)"""
        ...

    def paste(self, state: object, whole: bool) -> None:
        """Bring an image to where the capture was taken."""
        ...

    def restore(self) -> None:
        """Turn a pasted image into running state (kernels are warm; indexes are rebuilt here if there are any)."""
        ...


class OperatorFactory(Protocol):
    def __call__(self, spec: ShardSpec) -> Operator: ...

"""Control tuples in an output log: they stand beside the results of their step, and consumers do not see them.

A block with a control is a block with one more field at its end. Whoever reads blocks of a log takes the fields of a
block and passes over the rest; whoever recovers an operator asks for the control. Both are in what the entry's digest
covers, so a step's results and its footprints are whole together or not there (cec §II.B: the record must be atomic).
"""

from __future__ import annotations

import msgspec

from holdfast.model.block import Block
from holdfast.model.footprint import Control, Footprint

_encoder = msgspec.msgpack.Encoder()
_controls = msgspec.msgpack.Decoder(Control)


class LoggedBlock(Block, frozen=True, array_like=True):
    """A block as it stands in the log of an operator that leaves footprints."""

    control: bytes = b""


_logged = msgspec.msgpack.Decoder(LoggedBlock)


def with_control(block: Block, control: Control) -> LoggedBlock:
    return LoggedBlock(*msgspec.structs.astuple(block), control=_encoder.encode(control))


def control_in(meta: bytes | memoryview) -> Control | None:
    """The control of an entry, by what the entry says of its block; None: it has none.

    ValueError: it cannot be understood.
    """
    raw = _logged.decode(meta).control
    if not raw:
        return None
    control = _controls.decode(raw)
    for footprint in control.footprints:
        why = _misfit(footprint)
        if why:
            raise ValueError(why)
    return control


def _misfit(footprint: Footprint) -> str:
    if len(footprint.windows) % 4:
        return f"{len(footprint.windows)} bytes of window numbers"
    for records in footprint.records:
        if len(records.numbers) % 4 or len(records.words) % 8:
            return f"{len(records.numbers)} bytes of record numbers, {len(records.words)} of words"
        if len(records.counts) not in (0, len(footprint.windows)):
            return f"{len(records.counts)} bytes of counts for {len(footprint)} windows"
        if not records.counts and len(records.numbers) != len(footprint.windows):
            return f"{len(records.numbers) // 4} records for {len(footprint)} windows"
    return ""

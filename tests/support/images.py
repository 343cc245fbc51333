"""What an image has, in a form that can be compared."""

from __future__ import annotations

from holdfast.operators import StatefulOperator
from holdfast.operators.capture import part_of


def records(op: StatefulOperator) -> list[tuple]:
    """All that captures carry, record by record: numbers, words, long values, and for a join what follows what."""
    parts = [part_of(s, s.rids(), keep=op._KEEP, drop_below=d) for s, d in zip(op._stores(), op._drops(), strict=True)]
    return [(op.captured, op.rows, op.watermark, op._extra()), *((*p.buffers, p.drop_below) for p in parts)]

"""A state of any size, carried to a new image in chunks while its operator goes on.

Each chunk is taken at the same moment as a capture: all records of a range of numbers, as they are then. A new image
first takes the capture of that moment, but of it only what lies in ranges that it has been given already (the rest
will come later, as of a later moment), and then the chunk. After the last chunk it has everything as of that moment,
exactly, and goes on with plain captures. So no message grows with the state, nobody holds a second copy of it, and
the operator never stands still for longer than one chunk takes.

Where a walk stands is one number, the cursor: the part of the state, and the number of the next record in it. It only
grows. The walk ends when it has passed the last record that exists at that moment; records that appear behind it come
with captures, those that appear before it with chunks.
"""

from __future__ import annotations

import msgspec

from holdfast.operators.capture import RIDS_END, Part, opened, sealed

_MAGIC = b"HFCH"
#: Where a walk starts, and what stands for its end.
START, END = 0, -1


def cursor_at(part: int, rid: int) -> int:
    return part * RIDS_END + rid


def rids_below(cursor: int, part: int) -> int:
    """Records of a part with a number below this lie behind the cursor: an image that stands there has them."""
    if cursor == END:
        return RIDS_END
    return min(RIDS_END, max(0, cursor - cursor_at(part, 0)))


class Chunk(msgspec.Struct, frozen=True):
    """Some records of an operator, all of one moment. What is in `parts` are new records and nothing else."""

    operator: str
    #: The capture of the same moment.
    number: int
    #: The records from this cursor to the one below; END: these are the last.
    start: int
    end: int
    rows: int
    watermark: int
    parts: list[Part]
    layout: int
    extra: dict[str, int] = {}

    @property
    def last(self) -> bool:
        return self.end == END

    @property
    def n_records(self) -> int:
        return sum(p.n_new for p in self.parts)

    @property
    def nbytes(self) -> int:
        return sum(p.nbytes for p in self.parts)

    def to_bytes(self) -> bytearray:
        return sealed(_MAGIC, self, self.nbytes)

    @staticmethod
    def from_bytes(raw: bytes | bytearray | memoryview) -> Chunk:
        """The chunk that these bytes are; it keeps them."""
        return opened(_MAGIC, raw, _decoder, "a chunk of state")


_decoder = msgspec.msgpack.Decoder(Chunk)

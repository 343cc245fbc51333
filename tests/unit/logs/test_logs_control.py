"""Control tuples in the bytes of an output log, and walks back through it (cec §II)."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.errors import DamagedLogError
from holdfast.logs.backwards import end_of, entries_before
from holdfast.logs.control import LoggedBlock, control_in, with_control
from holdfast.logs.edge_log import EdgeLog
from holdfast.logs.frames import LogEntry, encode_entry
from holdfast.model.block import Block, shard_block
from holdfast.model.footprint import Control, Footprint, FootprintKind, Records
from holdfast.model.ids import Edge

EDGE = Edge("u0.0")
ONE = Footprint(FootprintKind.OPEN, b"\1\0\0\0", (Records(b"\1\0\0\0", b"w" * 16, b""),))


def control(step: int, **more) -> Control:
    return Control(
        **{"step": step, "rows": 9, "watermark": -5, "windows": 1, "before": 7, "results": 2, "below": 0, **more}
    )


def test_a_control_comes_back_as_it_was_and_a_consumer_reads_a_plain_block():
    written = control(3, inputs=(("in", 4),), footprints=(ONE,), layout=77)
    block = shard_block(5, [], 8, 9)
    raw = msgspec.msgpack.encode(with_control(block, written))
    assert control_in(raw) == written
    seen = msgspec.msgpack.Decoder(Block).decode(raw)
    assert (type(seen), seen) == (Block, block)


def test_an_entry_without_control_tuples_has_none_and_what_does_not_fit_together_is_refused():
    assert control_in(msgspec.msgpack.encode(shard_block(0, (), 1))) is None
    for bad in (
        Footprint(FootprintKind.OPEN, b"\1\0\0", ()),
        Footprint(FootprintKind.OPEN, b"\1\0\0\0", (Records(b"", b"", b""),)),
        Footprint(FootprintKind.OPEN, b"\1\0\0\0", (Records(b"\1\0\0\0", b"odd", b""),)),
        Footprint(FootprintKind.OPEN, b"\1\0\0\0", (Records(b"\1\0\0\0", b"", b"", b"\1"),)),
    ):
        with pytest.raises(ValueError, match=r"bytes of|records for"):
            control_in(msgspec.msgpack.encode(with_control(shard_block(0, (), 1), control(1, footprints=(bad,)))))
    with pytest.raises(msgspec.MsgspecError):
        control_in(msgspec.msgpack.encode(LoggedBlock(*msgspec.structs.astuple(shard_block(0, (), 1)), control=b"no")))


def test_the_last_result_of_a_window_and_its_footprint_are_one_tuple():
    two = Footprint(FootprintKind.CLOSE, b"\1\0\0\0\2\0\0\0", ())
    assert control(1, results=0, footprints=(ONE,)).tuples == 1
    assert control(1, results=3, footprints=(two, ONE)).tuples == 4
    assert control(1, results=1, footprints=(two, ONE)).tuples == 3  # one result was set aside
    assert control(1, results=3, footprints=(two, ONE)).after == 7 + 4


class SegmentInMemory:
    """A segment in memory, in groups, and the last record of its index."""

    def __init__(self, groups: list[int], size: int = 40) -> None:
        self.segment = EdgeLog(EDGE).begin(0)
        self.raw = bytearray(self.segment.head.encode())
        self.entries: list[LogEntry] = []
        for count in groups:
            blocks = [shard_block(self.end + i, (), i, i) for i in range(count)]
            entries = self.segment.plan((block, 3, size) for block in blocks)
            for entry in entries:
                parts = encode_entry(self.segment.identity, entry, b"one", memoryview(b"r" * size))
                self.raw += b"".join(bytes(part) for part in parts)
            self.segment.synced(entries)
            self.entries += entries

    @property
    def end(self) -> int:
        return self.entries[-1].end if self.entries else 0

    def read(self, at: int, length: int) -> bytes:
        return bytes(self.raw[at : at + length])

    def end_of(self, indexed: int | None = None):
        return end_of(self.read, len(self.raw), None if indexed is None else self.entries[indexed])


@pytest.mark.parametrize("chunk_bytes", [1, 16, 100, 150, 1000, 256 << 10])
def test_a_walk_back_meets_every_entry_whatever_the_size_of_a_chunk_is(chunk_bytes: int):
    written = SegmentInMemory([3, 1, 5])
    end = written.end_of()
    assert (end.good, end.torn, end.damage) == (len(written.raw), 0, "")
    assert end.head is not None
    met = [entry for entry, _, _ in entries_before(written.read, end.head, end.last, chunk_bytes)]
    assert met == written.entries[::-1]


def test_only_as_much_is_read_as_is_walked_over():
    written = SegmentInMemory([500], 1000)
    asked: list[int] = []

    def read(at: int, length: int) -> bytes:
        asked.append(length)
        return written.read(at, length)

    end = end_of(read, len(written.raw), written.entries[-1])
    assert end.last == written.entries[-1]
    assert end.head is not None
    walk = entries_before(read, end.head, end.last, 10_000)
    for _ in range(25):
        next(walk)
    assert sum(asked) < 40_000 < len(written.raw) / 10


def test_a_torn_end_is_not_damage_and_a_damaged_entry_before_what_was_safe_is():
    written = SegmentInMemory([2, 2])
    whole = len(written.raw)
    good = written.entries[-1].offset
    del written.raw[whole - 3 :]
    end = written.end_of(indexed=1)
    assert (end.good, end.torn, end.damage, end.last) == (good, whole - 3 - good, "", written.entries[2])
    assert "its index names" in written.end_of(indexed=3).damage
    again = SegmentInMemory([1, 1, 1])
    again.raw[again.entries[1].offset + 9] ^= 1
    assert "more was written" in again.end_of(indexed=0).damage
    assert "more was written" in again.end_of().damage


@pytest.mark.parametrize("byte", [0, 30, 100, -9, -1])
def test_a_byte_that_was_changed_behind_the_end_is_met_on_the_way_back(byte: int):
    written = SegmentInMemory([2, 2])
    entry = written.entries[1]
    written.raw[(entry.offset if byte >= 0 else entry.next_offset) + byte] ^= 0x40
    end = written.end_of(indexed=3)
    assert (end.damage, end.last) == ("", written.entries[3])
    assert end.head is not None
    with pytest.raises(DamagedLogError, match="does not hold what was written"):
        list(entries_before(written.read, end.head, end.last, 64))

"""Output logs by arithmetic: where blocks go, what may go, what stands instead of what, what a crash has left."""

from __future__ import annotations

import pytest

from holdfast.logs import edge_log
from holdfast.logs.edge_log import EdgeLog, Segment, put_together, survey
from holdfast.logs.frames import INDEX_BYTES, LogEntry, decode_head, encode_entry, unpack_index
from holdfast.model.block import Block, shard_block
from holdfast.model.ids import Edge

EDGE = Edge("u0.0")
ROWS = memoryview(b"rows that look like \xf7HF\n the beginning of an entry")


def blocks(*sizes: int, start: int = 0) -> list[Block]:
    made: list[Block] = []
    for i, size in enumerate(sizes):
        made.append(shard_block(made[-1].end if made else start, (0,) * (size - 1), i, 10 * i))
    return made


class Bytes:
    """A segment in memory, written as the runtime writes it: a group, then its sync."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.raw = bytearray(segment.head.encode())
        self.index = b""
        self.entries: list[LogEntry] = []

    def append(self, made: list[Block]) -> list[LogEntry]:
        entries = self.segment.plan((block, 3, len(ROWS)) for block in made)
        for entry in entries:
            self.raw += b"".join(bytes(part) for part in encode_entry(self.segment.identity, entry, b"one", ROWS))
        self.segment.synced(entries)
        self.index += b"".join(entry.pack() for entry in entries)
        self.entries += entries
        return entries

    def survey(self, *, index: bytes | None = None, all_of_it: bool = False) -> edge_log.SegmentSurvey:
        raw = bytes(self.raw)
        known = unpack_index(self.index if index is None else index)
        return survey(lambda at, length: raw[at : at + length], len(raw), known, all_of_it=all_of_it)


def written(log: EdgeLog, made: list[Block]) -> Bytes:
    segment = log.begin(made[0].start)
    held = Bytes(segment)
    held.append(made)
    log.add(segment)
    return held


def test_a_write_that_continues_the_log_goes_on_in_its_segment_and_any_other_begins_one():
    log = EdgeLog(EDGE)
    held = written(log, blocks(3, 4))
    assert log.end == 7
    assert log.open(7) is held.segment
    assert log.open(6) is None
    assert log.open(8) is None
    held.segment.ended = True
    assert log.open(7) is None


def test_a_segment_that_is_full_is_followed_by_another(monkeypatch: pytest.MonkeyPatch):
    log = EdgeLog(EDGE)
    held = written(log, blocks(3))
    monkeypatch.setattr(edge_log, "SEGMENT_BYTES", held.segment.bytes)
    assert log.open(3) is None
    assert (log.begin(3).head.before, log.begin(3).head.number) == (3, 3)


def test_segments_go_when_all_in_them_was_acknowledged():
    log = EdgeLog(EDGE)
    first, second = written(log, blocks(3)), written(log, blocks(3, start=3))
    assert log.drop(2) == []
    assert log.drop(5) == [first.segment]
    assert log.drop(6) == [second.segment]
    assert (log.end, log.bytes) == (-1, 0)


def test_what_was_given_up_and_is_written_again_stands_instead_of_the_first_write():
    log = EdgeLog(EDGE)
    first = written(log, blocks(3, 3, 3))
    second = log.begin(3)
    assert second.head.before == 3
    assert log.add(second) == []
    assert first.segment.end == 3
    third = log.begin(0)
    assert log.add(third) == [first.segment, second]
    assert log.end == 0


def test_positions_and_event_times_lead_to_entries():
    log = EdgeLog(EDGE)
    held = written(log, blocks(3, 4, 5))
    found = put_together([(1, held.survey())])
    assert [found.at_position(at) for at in (0, 2, 3, 6, 7, 11, 12)] == [0, 0, 1, 1, 2, 2, 3]
    assert [found.at_time(time) for time in (-1, 0, 1, 10, 11, 20, 21)] == [0, 0, 1, 1, 2, 2, 3]


def test_event_time_never_goes_back_in_a_log_whatever_its_blocks_say():
    log = EdgeLog(EDGE)
    written(log, blocks(3, 3))
    late = written(log, blocks(3, start=6))
    assert [entry.time for entry in late.entries] == [10]


def test_an_index_that_is_missing_short_or_damaged_is_made_up_for_from_the_log():
    held = written(EdgeLog(EDGE), blocks(3, 4))
    held.append(blocks(5, start=7))
    whole = held.survey()
    assert (whole.entries, whole.torn, whole.unindexed, whole.damage) == (tuple(held.entries), 0, 0, "")
    for keep, unindexed in ((0, 3), (INDEX_BYTES, 2), (2 * INDEX_BYTES + 7, 1)):
        found = held.survey(index=held.index[:keep])
        assert (found.entries, found.unindexed, found.damage) == (whole.entries, unindexed, "")
    for at in range(len(held.index)):
        hurt = bytearray(held.index)
        hurt[at] ^= 4
        found = held.survey(index=bytes(hurt))
        assert (found.entries, found.damage) == (whole.entries, "")


def test_an_index_that_names_more_than_the_log_holds_says_that_the_log_has_lost_it():
    held = written(EdgeLog(EDGE), blocks(3, 4))
    good = held.entries[0].next_offset
    del held.raw[-1:]
    found = held.survey()
    assert found.entries == (held.entries[0],)
    assert f"of which {good:,} are whole" in found.damage


def test_the_torn_end_of_the_last_group_is_not_damage_wherever_it_was_torn():
    held = written(EdgeLog(EDGE), blocks(3))
    safe, index = len(held.raw), held.index
    held.append(blocks(4, 5, start=3))
    whole = bytes(held.raw)
    for size in range(safe, len(whole)):
        held.raw = bytearray(whole[:size])
        found = held.survey(index=index)
        assert found.damage == ""
        assert found.good + found.torn == size
        assert found.entries == tuple(held.entries[: len(found.entries)])
    # a machine that dies may keep the end of a group and lose its beginning
    held.raw = bytearray(whole[:safe] + bytes(held.entries[1].length) + whole[held.entries[2].offset :])
    found = held.survey(index=index)
    assert (found.entries, found.damage) == ((held.entries[0],), "")


def test_damage_before_something_that_was_written_later_is_not_a_torn_end():
    held = written(EdgeLog(EDGE), blocks(3))
    held.append(blocks(4, start=3))
    held.raw[held.entries[0].offset + 70] ^= 1
    found = held.survey(index=b"")
    assert found.entries == ()
    assert f"more was written at byte {held.entries[1].offset}" in found.damage


def test_a_segment_without_its_head_is_damaged_if_anything_was_written_to_it():
    held = written(EdgeLog(EDGE), blocks(3))
    held.raw[5] ^= 1
    assert "its index has entries" in held.survey().damage
    assert "it goes on at byte" in held.survey(index=b"").damage
    begun = Bytes(EdgeLog(EDGE).begin(0))
    for size in range(len(begun.raw)):
        begun.raw = begun.raw[:size]
        assert (begun.survey().damage, begun.survey().entries) == ("", ())


@pytest.mark.parametrize(
    "order", [(0, 0, 1, 2), (0, 1, 1, 2), (0, 1, 2, 2), (1, 0, 2), (0, 2, 1), (0, 2), (1, 2)], ids=str
)
def test_entries_that_are_doubled_missing_or_out_of_order_are_found(order: tuple[int, ...]):
    held = written(EdgeLog(EDGE), blocks(3, 4, 5))
    raw = bytes(held.raw)
    parts = [raw[entry.offset : entry.next_offset] for entry in held.entries]
    held.raw = bytearray(raw[: held.entries[0].offset] + b"".join(parts[i] for i in order))
    for index in (held.index, b""):
        found = held.survey(index=index, all_of_it=True)
        assert found.damage
        assert found.entries == tuple(held.entries[: len(found.entries)])


def test_an_entry_of_another_segment_does_not_count():
    log = EdgeLog(EDGE)
    first, other = written(log, blocks(3, 4)), written(log, blocks(3, 4, start=7))
    size = first.entries[0].length
    assert other.entries[0].length == size
    at = first.entries[0].offset
    first.raw[at : at + size] = other.raw[at : at + size]
    assert first.survey(all_of_it=True).damage


def test_positions_that_nobody_needed_are_no_damage_and_a_lost_segment_is():
    log = EdgeLog(EDGE)
    held = [written(log, blocks(3)), written(log, blocks(3, start=3)), written(log, blocks(3, start=10))]
    surveys = [(i + 1, one.survey()) for i, one in enumerate(held)]
    whole = put_together(surveys)
    assert (whole.passed_over, whole.damage) == (((6, 10),), "")
    assert [entry.start for _, entry in whole.entries] == [0, 3, 10]
    assert put_together(surveys[1:]).damage == ""  # the first was acknowledged
    lost = put_together([surveys[0], surveys[2]])
    assert "the log ended at 6 before it" in lost.damage
    assert [entry.start for _, entry in lost.entries] == [0]
    swapped = put_together([(1, held[1].survey()), (2, held[0].survey())])
    assert "it is segment 2" in swapped.damage


def test_a_head_is_read_back_as_it_was_written():
    head = EdgeLog(EDGE).begin(7).head
    raw = head.encode()
    assert decode_head(lambda at, length: raw[at : at + length]) == head
    assert (head.nbytes, head.base, head.before) == (len(raw), 7, -1)

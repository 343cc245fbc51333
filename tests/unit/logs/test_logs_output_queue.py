"""The arithmetic of an output queue: trim by the slowest, spill before refusing, never drop."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import InvariantError
from holdfast.logs.output_queue import OutputQueue
from holdfast.model.block import Block, shard_block

ROWS = ((1, 2, 3),)


def queue(consumers=("a", "b"), memory=100, spill=100) -> OutputQueue:
    return OutputQueue("e", consumers, memory, spill)


def test_trimming_follows_the_slowest_consumer():
    q = queue()
    first, second = q.append(ROWS, 1), q.append((), 2)
    assert not q.ack("a", second.end)
    assert q.trimmed == 0
    assert q.ack("b", first.end)
    assert (q.trimmed, [b.start for b in q.blocks]) == (first.end, [second.start])


def test_an_acknowledgement_that_comes_twice_or_from_a_stranger_is_nothing_new():
    q = queue(("a",))
    block = q.append(ROWS, 1)
    assert q.ack("a", block.end)
    assert not q.ack("a", block.end)
    assert not q.ack("stranger", 99)


def test_a_consumer_ahead_of_a_restored_queue_lets_blocks_go_as_they_are_made():
    q = queue(("a",))
    q.ack("a", 5)
    q.append(ROWS, 1)
    assert (q.trimmed, len(q.blocks)) == (2, 0)


def spill(q: OutputQueue, ticket: int = 1) -> tuple[Block, ...]:
    """What a disk does at once that takes everything."""
    blocks = q.to_spill()
    if blocks:
        q.write(ticket, blocks)
        q.wrote(blocks, tuple(b.rows for b in blocks))
    return blocks


def test_a_full_queue_spills_before_it_refuses():
    q = queue(("a",), memory=4, spill=4)
    for mark in range(4):
        assert q.has_room()
        q.append(ROWS, mark)
        spill(q)
    assert not q.has_room()
    assert (q.in_memory, q.spilled) == (4, 4)
    q.ack("a", 2)
    assert q.has_room()


def test_what_is_being_written_is_in_memory_until_it_is_written():
    q = queue(("a",), memory=4, spill=100)
    for mark in range(4):
        q.append(ROWS, mark)
    blocks = q.to_spill()
    q.write(1, blocks)
    assert (q.in_memory, q.spilled, q.to_spill()) == (8, 0, ())
    assert not q.has_room()  # as much again as fits waits for the disk
    q.wrote(blocks, ("first", "second"))
    assert (q.in_memory, q.spilled, q.has_room()) == (4, 4, True)
    assert [b.rows for b in q.blocks] == ["first", "second", ROWS, ROWS]


def test_a_disk_that_takes_nothing_leaves_as_much_again_as_memory_holds():
    q = queue(("a",), memory=4, spill=100)
    for mark in range(4):
        assert q.has_room()
        q.append(ROWS, mark)
    assert (q.has_room(), q.spilled, q.in_memory) == (False, 0, 8)


def test_no_more_than_the_limit_is_spilled():
    q = queue(("a",), memory=1, spill=2)
    for mark in range(5):
        q.append(ROWS, mark)
        spill(q)
    assert q.spilled == 2


def test_one_write_is_no_larger_than_what_memory_holds_but_for_one_block():
    q = queue(("a",), memory=4, spill=100)
    for mark in range(9):
        q.append(ROWS, mark)
    assert [b.start for b in q.to_spill()] == [0, 2]
    q = queue(("a",), memory=1, spill=100)
    q.append(ROWS * 7, 1)
    q.append(ROWS, 2)
    assert [b.start for b in q.to_spill()] == [0]


def test_what_is_trimmed_while_it_is_written_stays_trimmed():
    q = queue(("a",), memory=2, spill=100)
    made = [q.append(ROWS, mark) for mark in range(4)]
    blocks = q.to_spill()
    q.write(1, blocks)
    q.ack("a", made[0].end)
    q.wrote(blocks, ("first",) * len(blocks))
    assert (q.trimmed, q.spilled, q.in_memory) == (2, 0, 6)
    q.ack("a", made[2].end)
    assert (q.trimmed, q.spilled, q.in_memory) == (6, 0, 2)


def test_files_may_go_as_far_as_is_trimmed_and_each_time_it_is_said_once():
    q = queue(("a",), memory=2, spill=100)
    made = [q.append(ROWS, mark) for mark in range(5)]
    assert q.unfiled() == 0
    blocks = spill(q)
    assert (blocks[-1].end, q.unfiled()) == (2, 0)
    q.ack("a", made[0].end)
    assert (q.unfiled(), q.unfiled()) == (2, 0)
    q.ack("a", made[1].end)
    assert q.unfiled() == 0  # no file has anything of it


def test_an_image_that_begins_anew_has_nothing_on_disk_and_lets_its_files_go():
    q, other = queue(("a",), memory=2), queue(("a",), memory=2)
    for mark in range(4):
        q.append(ROWS, mark)
    spill(q)
    q.write(7, q.to_spill())
    other.append(ROWS, 1)
    q.paste(other.part(0), whole=True)
    assert (q.spilled, q.in_memory, q.writing) == (0, 2, 0)
    assert (q.unfiled(), q.unfiled()) == (4, 0)


def test_reading_starts_at_a_block_and_gives_at_least_one_or_says_that_none_starts_there():
    q = queue(("a",))
    blocks = [q.append(ROWS, mark) for mark in range(5)]
    assert q.read(2, 1) == (blocks[1],)
    assert q.read(2, 5) == (blocks[1], blocks[2])
    assert q.read(blocks[-1].end, 10) == ()
    assert q.read(1, 10) is None


def test_a_hole_is_refused():
    q = queue()
    with pytest.raises(InvariantError, match="hole"):
        q._add(shard_block(3, ROWS, 1))


def test_an_abandoned_lease_lapses_and_no_longer_holds_retention():
    q = queue(("a",))
    q.lease("guest", until_ns=10)
    block = q.append(ROWS, 1)
    q.ack("a", block.end)
    assert q.trimmed == 0
    assert q.lapse(5) == []
    assert q.lapse(11) == ["guest"]
    assert q.trimmed == block.end


def test_a_reader_that_leaves_holds_nothing_any_more_and_a_sink_cannot_leave():
    q = queue(consumers=("a",))
    q.lease("guest", until_ns=10)
    q.append((), 1)
    q.ack("a", 1)
    assert q.trimmed == 0
    assert q.leave("guest")
    assert (q.trimmed, q.leases, q.acks) == (1, {}, {"a": 1})
    assert not q.leave("guest")
    assert not q.leave("a")
    assert q.acks == {"a": 1}
    assert q.lapse(100) == []


def test_a_primary_that_became_a_backup_forgets_the_leases_it_gave():
    """It may be primary again after their readers have left elsewhere: nothing of them is in the image then."""
    q, other = queue(), queue()
    q.lease("guest", until_ns=10)
    q.paste(other.part(0), whole=True)
    q.renew_leases(100)
    assert q.leases == {}
    assert q.lapse(50) == []
    assert not q.leave("guest")


def test_a_new_primary_renews_leases_it_finds_in_its_image():
    q = queue(("a",))
    q.lease("guest", until_ns=10)
    image = queue(("a",))
    image.paste(q.part(0), whole=True)
    image.renew_leases(100)
    assert image.leases == {"guest": 100}


def test_a_delta_jumps_over_what_everybody_has_acknowledged():
    q, image = queue(("a",)), queue(("a",))
    q.append(ROWS, 1)
    q.append(ROWS, 2)
    q.ack("a", 4)
    q.append(ROWS, 3)
    image.paste(q.part(0), whole=False)
    assert (image.trimmed, image.next, list(image.blocks)) == (q.trimmed, q.next, list(q.blocks))


# --- several running copies of one consumer


def pair() -> OutputQueue:
    q = queue(("a",))
    q.count("a", ("n0#1", "n1#1"))
    for mark in range(3):
        q.append(ROWS, mark)
    return q


def test_an_acknowledgement_of_one_copy_is_not_taken_for_both():
    q = pair()
    assert not q.ack("a", 6, "n0#1")
    assert q.trimmed == 0
    assert q.ack("a", 2, "n1#1")
    assert (q.trimmed, q.acks) == (2, {"a": 2})
    assert q.ack("a", 4, "n1#1")
    assert q.trimmed == 4


def test_a_copy_that_counts_and_has_not_spoken_holds_everything():
    q = pair()
    assert not q.ack("a", 6, "n0#1")
    assert not q.ack("a", 6, "n0#1")
    assert (q.trimmed, q.acks) == (0, {"a": 0})


def test_a_copy_that_does_not_count_cannot_acknowledge():
    q = pair()
    q.ack("a", 2, "n0#1")
    q.ack("a", 2, "n1#1")
    assert not q.ack("a", 6, "n9#1")
    assert q.trimmed == 2


def test_a_copy_that_counts_no_more_holds_nothing_back_from_the_next_word_on():
    q = pair()
    q.ack("a", 6, "n0#1")
    q.ack("a", 2, "n1#1")
    q.count("a", ("n0#1",))
    assert q.ack("a", 6, "n0#1")
    assert q.trimmed == 6


def test_a_copy_that_comes_to_count_holds_back_but_what_is_gone_stays_gone():
    q = queue(("a",))
    q.count("a", ("n0#1",))
    for mark in range(3):
        q.append(ROWS, mark)
    q.ack("a", 2, "n0#1")
    q.count("a", ("n0#1", "n1#1"))
    assert not q.ack("a", 6, "n0#1")
    assert (q.trimmed, q.acks) == (2, {"a": 2})
    assert not q.ack("a", 0, "n1#1")
    assert (q.trimmed, q.acks) == (2, {"a": 2})


def test_a_copy_that_comes_back_is_asked_again():
    q = pair()
    q.ack("a", 4, "n0#1")
    q.ack("a", 4, "n1#1")
    q.count("a", ("n0#1",))
    q.count("a", ("n0#1", "n1#1"))
    assert not q.ack("a", 6, "n0#1")
    assert q.ack("a", 6, "n1#1")
    assert q.trimmed == 6


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("ack"), st.sampled_from(("x#1", "y#1", "z#1")), st.integers(0, 20)),
            st.tuples(st.just("count"), st.sets(st.sampled_from(("x#1", "y#1", "z#1")), min_size=1), st.just(0)),
        )
    )
)
def test_nothing_is_trimmed_that_a_copy_which_counts_has_not_acknowledged(history):
    """The model: what each copy has said since it last came to count; what is gone stays gone."""
    q = queue(("a",))
    q.count("a", ("x#1",))
    for mark in range(10):
        q.append(ROWS, mark)
    said: dict[str, int] = {}
    counted: tuple[str, ...] = ("x#1",)
    for kind, who, position in history:
        before = q.trimmed
        if kind == "count":
            counted = tuple(sorted(who))
            q.count("a", counted)
            said = {seat: at for seat, at in said.items() if seat in counted}
        else:
            said[who] = max(position, said.get(who, 0))
            q.ack("a", position, who)
        assert q.trimmed >= before
        assert q.trimmed <= max(before, min(said.get(seat, 0) for seat in counted))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(st.integers(0, 3), st.tuples(st.sampled_from("ab"), st.integers(0, 40)), st.none())))
def test_an_image_stands_where_its_primary_stands_after_any_history(history):
    q, image, base = queue(memory=6, spill=6), queue(memory=6, spill=6), 0
    for step in history:
        if step is None:
            image.paste(q.part(base), whole=False)
            base = q.next
            assert (image.trimmed, image.next, image.acks) == (q.trimmed, q.next, q.acks)
            assert list(image.blocks) == list(q.blocks)
        elif isinstance(step, int):
            if q.has_room():
                q.append(ROWS * step, q.next)
            spill(q)
        else:
            q.ack(*step)
        assert q.trimmed <= min(*q.acks.values(), q.next) or not q.blocks
        assert sum(b.end - b.start for b in q.blocks) == q.next - q.trimmed
        assert q.spilled <= 6

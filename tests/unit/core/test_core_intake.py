"""Rows of a real-time source: which may be taken now, and where every source partition stands after them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.intake import Intake, Pushed, Reach, check_positions
from holdfast.errors import InvariantError

ALL = 1_000


def piece(partition: str, first: int, end: int) -> Pushed:
    return Pushed({partition: Reach(first, end)}, end - first, range(first, end))


def rows(taken: list[Pushed]) -> list[tuple[str, int]]:
    """What a driver hands over: without the rows that were taken before."""
    return [(p, at) for one in taken for p in one.spans for at in one.content if at >= one.known.get(p, 0)]


def test_positions_stand_behind_what_was_taken_and_not_behind_what_waits():
    intake = Intake({"t/0": 5, "t/1": 7})
    stream = intake.begin(0, 0)
    intake.push(stream, piece("t/0", 5, 8))
    intake.push(stream, piece("t/0", 8, 9))
    assert intake.waiting == 4
    assert rows(intake.take(1)) == [("t/0", 5), ("t/0", 6), ("t/0", 7)]
    assert intake.positions == {"t/0": 8, "t/1": 7}
    assert intake.waiting == 1


def test_positions_that_a_filter_has_left_out_are_passed_over_by_the_next_row():
    intake = Intake({})
    stream = intake.begin(0, 0)
    intake.push(stream, Pushed({"t/0": Reach(3, 4)}, 1, [3]))
    intake.push(stream, Pushed({"t/0": Reach(9, 12)}, 2, [9, 11]))
    assert rows(intake.take(ALL)) == [("t/0", 3), ("t/0", 9), ("t/0", 11)]
    assert intake.positions == {"t/0": 12}


def test_a_long_batch_is_not_taken_of_before_every_task_of_the_one_before_has_ended():
    intake = Intake({})
    first, second = intake.begin(0, 0), intake.begin(0, 1)
    intake.end(second, whole=True)
    later = intake.begin(1, 0)
    intake.push(later, piece("t/0", 2, 3))
    assert intake.take(ALL) == []
    intake.push(first, piece("t/0", 0, 2))  # it was on its way
    assert rows(intake.take(ALL)) == [("t/0", 0), ("t/0", 1)]
    assert intake.take(ALL) == []
    intake.end(first, whole=True)
    assert rows(intake.take(ALL)) == [("t/0", 2)]


def test_a_stream_that_ended_torn_holds_later_batches_up():
    intake = Intake({})
    torn = intake.begin(0, 0)
    intake.push(torn, piece("t/0", 0, 2))
    intake.end(torn, whole=False)
    later = intake.begin(1, 0)
    intake.push(later, piece("t/0", 4, 5))
    assert rows(intake.take(ALL)) == [("t/0", 0), ("t/0", 1)]
    assert intake.positions == {"t/0": 2}


def test_a_task_that_runs_again_gives_only_what_was_not_taken_of_its_first_run():
    intake = Intake({})
    first = intake.begin(0, 0)
    intake.push(first, piece("t/0", 0, 3))
    intake.take(ALL)
    again = intake.begin(0, 0)
    intake.push(first, piece("t/0", 3, 9))  # of the first run nothing is heard any more
    intake.push(again, piece("t/0", 0, 5))
    intake.end(again, whole=True)
    assert rows(intake.take(ALL)) == [("t/0", 3), ("t/0", 4)]
    intake.push(intake.begin(1, 0), piece("t/0", 5, 6))
    assert rows(intake.take(ALL)) == [("t/0", 5)]


def test_no_task_waits_for_another_one_that_pushes_all_the_time():
    intake = Intake({})
    busy, other = intake.begin(0, 0), intake.begin(0, 1)
    for at in range(5):
        intake.push(busy, piece("t/0", at, at + 1))
    intake.push(other, piece("t/1", 0, 1))
    assert ("t/1", 0) in rows(intake.take(2))


def test_rows_out_of_order_are_refused():
    intake = Intake({})
    stream = intake.begin(0, 0)
    intake.push(stream, piece("t/0", 4, 6))
    with pytest.raises(InvariantError, match="out of order"):
        intake.push(stream, piece("t/0", 5, 7))


def test_a_task_of_a_batch_that_is_over_is_refused():
    intake = Intake({})
    intake.end(intake.begin(0, 0), whole=True)
    intake.push(intake.begin(1, 0), piece("t/0", 0, 1))
    intake.take(ALL)
    with pytest.raises(InvariantError, match="a batch that is over"):
        intake.begin(0, 1)


def test_no_partition_goes_back_and_none_is_forgotten():
    check_positions("s0", {"t/0": 3}, {"t/0": 3, "t/1": 0})
    check_positions("s0", {}, {"t/0": 3})
    check_positions("s0", {"t/0": 3}, {})  # a micro-batch: Spark's plan says where it ends
    for after in ({"t/0": 2}, {"t/1": 9}):
        with pytest.raises(InvariantError, match="goes back"):
            check_positions("s0", {"t/0": 3}, after)


@given(st.data())
def test_whatever_is_pushed_and_however_often_a_driver_begins_anew_every_row_is_taken_once(data):
    """Lives, long batches, tasks that run again, pieces of any size: the rows taken are those of the source."""
    lengths = data.draw(st.lists(st.integers(0, 12), min_size=1, max_size=3))
    source = [(f"t/{i}", at) for i, length in enumerate(lengths) for at in range(length)]
    positions: dict[str, int] = {}
    taken: list[tuple[str, int]] = []
    for _ in range(data.draw(st.integers(0, 3))):
        intake = Intake(positions)
        stands = dict(positions)
        for batch in range(data.draw(st.integers(1, 3))):
            for i, stream in [(i, intake.begin(batch, i)) for i in range(len(lengths))]:
                name, begin = f"t/{i}", stands.get(f"t/{i}", 0)
                at = begin
                for size in data.draw(st.lists(st.integers(1, 5), max_size=3)):
                    end = min(at + size, lengths[i])
                    if end > at:
                        intake.push(stream, piece(name, at, end))
                    at = end
                if data.draw(st.booleans()):
                    taken += rows(intake.take(data.draw(st.integers(1, 6))))
                if data.draw(st.integers(0, 5)) == 0:
                    stream, at = intake.begin(batch, i), begin
                intake.end(stream, whole=True)
                stands[name] = at
        taken += rows(intake.take(data.draw(st.integers(1, ALL))))
        positions = dict(intake.positions)  # they are in the commit record; what was not taken is lost with the driver
    last = Intake(positions)
    for i, length in enumerate(lengths):
        if (at := positions.get(f"t/{i}", 0)) < length:
            last.push(last.begin(0, i), piece(f"t/{i}", at, length))
    assert sorted(taken + rows(last.take(ALL))) == source


def test_where_a_long_batch_has_ended_is_believed_when_all_of_it_was_taken():
    """Positions that a filter has left out need not be read again; rows on their way must not be passed over."""
    intake = Intake({"t/0": 0, "t/1": 4})
    stream = intake.begin(0, 0)
    intake.push(stream, piece("t/0", 0, 2))
    assert not intake.pass_over(0, {"t/0": 9})
    assert rows(intake.take(ALL)) == [("t/0", 0), ("t/0", 1)]
    intake.end(stream, whole=True)
    assert not intake.pass_over(0, {"t/0": 9})  # another stream of it may be on its way
    other = intake.begin(0, 1)
    later = intake.begin(1, 0)
    intake.push(other, piece("t/1", 4, 5))
    intake.end(other, whole=True)
    assert not intake.pass_over(0, {"t/0": 9, "t/1": 7})
    assert intake.positions == {"t/0": 2, "t/1": 4}
    assert intake.stands() == {"t/0": 2, "t/1": 5}
    intake.take(ALL)
    assert intake.pass_over(0, {"t/0": 9, "t/1": 7, "t/2": 1})
    assert intake.positions == {"t/0": 9, "t/1": 7, "t/2": 1}
    intake.push(later, piece("t/0", 9, 11))
    assert rows(intake.take(ALL)) == [("t/0", 9), ("t/0", 10)]
    assert intake.pass_over(0, {"t/0": 9})
    assert intake.positions["t/0"] == 11


def test_a_long_batch_of_which_a_task_is_missing_is_not_passed_over():
    intake = Intake({})
    torn = intake.begin(0, 0)
    intake.end(torn, whole=False)
    intake.begin(1, 0)
    assert not intake.pass_over(0, {"t/0": 9})
    again = intake.begin(0, 0)
    intake.end(again, whole=True)
    assert intake.pass_over(0, {"t/0": 9})

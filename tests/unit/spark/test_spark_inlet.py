"""What tasks of a real-time query push, and what their stage may take of it. The tasks are threads of this process."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from support.pushing_task import SCHEMA, PushingTask

from holdfast.pipeline.real_time import OFFSET, PARTITION, TOPIC
from holdfast.spark.inlet import Inlet, offsets_of, positions_of

LIMIT_S = 30.0
ALL = 1_000_000


@pytest.fixture
def inlet() -> Iterator[Inlet]:
    made = Inlet("s0")
    yield made
    made.close()


def wait(condition: Callable[[], Any]) -> Any:
    until = time.monotonic() + LIMIT_S
    while not (found := condition()):
        assert time.monotonic() < until
        time.sleep(0.002)
    return found


def taken(inlet: Inlet, rows: int) -> list[int]:
    """The next rows, as many as are expected."""
    found: list[int] = []
    until = time.monotonic() + LIMIT_S
    while len(found) < rows and time.monotonic() < until:
        inlet.wait(0.05)
        table = inlet.take(ALL)
        if table is not None:
            assert table.column_names == ["x"]  # positions are not the user's affair
            found += table.column("x").to_pylist()
    return found


def test_rows_come_with_their_positions_and_without_the_columns_that_say_them(inlet):
    inlet.begin_at({"t/0": 3, "t/1": 0})
    task = PushingTask(inlet, 0, 0).push(0, 3, 4).push(0, 8)
    assert taken(inlet, 3) == [30, 40, 80]
    assert inlet.positions == {"t/0": 9, "t/1": 0}
    task.push(1, 0)  # a task may read several partitions
    assert taken(inlet, 1) == [0]
    assert inlet.positions == {"t/0": 9, "t/1": 1}
    task.end()


def test_what_was_pushed_at_once_may_be_of_several_partitions(inlet):
    task = PushingTask(inlet, 0, 0)
    rows = [{"x": x, TOPIC: topic, PARTITION: p, OFFSET: at} for x, topic, p, at in
            ((1, "t", 0, 5), (2, "u", 0, 7), (3, "t", 0, 6), (4, "t", 1, 2))]  # fmt: skip
    task.writer.write_batch(pa.RecordBatch.from_pylist(rows, SCHEMA))
    assert taken(inlet, 4) == [1, 2, 3, 4]
    assert inlet.positions == {"t/0": 7, "u/0": 8, "t/1": 3}


def test_rows_that_were_taken_before_are_left_out(inlet):
    inlet.begin_at({"t/0": 4})
    PushingTask(inlet, 0, 0).push(0, 2, 3, 4, 5)
    assert taken(inlet, 2) == [40, 50]


def test_a_later_long_batch_waits_until_every_task_of_the_one_before_has_ended_well(inlet):
    first, second = PushingTask(inlet, 0, 0).push(0, 0), PushingTask(inlet, 0, 1)
    later = PushingTask(inlet, 1, 0).push(0, 1)
    assert taken(inlet, 1) == [0]
    second.end()
    wait(lambda: inlet.begun == 3 and inlet.wait(0))
    assert inlet.take(ALL) is None
    first.end()
    assert taken(inlet, 1) == [10]
    later.end()


def test_a_task_that_dies_holds_up_later_batches_and_what_it_had_pushed_counts(inlet):
    dying = PushingTask(inlet, 0, 0).push(0, 0, 1)
    assert taken(inlet, 2) == [0, 10]
    dying.tear()
    PushingTask(inlet, 1, 0).push(0, 5)
    wait(lambda: inlet.wait(0))
    assert inlet.take(ALL) is None
    assert inlet.positions == {"t/0": 2}


def test_who_does_not_know_the_secret_is_hung_up_on(inlet):
    stranger = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stranger.connect(inlet.path)
    stranger.sendall(bytes(48))
    stranger.settimeout(LIMIT_S)
    assert stranger.recv(1) == b""
    assert inlet.begun == 0
    PushingTask(inlet, 0, 0).push(0, 0)
    assert taken(inlet, 1) == [0]


def test_a_task_waits_while_much_of_it_waits_and_no_other_one_does(inlet, monkeypatch):
    monkeypatch.setattr("holdfast.spark.inlet.WAITING_ROWS_MAX", 3)
    busy, other = PushingTask(inlet, 0, 0), PushingTask(inlet, 0, 1)
    for at in range(0, 12, 2):
        busy.push(0, at, at + 1)  # what is not read stays in the socket
    other.push(1, 0)
    wait(lambda: inlet._intake.waiting == 5)
    assert sorted(taken(inlet, 13)) == sorted([0, *range(0, 120, 10)])
    assert inlet.positions == {"t/0": 12, "t/1": 1}


def test_an_empty_push_is_a_sign_of_life_and_no_rows_are_waited_for(inlet):
    assert not inlet.is_quiet()  # nobody reads the source yet
    task = PushingTask(inlet, 0, 0).push(0)
    wait(inlet.is_quiet)
    task.push(0, 0)
    wait(lambda: inlet.wait(0))
    assert not inlet.is_quiet()
    assert taken(inlet, 1) == [0]
    assert inlet.is_quiet()
    task.tear()
    wait(lambda: not inlet.is_quiet())


def test_between_two_long_batches_the_source_still_counts_as_silent_for_a_moment(inlet, monkeypatch):
    task = PushingTask(inlet, 0, 0).push(0)
    wait(inlet.is_quiet)
    task.end()
    wait(lambda: not inlet._connections)
    assert inlet.is_quiet()
    monkeypatch.setattr("holdfast.spark.inlet.ALIVE_S_MAX", 0.0)
    assert not inlet.is_quiet()


def test_rows_out_of_order_are_an_error_of_the_stage(inlet):
    PushingTask(inlet, 0, 0).push(0, 5).push(0, 4)
    with pytest.raises(Exception, match="out of order"):
        wait(lambda: inlet.wait(0.1) and False)


def test_offsets_of_kafka_and_positions_are_the_same_said_twice():
    offsets = {"a.b-c": {"0": 5, "12": 0}, "d": {"1": 7}}
    positions = {"a.b-c/0": 5, "a.b-c/12": 0, "d/1": 7}
    assert positions_of(offsets) == positions
    assert offsets_of(positions) == '{"a.b-c":{"0":5,"12":0},"d":{"1":7}}'


def test_where_a_long_batch_has_ended_is_known_when_the_next_one_has_begun(inlet):
    task = PushingTask(inlet, 0, 0).push(0, 0, 1)
    wait(lambda: inlet.waiting == 2)
    assert inlet.stands() == {"t/0": 2}
    assert taken(inlet, 2) == [0, 10]
    task.end()
    wait(lambda: not inlet._connections)
    assert not inlet.pass_over(0, {"t/0": 9})
    later = PushingTask(inlet, 1, 0)
    wait(lambda: inlet.pass_over(0, {"t/0": 9}))
    assert inlet.positions == {"t/0": 9}
    later.end()


def test_large_rows_wait_in_smaller_numbers(inlet, monkeypatch):
    monkeypatch.setattr("holdfast.spark.inlet.WAITING_BYTES_MAX", 100)
    task = PushingTask(inlet, 0, 0)
    for at in range(0, 20, 2):
        task.push(0, at, at + 1)
    wait(inlet.is_full)
    assert 0 < inlet.waiting < 20
    assert taken(inlet, 20) == list(range(0, 200, 10))
    task.end()


def test_what_a_killed_process_has_left_is_removed_and_what_a_live_one_has_is_not(inlet, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left = tmp_path / "holdfast-rows-left"
    left.mkdir()
    (left / "lock").touch()
    first = Inlet("s1")
    second = Inlet("s2")
    assert not left.exists()
    assert first.directory.exists()
    first.close()
    second.close()
    assert list(tmp_path.iterdir()) == []

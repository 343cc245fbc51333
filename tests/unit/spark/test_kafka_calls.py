"""Calls of a Kafka client that may never come back."""

from __future__ import annotations

import threading
import time

import pytest

from holdfast.spark.kafka_calls import CallLost, ClientCalls


@pytest.fixture
def stopping() -> threading.Event:
    return threading.Event()


def test_what_a_call_gives_or_raises_is_given_or_raised(stopping: threading.Event):
    calls = ClientCalls("calls", 30.0)
    assert [calls.do(lambda n=n: n + 1, stopping) for n in range(3)] == [1, 2, 3]
    with pytest.raises(ZeroDivisionError):
        calls.do(lambda: 1 // 0, stopping)
    assert calls.do(lambda: "on", stopping) == "on"
    calls.close()


def test_a_call_that_does_not_come_back_is_left_behind_and_its_thread_ends_when_it_does(stopping: threading.Event):
    held = threading.Event()
    calls = ClientCalls("left-behind", 0.3)
    with pytest.raises(CallLost, match=r"0\.3 s"):
        calls.do(held.wait, stopping)
    (thread,) = [t for t in threading.enumerate() if t.name == "left-behind"]
    held.set()
    thread.join(10)
    assert not thread.is_alive()


def test_whoever_is_told_to_stop_does_not_wait_for_the_whole_limit(stopping: threading.Event):
    stopping.set()
    held = threading.Event()
    calls = ClientCalls("stopped", 600.0)
    began = time.monotonic()
    with pytest.raises(CallLost):
        calls.do(held.wait, stopping)
    assert time.monotonic() - began < 300
    held.set()

"""The service: time limits that say what was waited for, second tries where that is safe, and calling off."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator

import pytest

from holdfast.errors import CalledOffError, StoreFullError, StoreUnreachableError
from holdfast.store import All, GetWhole, IoService, LookAt, MemoryStore, PutNew, SwapSmall, Trouble


def _one(operation):
    return (yield operation)


@pytest.fixture
def hanging():
    """A store whose reads hang until they are let go."""
    go = threading.Event()
    inner = MemoryStore()

    def trouble(op: str, key: str) -> Trouble:
        if op == "get" and key.startswith("slow"):
            go.wait(30)
        return Trouble.NONE

    inner.trouble = trouble
    inner.put("slow", [b"x"])
    inner.put("quick", [b"y"])
    yield inner, go
    go.set()


def test_a_wait_ends_with_a_word_of_what_was_waited_for(hanging):
    inner, go = hanging
    told: list[str] = []
    service = IoService(inner, workers=2, stall_s=0.4, again_s=0.0, tell_s=0.1, on_wait=told.append)
    with pytest.raises(StoreUnreachableError, match="does not answer") as caught:
        service.run(_one(GetWhole("slow", 10)))
    assert re.search(r"Waited \d+ s for it to read slow\.", caught.value.detail)
    (once,) = told
    assert re.fullmatch(r"has waited \d+ s for memory:// to read slow", once)
    assert service.run(_one(GetWhole("quick", 10))) == b"y", "the other worker is free"
    with pytest.raises(StoreUnreachableError):
        service.run(_one(GetWhole("slow", 10)))
    with pytest.raises(StoreUnreachableError, match="does not answer") as caught:
        service.run(_one(GetWhole("quick", 10)))
    assert "2 operations that were given up still wait" in caught.value.detail
    go.set()
    until = time.monotonic() + 10
    while service._stuck and time.monotonic() < until:
        time.sleep(0.01)
    assert service.run(_one(GetWhole("quick", 10))) == b"y"
    service.close()


def test_what_changes_nothing_is_tried_again_and_told(hanging):
    inner, _ = hanging
    failures = iter([StoreUnreachableError("away")] * 2)
    told: list[str] = []

    def trouble(op: str, key: str) -> Trouble:
        error = next(failures, None) if op == "look" else None
        if error:
            raise error
        return Trouble.NONE

    inner.trouble = trouble
    service = IoService(inner, on_wait=told.append)
    assert service.run(_one(LookAt("head/x"))) is None
    assert told == ["waits for memory:// to look at head/x: away"]
    service.close()


def test_a_swap_and_a_stream_are_never_tried_again():
    inner = MemoryStore(trouble=lambda op, key: Trouble.LOST_ANSWER)
    service = IoService(inner)
    with pytest.raises(StoreUnreachableError):
        service.run(_one(SwapSmall("head/x", b"1", None)))
    assert inner.look("head/x") == (b"1", "1"), "it was done once"
    with pytest.raises(StoreUnreachableError):
        service.run(_one(PutNew("k", iter([b"1"]))))
    service.close()


def test_what_a_store_refuses_is_not_asked_again():
    inner = MemoryStore(bytes_max=10)
    service = IoService(inner)
    started = time.monotonic()
    with pytest.raises(StoreFullError):
        service.run(_one(PutNew("k", [b"x" * 11], again=True)))
    assert time.monotonic() - started < 5
    service.close()


def test_a_write_that_moves_is_not_given_up_however_long_it_takes():
    def slowly() -> Iterator[bytes]:
        for _ in range(8):
            time.sleep(0.1)
            yield b"x"

    service = IoService(MemoryStore(), stall_s=0.5)
    assert service.run(_one(PutNew("k", slowly()))) == 8
    service.close()


def test_calling_off_ends_a_write_and_nothing_of_it_is_left():
    inner = MemoryStore()
    service = IoService(inner, workers=2)
    cancel, started = threading.Event(), threading.Event()

    def endless() -> Iterator[bytes]:
        while True:
            started.set()
            time.sleep(0.01)
            yield b"x"

    threading.Thread(target=lambda: (started.wait(30), cancel.set())).start()
    with pytest.raises(CalledOffError, match="called off: write"):
        service.run(_one(All([PutNew("a", endless()), PutNew("b", endless())])), cancel)
    until = time.monotonic() + 10
    while service._stuck and time.monotonic() < until:
        time.sleep(0.01)
    assert inner.objects == {}
    service.close()


def test_if_one_of_several_fails_the_others_end_too():
    def endless() -> Iterator[bytes]:
        while True:
            time.sleep(0.01)
            yield b"x"

    inner = MemoryStore()
    inner.put("taken", [b"1"])
    service = IoService(inner)
    with pytest.raises(Exception, match="taken is in memory:// already"):
        service.run(_one(All([PutNew("endless", endless()), PutNew("taken", [b"2"])])))
    assert list(inner.objects) == ["taken"]
    service.close()

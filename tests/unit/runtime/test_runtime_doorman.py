"""Connections without a token are hung up; those of members are left alone, however old and busy they are."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from holdfast.runtime.net import doorman
from holdfast.runtime.net.doorman import Doorman


class WatchedPort:
    """A port with a doorman, and both ends of connections to it."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self._opened = contextlib.ExitStack()
        # as gRPC listens: for both kinds of IP at once
        self._ear = self._opened.enter_context(socket.socket(socket.AF_INET6))
        self._ear.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        self._ear.bind(("::", 0))
        self._ear.listen(100)
        self.port = self._ear.getsockname()[1]
        self.doorman = Doorman(self.port, self.told.append)
        self._opened.callback(self.doorman.close)

    def come(self) -> tuple[socket.socket, socket.socket]:
        theirs = self._opened.enter_context(socket.create_connection(("127.0.0.1", self.port)))
        theirs.settimeout(10)
        return theirs, self._opened.enter_context(self._ear.accept()[0])

    def let_in(self, theirs: socket.socket) -> None:
        self.doorman.let_in(f"ipv4:127.0.0.1:{theirs.getsockname()[1]}")

    def close(self) -> None:
        self._opened.close()


@pytest.fixture
def door() -> Iterator[WatchedPort]:
    made = WatchedPort()
    yield made
    made.close()


def is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return bool(connection.recv(1))
    except BlockingIOError:
        return True
    except OSError:
        return False


def wait_for(test: Callable[[], object], what: str) -> None:
    until = time.monotonic() + 20
    while not test():
        assert time.monotonic() < until, f"waited for {what}"
        time.sleep(0.01)


def test_who_says_nothing_is_hung_up_and_who_was_let_in_is_not(door, monkeypatch):
    monkeypatch.setattr(doorman, "WAIT_S_MAX", 0.3)
    member, _ = door.come()
    stranger, _ = door.come()
    door.let_in(member)
    wait_for(lambda: not is_open(stranger), "the stranger to go")
    assert is_open(member)
    assert ["0.3 s without a call" in text for text in door.told] == [True]


def test_of_too_many_the_oldest_go(door, monkeypatch):
    monkeypatch.setattr(doorman, "WAITING_MAX", 3)
    member, _ = door.come()
    door.let_in(member)
    first, _ = door.come()
    wait_for(lambda: door.doorman._waiting, "the first to be seen")
    rest = [door.come()[0] for _ in range(3)]
    wait_for(lambda: not is_open(first), "the oldest to go")
    assert all(is_open(one) for one in [*rest, member])


def test_who_sends_too_much_goes_and_a_member_may_send_anything(door, monkeypatch):
    monkeypatch.setattr(doorman, "BYTES_MAX", 10_000)
    member, at_member = door.come()
    small, _ = door.come()
    large, _ = door.come()
    door.let_in(member)
    wait_for(lambda: len(door.doorman._waiting) == 2, "the member to be known")
    small.sendall(b"x" * 2_000)
    member.sendall(b"x" * 50_000)
    large.sendall(b"x" * 20_000)
    wait_for(lambda: not is_open(large), "the large one to go")
    assert is_open(small)
    assert is_open(member)
    assert at_member.recv(10)


def test_gRPCs_names_of_the_other_end_are_read(door):
    for peer in ("ipv4:10.0.0.7:4711", "ipv6:%5B2001:db8::1%5D:4711", "unix:", "unix:/x", "?"):
        door.doorman.let_in(peer)
    assert {("10.0.0.7", 4711), ("2001:db8::1", 4711)} >= set(door.doorman._let_in)

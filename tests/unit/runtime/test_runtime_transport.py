"""What a node says to processes that come and go."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable

import pyarrow.flight as flight
import pytest
from support.far import far

from holdfast.errors import PeerError
from holdfast.model import messages as m
from holdfast.model.record import Record
from holdfast.runtime.net import wire
from holdfast.runtime.net.links import BULK, FAST, Link, Outgoing, first_line
from holdfast.runtime.net.security import GUEST, NODE, Security
from holdfast.runtime.net.transport import Caller, Guest, Peer, Server


def quiet(what: str, peer: str, text: str) -> None:
    pass


def test_a_stream_is_not_let_go_while_something_is_still_written_to_it():
    """gRPC frees a stream when its call returns: a driver that ended while it was spoken to once took a node along."""
    writing, may_end = threading.Event(), threading.Event()

    def write(raw: bytes) -> None:
        writing.set()
        may_end.wait(10)

    server = Server.__new__(Server)
    server.guests, server._lock = {}, threading.Lock()
    out = Outgoing("s0@1", "n0", write, quiet)
    server.guests["s0@1"] = guest = Guest()
    guest.lanes[FAST] = [out]
    guest.send("s0@1", m.Pull(version=0))
    assert writing.wait(10)
    threading.Timer(0.3, may_end.set).start()
    server._let_out("s0@1", FAST, out)
    assert may_end.is_set()
    assert server.guests == {}


def test_messages_keep_to_their_lanes_also_when_those_are_empty():
    heard: dict[bytes, list[bytes]] = {FAST: [], BULK: []}
    guest = Guest()
    for lane in (BULK, FAST):  # the other one was opened first
        guest.lanes[lane] = [Outgoing("s0@1", "n0", heard[lane].append, quiet)]
    guest.send("s0@1", m.Pull(version=0))
    for (out,) in guest.lanes.values():
        while len(out):
            pass
        out.close()
        assert out.has_ended(10)
    assert len(heard[FAST]) == 1
    assert heard[BULK] == []


SECRET = b"a secret of at least sixteen"
SECURITY = Security(SECRET, deployment="d-1")


@pytest.fixture
def node():
    """A server that knows one action and notes what it hears."""
    heard: list[m.Message] = []
    server = Server(
        "grpc://127.0.0.1:0",
        "n0",
        SECURITY,
        members=("n0", "n1"),
        on_message=lambda source, target, message: heard.append(message),
        on_trouble=quiet,
        actions={"ping": lambda body: {"ok": True}},
        fetch=lambda ticket: (_ for _ in ()).throw(AssertionError),
    )
    server.source = "n0"
    server.open.set()
    yield server, heard
    server.shutdown()


def test_a_node_that_is_far_away_or_busy_is_reached(node):
    """A connection that took more than 0.1 s was given up, each time anew: `stop --finish` once found nobody."""
    server, heard = node
    with far(server.port, connect_s=0.4) as endpoint:
        assert Caller("guest", {"n0": endpoint}, SECURITY).call("n0", "ping") == {"ok": True}
        link = Link("n0", endpoint, "n1#1", NODE, SECURITY, lambda *_: None, quiet)
        try:
            link.send("n0", m.Pull(version=7))
            wait_for(lambda: heard, "the message")
        finally:
            link.close()
    assert heard == [m.Pull(version=7)]


def test_a_proxy_of_the_environment_is_not_asked_for_nodes(node, monkeypatch):
    server, _ = node
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    caller = Caller("guest", {"n0": f"grpc://127.0.0.1:{server.port}"}, SECURITY)
    assert caller.call("n0", "ping") == {"ok": True}
    caller.close()


def test_a_connection_that_nothing_crosses_is_given_up_by_the_kernel_not_kept_for_minutes(node):
    """The kernel waits longer with every try: after a cut of a minute, a connection would stay silent for another."""
    server, _ = node
    caller = Caller("guest", {"n0": f"grpc://127.0.0.1:{server.port}"}, SECURITY)
    assert caller.call("n0", "ping") == {"ok": True}
    assert limits_ms_to(server.port) == [10_000]
    caller.close()


def test_a_guest_that_comes_back_opens_both_lanes_anew(node):
    """A guest says nothing on the lane of rows: its kernel does not notice a cut there, and the node's waits long after
    one. The other lane, on which it speaks, is back first."""
    server, heard = node
    link = Link("n0", f"grpc://127.0.0.1:{server.port}", "r0@1", GUEST, SECURITY, lambda *_: None, quiet)
    try:

        def lane_of_rows() -> object:
            guest = server.guests.get("r0@1")
            return guest.lanes.get(BULK, [None])[-1] if guest is not None and FAST in guest.lanes else None

        wait_for(lambda: lane_of_rows() is not None, "the guest")
        rows = lane_of_rows()
        assert link._fast._reader is not None
        link._fast._reader.cancel()
        wait_for(lambda: link._fast._writer is None, "the end of the stream")
        link.send("n0", m.Pull(version=7))
        wait_for(lambda: lane_of_rows() not in (None, rows), "another stream for rows")
    finally:
        link.close()
    assert heard == [m.Pull(version=7)]


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("it is gone. Detail: x", "it is gone"),
        ("one\ntwo", "one"),
        (". Detail: Python exception: MemoryError", ". Detail: Python exception: MemoryError"),
        ("", "ValueError"),
    ],
)
def test_an_error_without_words_is_still_an_error(said, line):
    """A node that had no memory left to say more ended whoever asked it with an IndexError."""
    assert first_line(ValueError(said)) == line


def test_who_opens_a_stream_in_the_name_of_another_does_not_silence_it_for_good(node):
    """The later stream was spoken to from then on, and when it ended, nobody: a stage waited for an answer forever."""
    server, _ = node
    heard: list[m.Message] = []
    endpoint = f"grpc://127.0.0.1:{server.port}"
    right = Link("n0", endpoint, "s0@1", GUEST, SECURITY, lambda source, target, message: heard.append(message), quiet)
    try:
        wait_for(lambda: "s0@1" in server.guests and len(server.guests["s0@1"].lanes) == 2, "the guest")
        other = Link("n0", endpoint, "s0@1", GUEST, SECURITY, lambda *_: None, quiet)
        wait_for(lambda: [len(lane) for lane in server.guests["s0@1"].lanes.values()] == [2, 2], "the other one")
        other.close()
        wait_for(lambda: [len(lane) for lane in server.guests["s0@1"].lanes.values()] == [1, 1], "its end")
        server.guests["s0@1"].send("s0@1", m.Pull(version=7))
        wait_for(lambda: heard, "an answer")
    finally:
        right.close()
    assert heard == [m.Pull(version=7)]


def test_who_names_no_deployment_may_ask_for_it_and_nothing_else(node):
    server, _ = node
    caller = Caller("guest", {"n0": f"grpc://127.0.0.1:{server.port}"}, Security(SECRET))
    assert caller.call("n0", "ping") == {"ok": True}
    with pytest.raises(PeerError, match="no deployment: 'guest'"):
        caller.call("n0", "status")
    with pytest.raises(PeerError, match="no deployment: 'guest'"):
        caller.fetch("n0", m.Fetch(ticket=1, edge="u0.0", start=0, end=1, consumer="r0", epoch=1))
    caller.close()
    link = Link("n0", f"grpc://127.0.0.1:{server.port}", "r0@1", GUEST, Security(SECRET), lambda *_: None, quiet)
    wait_for(lambda: "no deployment" in link.refused, "the refusal")
    link.close()


def test_a_stream_speaks_only_for_whoever_opened_it(node):
    server, heard = node
    troubles: list[str] = []
    server._on_trouble = lambda what, peer, text: troubles.append(f"{what} {text}")
    client = flight.FlightClient(f"grpc://127.0.0.1:{server.port}")
    options = flight.FlightCallOptions(headers=SECURITY.headers("n1#1", NODE, "n0"))
    writer, _ = client.do_exchange(flight.FlightDescriptor.for_command(FAST), options)
    writer.write_metadata(wire.encode("n0#1", "n0", m.Pull(version=1)))
    writer.write_metadata(wire.encode("n1#1", "n0", m.Pull(version=2)))
    wait_for(lambda: heard, "the message")
    assert heard == [m.Pull(version=2)]
    assert [t for t in troubles if "a message from n1#1 says that it is from n0#1" in t]
    client.close()


def limits_ms_to(port: int) -> list[int]:
    """Of the sockets of this process that are connected to a port."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with (
            contextlib.suppress(OSError),  # no socket, or not connected
            socket.socket(fileno=os.dup(int(number))) as one,
        ):
            if one.getpeername()[1] == port:
                found.append(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
    return found


def wait_for(found: Callable[[], object], what: str) -> None:
    limit = time.monotonic() + 20
    while not found():
        assert time.monotonic() < limit, f"{what} did not come"
        time.sleep(0.01)


A, B, C = (f"grpc://127.0.0.1:{port}" for port in (7101, 7102, 7103))


def push(version: int, roster: dict[str, str]) -> m.Push:
    return m.Push(record=Record(version=version, term=1, members={"n0": 1}, places={}, roster=roster))


def test_a_process_finds_a_node_that_has_left_and_come_back_elsewhere(monkeypatch):
    """Or a stage or a sink that lives on would never reach it again."""
    closed = threading.Event()

    class FakeLink:
        refused = ""

        def __init__(self, name: str, endpoint: str, *rest: object) -> None:
            self.endpoint = endpoint

        def send(self, target: str, message: m.Message) -> None:
            said.append(self.endpoint)

        close = staticmethod(closed.set)

    monkeypatch.setattr("holdfast.runtime.net.transport.Link", FakeLink)
    said: list[str] = []
    peer = Peer("s0@1", {"n0": A, "n2": B}, SECURITY, lambda *given: None)
    peer.send("n2", m.Pull(version=0))
    first = peer.caller.client("n2")
    peer._take("n0#1", "s0@1", push(5, {"n2": C}))  # what it was told is newer than the first record that it hears
    assert peer.endpoints["n2"] == B
    peer._take("n0#1", "s0@1", push(6, {"n2": ""}))
    peer._take("n0#1", "s0@1", push(8, {"n2": C, "n3": A}))
    peer._take("n1#1", "s0@1", push(7, {"n2": B}))  # from one that is behind
    assert peer.endpoints == {"n0": A, "n2": C, "n3": A}
    peer.send("n2", m.Pull(version=0))
    assert said == [B, C]
    assert closed.wait(10)
    assert peer.caller.client("n2") is not first
    assert peer.caller.client("n2") is peer.caller.client("n2")
    peer.caller.close()

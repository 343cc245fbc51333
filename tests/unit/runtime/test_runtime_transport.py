"""What a node says to processes that come and go."""

from __future__ import annotations

import threading

from holdfast.model import messages as m
from holdfast.runtime.links import BULK, FAST, Outgoing
from holdfast.runtime.transport import Guest, Server


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
    guest.lanes[FAST] = out
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
        guest.lanes[lane] = Outgoing("s0@1", "n0", heard[lane].append, quiet)
    guest.send("s0@1", m.Pull(version=0))
    for out in guest.lanes.values():
        while len(out):
            pass
        out.close()
        assert out.has_ended(10)
    assert len(heard[FAST]) == 1
    assert heard[BULK] == []

"""Heartbeats of a node that is busy with one long step."""

from __future__ import annotations

import time
from collections.abc import Callable

from holdfast.core.election import Standing
from holdfast.model import messages as m
from holdfast.model.config import MS
from holdfast.runtime.node.pulse import Pulse


def wait_for(test: Callable[[], bool], seconds: float = 10.0) -> None:
    until = time.monotonic() + seconds
    while not test():
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.01)


class _Loop:
    def __init__(self) -> None:
        self.since = time.monotonic_ns()
        self.failure = None

    def clock(self) -> int:
        return time.monotonic_ns()

    def busy_ns(self) -> int:
        return self.clock() - self.since


class _Election:
    standing = Standing.COORDINATOR
    coordinator = "n0"
    accepted = type("R", (), {"members": {"n0": 1, "n1": 1, "n2": 1}})()


class _Node:
    name = "n0"
    config = type("C", (), {"heartbeat_ns": 100 * MS})()
    detector = type("D", (), {"near": frozenset({"n1"})})()
    election = _Election()


def test_a_busy_node_is_spoken_for_until_it_counts_as_hung():
    sent: list[tuple[str, m.Message]] = []
    loop, node = _Loop(), _Node()
    pulse = Pulse(loop, node, lambda to, message: sent.append((to, message)), 1_500 * MS)  # pyright: ignore
    beat, heartbeat = m.Beat(term=1, version=2, commit=2), m.Heartbeat(life=1, version=2)
    pulse.start()
    for _ in range(20):  # it speaks for itself
        pulse.saw(beat)
        pulse.saw(heartbeat)
        time.sleep(0.002)
    assert pulse.sent == 0
    wait_for(lambda: pulse.sent >= 3)  # then it is silent, and busy
    said = [message for _, message in sent if isinstance(message, m.Heartbeat)]
    assert {(to, message) for to, message in sent if message not in said} == {("n1", beat), ("n2", beat)}
    assert [to for to, message in sent if message in said] == ["n1"] * len(said)
    assert {(h.life, h.version) for h in said} == {(1, 2)}
    times = [h.stalled_ns for h in said]  # it does not cover up that the loop stands still
    assert times == sorted(times)
    assert times[-1] > 100 * MS
    time.sleep(1.6)
    before = pulse.sent
    time.sleep(0.3)
    assert pulse.sent == before  # it hangs
    pulse.close()

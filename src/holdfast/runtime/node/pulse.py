"""Speak for a node whose loop is busy: a long window close, or a slow disk, must not look like a death.

When a heartbeat is overdue, a thread repeats the node's last one (to its neighbours and to the coordinator) and, if it
is the coordinator, its last beat. The core does not mind doubled messages. Such a heartbeat says for how long the loop
has stood still (`stalled_ns`): nobody is removed for that, and peers know what they wait for. It stops when the loop
or its outbox has been at the same thing for `busy_limit`: a node that hangs must be found.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

from holdfast.core.election import Standing
from holdfast.core.node import Node
from holdfast.model import messages as m
from holdfast.model.ids import Address
from holdfast.runtime.node.loop import MachineLoop


class Pulse:
    def __init__(
        self, loop: MachineLoop, node: Node, send: Callable[[Address, m.Message], None], busy_limit_ns: int
    ) -> None:
        self._loop = loop
        self._node = node
        self._send = send
        self._limit_ns = busy_limit_ns
        self._heartbeat_ns = node.config.heartbeat_ns
        self._heartbeat: m.Heartbeat | None = None
        self._beat: m.Beat | None = None
        #: When the node last spoke, by itself or by this.
        self._sent_ns = loop.clock()
        self._closed = threading.Event()
        self.sent = 0
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closed.set()

    def saw(self, message: m.Message) -> None:
        """What the node itself sends, as it sends it."""
        if isinstance(message, m.Heartbeat):
            self._heartbeat = message
            self._sent_ns = self._loop.clock()
        elif isinstance(message, m.Beat):
            self._beat = message

    def _run(self) -> None:
        while not self._closed.wait(self._heartbeat_ns / 8e9):
            overdue = self._loop.clock() - self._sent_ns > self._heartbeat_ns * 9 // 8
            if overdue and self._loop.failure is None and self._loop.busy_ns() < self._limit_ns:
                self._speak()

    def _speak(self) -> None:
        node, name = self._node, self._node.name
        if self._heartbeat is not None:
            heartbeat = msgspec.structs.replace(self._heartbeat, stalled_ns=self._loop.busy_ns())
            hearers = {*node.detector.near, node.election.coordinator} - {None, name}
            for hearer in sorted(str(h) for h in hearers):
                self._send(hearer, heartbeat)
        if self._beat is not None and node.election.standing is Standing.COORDINATOR:
            for member in list(node.election.accepted.members):
                if member != name:
                    self._send(member, self._beat)
        self._sent_ns = self._loop.clock()
        self.sent += 1

"""Limits for connections whose caller has not shown a token yet, which gRPC has none for.

gRPC reads a request as a whole before anybody can look at its headers, keeps connections that say nothing for minutes,
and Arrow Flight passes none of its limits on. So a thread looks at the sockets of this process: those of the node's
port on which no caller was let in are hung up when they are too old, too many, or have sent too much. A member is let
in with its first call, within milliseconds; from then on its connection is none of the doorman's business.

Only TCP has to be watched: a Unix socket has its directory. The kernel says what there is (`/proc/self/fd`, TCP_INFO);
where it does not, nothing is limited. A socket is looked at through a duplicate, so it stays the same one from the look
to the end, whatever gRPC does with its own descriptor meanwhile.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from urllib.parse import unquote

#: How long a caller may take from connecting to its first call.
WAIT_S_MAX = 10.0
#: Connections that may wait for their first call. The oldest are hung up first.
WAITING_MAX = 256
#: Bytes that they may have sent, all together; twice what an action may have. The largest are hung up first.
BYTES_MAX = 16 << 20
LOOK_S = 0.05
#: Looks that may be left out while nobody waits and the descriptors are the same: what changed hands is seen then.
SPARED_MAX = 9
DESCRIPTORS = "/proc/self/fd"
#: Where tcpi_bytes_received is in the kernel's struct tcp_info, and how much of that is needed.
_RECEIVED = struct.Struct("=128xQ")


class _Newcomer:
    """A connection whose caller is not known yet."""

    __slots__ = ("inode", "looks", "received", "socket")

    def __init__(self, inode: str, connection: socket.socket, looks: int) -> None:
        self.inode = inode
        self.socket = connection
        self.looks = looks
        self.received = 0


class Doorman:
    """Watches the port of a node. `let_in` says who is known; `on_hung_up` is told of those who were not."""

    def __init__(self, port: int, on_hung_up: Callable[[str], None]) -> None:
        self._port = port
        self._on_hung_up = on_hung_up
        #: Other ends of connections on which a caller was let in, with the time; until the next look.
        self._let_in: dict[tuple[str, int], float] = {}
        self._lock = threading.Lock()
        #: Sockets (by the kernel's number, which is not used again) that need no look any more, and those that wait,
        #: with the looks they have had: a process that was frozen has not waited for anybody.
        self._passed: set[str] = set()
        self._waiting: dict[str, int] = {}
        self._numbers: list[str] = []
        self._spared = 0
        self._closed = threading.Event()
        threading.Thread(target=self._run, name="doorman", daemon=True).start()

    def let_in(self, peer: str) -> None:
        """By gRPC's name of the other end: ipv4:127.0.0.1:4711, ipv6:%5B::1%5D:4711."""
        host, _, port = unquote(peer).partition(":")[2].rpartition(":")
        if port.isdigit():
            with self._lock:
                self._let_in[_far(host.strip("[]"), int(port))] = time.monotonic()

    def close(self) -> None:
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(LOOK_S):
            with suppress(OSError):  # no descriptor is left for a look: at the next one there may be
                self._look()

    def _look(self) -> None:
        now = time.monotonic()
        numbers = _descriptors()
        if numbers == self._numbers and not self._waiting and self._spared < SPARED_MAX:
            self._spared += 1
            return
        self._numbers, self._spared = numbers, 0
        self._look_at(numbers, now)

    def _look_at(self, numbers: list[str], now: float) -> None:
        """`now`: no later than these were all the descriptors."""
        with ExitStack() as opened:
            waiting: list[_Newcomer] = []
            there: set[str] = set()
            for number, inode in _sockets(numbers):
                if inode in there:  # a duplicate, perhaps one of ours
                    continue
                there.add(inode)
                if inode in self._passed:
                    continue
                one = _duplicate(number)
                if one is None:
                    continue
                opened.callback(one.close)
                far = self._other_end(one)
                if far is None or self._is_known(far):
                    self._passed.add(inode)
                else:
                    waiting.append(_Newcomer(inode, one, self._waiting.get(inode, 0) + 1))
            self._passed &= there
            self._waiting = {one.inode: one.looks for one in waiting}
            with self._lock:  # who was let in before this look was seen in it, or is gone
                self._let_in = {far: since for far, since in self._let_in.items() if since >= now}
            self._judge(waiting)

    def _is_known(self, far: tuple[str, int]) -> bool:
        with self._lock:
            return far in self._let_in

    def _other_end(self, one: socket.socket) -> tuple[str, int] | None:
        """Of a connection to the node's port; None: it is something else."""
        try:
            if one.family not in (socket.AF_INET, socket.AF_INET6) or one.getsockname()[1] != self._port:
                return None
            return _far(*one.getpeername()[:2])
        except OSError:  # it listens, or is gone already
            return None

    def _judge(self, waiting: list[_Newcomer]) -> None:
        kept: list[_Newcomer] = []
        for one in sorted(waiting, key=lambda one: one.looks):  # the newest first
            late = one.looks * LOOK_S > WAIT_S_MAX
            if late or len(kept) >= WAITING_MAX:
                limit = f"{WAIT_S_MAX:g} s without a call" if late else f"more than {WAITING_MAX} of them"
                self._hang_up(one, limit)
                continue
            with suppress(OSError):
                info = one.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED.size)
                (one.received,) = _RECEIVED.unpack(info)
            kept.append(one)
        total = sum(one.received for one in kept)
        for one in sorted(kept, key=lambda one: one.received, reverse=True):
            if total <= BYTES_MAX:
                break
            self._hang_up(one, f"more than {BYTES_MAX >> 20} MB before a call was allowed")
            total -= one.received

    def _hang_up(self, one: _Newcomer, why: str) -> None:
        self._passed.add(one.inode)
        del self._waiting[one.inode]
        with suppress(OSError):
            one.socket.shutdown(socket.SHUT_RDWR)  # gRPC finds it closed, and lets go of what it has read
            self._on_hung_up(f"A connection of a caller who showed no token was closed: {why}.")


def _far(host: str, port: int) -> tuple[str, int]:
    """gRPC's sockets are of both kinds of IP, so that the kernel names those of the older kind by the newer one."""
    return host.lower().removeprefix("::ffff:"), port


def _descriptors() -> list[str]:
    try:
        return os.listdir(DESCRIPTORS)
    except FileNotFoundError:  # not Linux
        return []


def _sockets(numbers: list[str]) -> Iterator[tuple[int, str]]:
    """Those of these descriptors that are sockets, and the kernel's name for each."""
    for number in numbers:
        with suppress(OSError):  # closed meanwhile
            inode = os.readlink(f"{DESCRIPTORS}/{number}")
            if inode.startswith("socket:"):
                yield int(number), inode


def _duplicate(number: int) -> socket.socket | None:
    try:
        twin = os.dup(number)
    except OSError:
        return None
    try:
        return socket.socket(fileno=twin)
    except OSError:  # not a socket any more
        os.close(twin)
        return None

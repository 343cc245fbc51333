"""Work that a driver does elsewhere, and whose end is an event: who waits for which end.

An effect that takes time (a disk's, a store's) carries a ticket, a number that no other effect of this life of the node
has. Its end comes back as `Done` with that number, as in etcd's asynchronous storage writes: no step waits for I/O.
A ticket is good for one answer. What comes twice, or after it was given up, finds nobody; and an answer that never
comes (the thread that should give it is dead, a disk hangs) is missed after a time.

Who issued a ticket decides what its end means: whether the copy that it was for is still there, and still what it was.
"""

from __future__ import annotations

from typing import Protocol

from holdfast.core.ready import Done, Ready


class Ending(Protocol):
    """What waits for the end of a piece of work."""

    def on_done(self, done: Done, now_ns: int, ready: Ready) -> None:
        """It has ended, well or not."""
        ...

    def on_missed(self, ticket: int, now_ns: int, ready: Ready) -> None:
        """Its end was waited for long enough: whatever comes now under this ticket means nothing."""
        ...


class Tickets:
    """The open tickets of one life of a node."""

    __slots__ = ("_last", "_long", "_open", "_since_ns", "limit_ns", "long_ns")

    def __init__(self, limit_ns: int, long_ns: int = 0) -> None:
        self.limit_ns = limit_ns
        #: For work whose size nobody knows: whoever does it sees to it that it does not hang.
        self.long_ns = long_ns or limit_ns
        self._long: set[int] = set()
        self._last = 0
        self._open: dict[int, Ending] = {}
        #: By which tick each of them was open, in the order in which they were issued.
        self._since_ns: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._open)

    def issue(self, ending: Ending, *, long: bool = False) -> int:
        self._last += 1
        self._open[self._last] = ending
        if long:
            self._long.add(self._last)
        return self._last

    def cancel(self, ticket: int) -> None:
        """Nobody waits for it any more."""
        self._open.pop(ticket, None)
        self._since_ns.pop(ticket, None)
        self._long.discard(ticket)

    def on_done(self, done: Done, now_ns: int, ready: Ready) -> None:
        ending = self._open.get(done.ticket)
        if ending is not None:
            self.cancel(done.ticket)
            ending.on_done(done, now_ns, ready)

    def on_tick(self, now_ns: int, ready: Ready) -> None:
        """Miss what should have ended long ago. A ticket counts from the first tick that finds it open."""
        for ticket in self._open:
            self._since_ns.setdefault(ticket, now_ns)
        for ticket in [t for t, since_ns in self._since_ns.items() if now_ns - since_ns >= self._limit_of(t)]:
            ending = self._open[ticket]
            self.cancel(ticket)
            ending.on_missed(ticket, now_ns, ready)

    def _limit_of(self, ticket: int) -> int:
        return self.long_ns if ticket in self._long else self.limit_ns

"""Where threads of Flight wait for what the core says to a fetch: a ticket goes in as a message, the answer comes out.

Each question has an address of its own, so that the core answers it like any other message. The core answers within
the time that the asker gave; a thread waits a little longer than that, and never without a limit.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

from holdfast.core.fetch import WAIT_NS_MAX
from holdfast.errors import PeerError
from holdfast.model.ids import Address
from holdfast.model.messages import Fetch, Fetched, FetchRefused, Message

#: How long a node may be busy with something else before a thread gives up on it.
BUSY_S_MAX = 10.0


class Desk:
    def __init__(self, name: str) -> None:
        self.name = name
        self._numbers = itertools.count()
        self._waiting: dict[Address, _Waiting] = {}

    def ask(self, asked: Fetch, receive: Callable[[Address, Message], None]) -> Fetched | FetchRefused:
        """Hand a question to the core and wait for its answer. `receive` gives it to the machine's loop."""
        address = f"fetch@{next(self._numbers)}"
        waiting = self._waiting[address] = _Waiting()
        try:
            receive(address, asked)
            limit_s = min(asked.wait_ns, WAIT_NS_MAX) / 1e9 + BUSY_S_MAX
            if not waiting.done.wait(limit_s) or waiting.answer is None:
                raise PeerError(
                    f"{self.name} did not answer a fetch of {asked.edge}",
                    detail=f"It is busy with a long step, hangs or was stopped; {limit_s:g} s is the limit.",
                    hint="Ask again.",
                )
            return waiting.answer
        finally:
            del self._waiting[address]

    def answer(self, address: Address, message: Fetched | FetchRefused) -> None:
        """On the loop's thread, or the outbox's. Whoever gave up does not mind."""
        waiting = self._waiting.get(address)
        if waiting is not None:
            waiting.answer = message
            waiting.done.set()

    def close(self) -> None:
        """The machine answers nobody any more."""
        for waiting in list(self._waiting.values()):
            waiting.done.set()


class _Waiting:
    __slots__ = ("answer", "done")

    def __init__(self) -> None:
        self.answer: Fetched | FetchRefused | None = None
        self.done = threading.Event()

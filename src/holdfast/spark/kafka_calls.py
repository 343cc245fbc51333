"""Calls of a Kafka client that may never come back.

Most calls of librdkafka end when their time is over. `send_offsets_to_transaction` does not: it ends when its request
does, and where the broker came back in the middle of one it was seen to wait for good (confluent-kafka 2.16.1). So
calls are made on a thread of their own, and one that is away for too long is left behind, with its thread and its
client. That costs a thread for each time a broker comes back at the wrong moment. It can do no harm: whoever begins
anew has the broker refuse the older client, before it looks at what was written.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

#: Whoever is told to stop waits so long for a call that is under way.
STOP_S = 2.0
_LOOK_S = 0.1

_T = TypeVar("_T")


class CallLost(Exception):
    """A call has not come back; what it was to do may be done, or not."""


class ClientCalls:
    """One call after the other, in the order in which they come."""

    def __init__(self, name: str, limit_s: float) -> None:
        self._limit_s = limit_s
        self._asked: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        while (function := self._asked.get()) is not None:
            try:
                self._answers.put((function(), None))
            except BaseException as error:
                self._answers.put((None, error))

    def do(self, function: Callable[[], _T], stopping: threading.Event) -> _T:
        """What it gives or raises; `CallLost` if it does not come back, or if it is not waited for any more. After
        that nothing more may be asked."""
        self._asked.put(function)
        until = time.monotonic() + self._limit_s
        while True:
            try:
                answer, error = self._answers.get(timeout=_LOOK_S)
            except queue.Empty:
                if stopping.is_set():
                    until = min(until, time.monotonic() + STOP_S)
                if time.monotonic() >= until:
                    self.close()
                    raise CallLost(f"The client has not come back from a call for {self._limit_s:g} s.") from None
                continue
            if error is not None:
                raise error
            return answer

    def close(self) -> None:
        """Its thread ends when it comes back."""
        self._asked.put(None)

"""What a node says when the system gives it no more: descriptors, memory.

Connections and files that cannot be opened each fail with words of their own, or in silence; `Descriptors` says what
they have in common, before it comes to that.
"""

from __future__ import annotations

import errno
import os
import resource

from holdfast.runtime.node.events import EventLog

#: Of the limit: what is open beyond that is told.
MUCH = 0.9
LOOK_NS = 2 * 10**9
TELL_AGAIN_S = 60.0


class Descriptors:
    """Looks now and then how many are open."""

    def __init__(self, name: str, events: EventLog) -> None:
        self._name = name
        self._events = events
        self._looked_ns = 0

    def look(self, now_ns: int) -> None:
        if now_ns - self._looked_ns < LOOK_NS:
            return
        self._looked_ns = now_ns
        used, most = self._counted()
        if most != resource.RLIM_INFINITY and used > MUCH * most:
            text = (
                f"{used:,} of {most:,} descriptors of {self._name} are open: new connections and files will fail. What "
                "runs goes on, and what failed is tried again. Raise the limit (`ulimit -n`), or see who connects."
            )
            self._events.limited("descriptors", TELL_AGAIN_S, "descriptors", text, open=used, limit=most)

    def _counted(self) -> tuple[int, int]:
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        try:
            return len(os.listdir("/proc/self/fd")) - 1, most
        except FileNotFoundError:  # not Linux
            return 0, most
        except OSError:  # not even one for a look
            return most, most


def last_words(name: str, error: BaseException, broken: int) -> tuple[str, int]:
    """What a node says whose machine has stopped, and its exit code: `broken` if that was an invariant."""
    if isinstance(error, MemoryError) or getattr(error, "errno", 0) == errno.ENOMEM:  # Arrow's and the kernel's, too
        text = f"{name} gets no more memory from the system and stops: the others take over."
        return f"{text} Give it more, or lower its state_limit.", 1
    return f"{name} has broken an invariant and stops: {error}", broken

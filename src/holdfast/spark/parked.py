"""A standby's query that waits at a latch (`latch.py`), so that a take-over need not start one."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.spark.hand_over import Say
from holdfast.spark.latch import Latch
from holdfast.spark.reasons import is_late_worker

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

#: Spark gives a Python process 10 s to answer. On a busy machine that is tried more than once.
PARK_S_MAX = 45.0
LOOK_S = 0.05


class ParkedQuery:
    def __init__(self, readers: int, say: Say) -> None:
        #: Each of them has a Python process of its own.
        self.readers = readers
        self.say = say
        self.query: StreamingQuery | None = None
        self._latch: Latch | None = None

    def park(self, start: Callable[[str], StreamingQuery], told: Callable[[], bool]) -> None:
        """Start a query whose readers wait at the latch that it is given. If that does not work out, the stage is
        started when it is told to, as if there were no latch."""
        until = time.monotonic() + PARK_S_MAX
        while not told() and time.monotonic() < until:
            self._latch = Latch()
            self.query = start(str(self._latch.directory))
            while self.query.isActive and self._latch.waiting < self.readers:
                if told() or time.monotonic() > until:
                    return  # whatever it has done by then is of use
                time.sleep(LOOK_S)
            if self.query.isActive:
                return
            error = self.query.exception()
            self.close()
            if error is not None and not is_late_worker(error):
                self.say("waiting", what="a query that waits", detail=str(error).splitlines()[0])
                return

    def go(self, epoch: int) -> StreamingQuery | None:
        """Let the query go on, as this epoch of the stage; None: there is none that waits."""
        if self.query is None or self._latch is None:
            return None
        if not self.query.isActive:  # its Python process has ended, say
            self.close()
            return None
        self._latch.open(epoch)
        return self.query

    def close(self) -> None:
        """End what still waits."""
        latch, self._latch = self._latch, None
        query, self.query = self.query, None
        if latch is not None:
            latch.close()
        if query is not None:
            with contextlib.suppress(Exception):  # it ends because its latch was closed
                query.stop()

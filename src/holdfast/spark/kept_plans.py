"""A sink's plans in a store that is not a folder: there before the sink writes, and its commits before rows go.

Spark writes a batch's plan to the sink's checkpoint, then asks the source for its partitions, then lets the sink write.
So the source is where a plan can be made durable in time, whatever the sink is. It asks a node to do it: nodes have
the store open, and the process of a source would need a JVM of its own for HDFS.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import msgspec

from holdfast.errors import HoldfastError, PeerError
from holdfast.model.ids import Asset
from holdfast.model.parts import SinkPlan
from holdfast.runtime.net.transport import Caller
from holdfast.spark import checkpoint
from holdfast.spark.follower import ReadOptions

#: A node tells after a minute at the latest that its store does not answer.
ANSWER_S = 90.0
#: So long nodes are asked, one after the other; then the query fails, says why, and is started again.
KEEP_S_MAX = 180.0
_PAUSE_S = 0.5


class SinkKeeper:
    """Of one query of a sink."""

    def __init__(self, settings: ReadOptions) -> None:
        self._sink = Asset(settings.consumer)
        self._checkpoint = Path(settings.directory) / "checkpoints" / settings.consumer
        self._gaps = Path(settings.directory) / "gaps" / settings.consumer
        self._names = settings.run.names
        self._caller = Caller(f"{settings.consumer}.keep", settings.run.endpoints, settings.run.security())
        self._kept: SinkPlan | None = None

    def keep(self) -> None:
        """Returns when the newest plan and the last commit of Spark's are in the store."""
        plan = checkpoint.sink_plan(self._checkpoint, self._gaps)
        if plan is None or plan == self._kept:
            return
        body = {"sink": self._sink, "plan": msgspec.json.encode(plan).decode()}
        until, trouble = time.monotonic() + KEEP_S_MAX, ""
        while time.monotonic() < until:
            for name in self._names:
                try:
                    self._caller.call(name, "keep_plan", body, timeout=ANSWER_S)
                except PeerError as error:
                    trouble = str(error)
                    continue
                self._kept = plan
                self._names = [name, *(other for other in self._names if other != name)]
                return
            time.sleep(_PAUSE_S)
        raise HoldfastError(
            f"{self._sink}: the plan of batch {plan.batch} is not in the store after {KEEP_S_MAX:.0f} s",
            detail=json.dumps(trouble),
            hint="The sink writes nothing before. `holdfast events` says what the store answers.",
        )

    def close(self) -> None:
        self._caller.close()

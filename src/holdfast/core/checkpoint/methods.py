"""Whole and delta captures to the memory of the backup node, on a period (cooperative-ha §3.4, §7).

Both also fire on a bound: when the input consumed since the last capture passes `retained_soft_max`, so that a
window that never closes or a shard that is never idle cannot fill anybody's queue.
"""

from __future__ import annotations

from holdfast.core.checkpoint.method import Method
from holdfast.core.copy import Copy
from holdfast.model.config import Config


class Delta:
    """What changed since the last capture. Cheap, and therefore often; the image must stand where it starts."""

    name = "delta"
    always_whole = False

    def due(self, copy: Copy, age_ns: int, config: Config) -> bool:
        if copy.consumed_since >= config.retained_soft_max:
            return True
        return copy.consumed_since > 0 and age_ns >= config.capture_period_ns

    def state(self, copy: Copy, *, whole: bool) -> object:
        return copy.op.snapshot() if whole else copy.op.capture()


class Whole(Delta):
    """Everything, every time: the baseline, and the safest thing to debug with."""

    name = "whole"
    always_whole = True


_METHODS: dict[str, Method] = {"delta": Delta(), "whole": Whole()}


def method_of(config: Config) -> Method:
    return _METHODS[config.method]

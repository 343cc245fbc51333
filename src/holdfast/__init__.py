"""Holdfast: high availability for Spark streaming pipelines.

    import holdfast as hf
    pipeline = hf.Pipeline("netmon")

The names below are loaded when they are first used: `import holdfast` itself costs nothing and needs no Spark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.pipeline.aggs import avg, count, first, last, max, min, stddev, stddev_pop, sum
    from holdfast.pipeline.api import Pipeline, Stream
    from holdfast.pipeline.graph import SinkBatch
    from holdfast.pipeline.load import load

__version__ = "0.1.0"
__all__ = [
    "Pipeline",
    "SinkBatch",
    "Stream",
    "__version__",
    "avg",
    "count",
    "first",
    "last",
    "load",
    "max",
    "min",
    "stddev",
    "stddev_pop",
    "sum",
]

_HOMES = {"Pipeline": "api", "Stream": "api", "SinkBatch": "graph", "load": "load"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    return getattr(importlib.import_module(f"holdfast.pipeline.{_HOMES.get(name, 'aggs')}"), name)

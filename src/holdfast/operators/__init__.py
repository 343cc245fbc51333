"""Stateful operators: windowed aggregates, windowed joins and union, over Arrow batches.

aggregate.py     time windows                count_window.py  windows of rows
join.py          two streams                 union.py         many streams into one
aggregates.py    count, sum, min, …          capture.py       what a backup is sent all the time
limits.py        what a row may have         chunk.py         what a new backup is sent
build.py         operators from a plan       operator.py      what all of them can do for high availability
"""

from holdfast.kernelcache import versioned

with versioned():
    from holdfast.operators.aggregate import Window, WindowAggregate
    from holdfast.operators.aggregates import Agg
    from holdfast.operators.build import build, rows_in, rows_schema, wire_schema
    from holdfast.operators.capture import StateCapture
    from holdfast.operators.chunk import END, START, Chunk
    from holdfast.operators.count_window import CountWindow, CountWindowAggregate
    from holdfast.operators.join import LEFT, RIGHT, Join, SameWindow, Within
    from holdfast.operators.operator import FOREVER, NEVER, StateConfig, StatefulOperator
    from holdfast.operators.registry import MergeableAggregate, register
    from holdfast.operators.union import Union, Watermarks
    from holdfast.operators.warmup import warm_up

__all__ = [
    "END",
    "FOREVER",
    "LEFT",
    "NEVER",
    "RIGHT",
    "START",
    "Agg",
    "Chunk",
    "CountWindow",
    "CountWindowAggregate",
    "Join",
    "MergeableAggregate",
    "SameWindow",
    "StateCapture",
    "StateConfig",
    "StatefulOperator",
    "Union",
    "Watermarks",
    "Window",
    "WindowAggregate",
    "Within",
    "build",
    "register",
    "rows_in",
    "rows_schema",
    "warm_up",
    "wire_schema",
]

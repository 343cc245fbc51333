"""A pipeline as the user wrote it: nodes that know their parents. Data only; `api.py` makes it, `layout.py` reads it.

Nodes are numbered in the order in which they were made, which is why the same file always gives the same plan, and
each one knows the line that made it, which is what an error names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from holdfast.pipeline.kafka import KafkaTarget

#: A DataFrame, a SparkSession, a DataStreamWriter: this package never imports pyspark, it is handed what it needs.
Frame = Any
Session = Any
Writer = Any


@dataclass(eq=False, kw_only=True)
class GraphNode:
    number: int
    #: File and line of the call.
    where: str


@dataclass(eq=False, kw_only=True)
class Source(GraphNode):
    read: Callable[[Session], Frame]
    event_time: str
    delay_us: int
    name: str | None
    idle_ns: int
    trigger_ms: int
    late_to: str
    #: Rows further ahead of the clock than this are bad; None: no row is.
    future_us: int | None
    bad_rows_max: int
    #: What `verify` reads instead, if it cannot find out itself.
    batch: Callable[[Session], Frame] | None
    #: One of LATENCIES; "": as the run says.
    latency: str = ""

    @property
    def label(self) -> str:
        return f"read {self.name or ''}".strip() + f" ({self.where})"


@dataclass(eq=False, kw_only=True)
class Port(Source):
    """Rows come from a Spark program of the user's own: `df.writeStream.format("holdfast")`."""

    #: As Spark's DDL writes it, or a StructType.
    schema: Any

    @property
    def label(self) -> str:
        return f"port {self.name} ({self.where})"


@dataclass(eq=False, kw_only=True)
class Step(GraphNode):
    """A map or a filter: a function from DataFrame to DataFrame, without state."""

    parent: GraphNode
    kind: str
    apply: Callable[[Frame], Frame]

    @property
    def label(self) -> str:
        return f"{self.kind} ({self.where})"


@dataclass(eq=False, kw_only=True)
class UnionOf(GraphNode):
    parents: tuple[GraphNode, ...]

    @property
    def label(self) -> str:
        return f"union ({self.where})"


@dataclass(frozen=True)
class AggCall:
    """An aggregate as a user writes it: `hf.sum("bytes")`."""

    function: str
    column: str | None = None
    ignore_nulls: bool = False


@dataclass(eq=False, kw_only=True)
class Stateful(GraphNode):
    name: str
    shards: int
    mode: str
    #: What of it is kept in the store, and how often in nanoseconds (0: as the nodes' settings say).
    checkpoint: str
    checkpoint_ns: int
    #: How long a recovery may take, in nanoseconds (0: as the nodes' settings say).
    recover_ns: int = 0

    @property
    def label(self) -> str:
        return self.name


@dataclass(eq=False, kw_only=True)
class Aggregate(Stateful):
    parent: GraphNode
    #: Microseconds, or rows of a key (`counted`).
    size: int
    step: int
    counted: bool
    by: tuple[str, ...]
    aggs: dict[str, AggCall]
    overflow: str


@dataclass(eq=False, kw_only=True)
class JoinOf(Stateful):
    left: GraphNode
    right: GraphNode
    on: tuple[tuple[str, str], ...]
    how: str
    #: (after_us, before_us), or None: both in the same window of `window_us`.
    within: tuple[int, int] | None
    window_us: int
    where_sql: str


class SinkBatch(msgspec.Struct, frozen=True, kw_only=True):
    """What a function of `write_arrow` is told about the rows that it is given.

    After a failure a batch may be given again, with the same number and the same rows. `key` names it among all batches
    of all runs and sinks: a function that keeps the key together with the rows, and leaves out a batch whose key it
    finds, holds every row exactly once.
    """

    run: str
    sink: str
    #: From 0, without holes.
    number: int
    #: Where the batch ends, by edge.
    positions: dict[str, int]

    @property
    def key(self) -> str:
        return f"{self.run}/{self.sink}/{self.number}"


@dataclass(eq=False, kw_only=True)
class Sink(GraphNode):
    parent: GraphNode
    name: str
    write: Callable[[Frame], Writer]
    #: What `verify` reads as the content of the sink, if it cannot find out itself.
    result: Callable[[Session], Frame] | None
    #: Takes the rows as Arrow tables, instead of `write`; None: Spark writes.
    arrow: Callable[[Any, SinkBatch], None] | None = None
    #: A topic that the rows go to, instead of both.
    kafka: KafkaTarget | None = None

    @property
    def light(self) -> bool:
        """It is written without Spark."""
        return self.arrow is not None or self.kafka is not None

    @property
    def call(self) -> str:
        """What the user calls it by."""
        return "write_kafka" if self.kafka is not None else "write_arrow" if self.arrow is not None else "write"

    @property
    def label(self) -> str:
        return self.name


@dataclass
class Graph:
    nodes: list[GraphNode] = field(default_factory=list)

    def add(self, node: Any) -> Any:
        self.nodes.append(node)
        return node

    def of(self, kind: type) -> list[Any]:
        return [n for n in self.nodes if isinstance(n, kind)]


def parents_of(node: GraphNode) -> tuple[GraphNode, ...]:
    match node:
        case Step() | Aggregate() | Sink():
            return (node.parent,)
        case UnionOf():
            return node.parents
        case JoinOf():
            return (node.left, node.right)
    return ()

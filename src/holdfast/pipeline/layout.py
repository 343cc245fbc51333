"""From the user's graph to stages, operators and edges. Pure: no Spark, no schemas, nothing applied.

A **branch** is a root (a source or a stateful operator) and the stateless steps after it, in a line. Unions vanish: a
step after a union is the same step after each of its parts, so that what reaches an operator's input is a list of
branches. Then

    a branch from a source                    is a source stage
    a port                                    is a stage whose rows a program of the user's own hands over
    a branch from an operator, with steps     is a between stage, which reads that operator
    a branch from an operator, without        is a direct edge, shard to shard

Two operators that take the same branch share its stage, and so do branches of one source: its rows are planned, noted
and handed over once for all of them, under one watermark (`frames.source_rows`). Two branches of one source into one
operator (a self-join, a union with itself) make two stages, since a stage has one edge to each shard. A sink is one
stage, whatever its branches; an Arrow sink has one branch, without steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.errors import ConfigError
from holdfast.model.ids import Asset, Edge, asset_id, shard_edge, shard_id, stage_edge
from holdfast.model.topology import ReaderSpec, ShardSpec, StageSpec, Topology
from holdfast.pipeline.api import Pipeline
from holdfast.pipeline.graph import (
    Aggregate,
    GraphNode,
    JoinOf,
    Port,
    Sink,
    Source,
    Stateful,
    Step,
    UnionOf,
    parents_of,
)

#: The event time of an aggregate's output: its window's last microsecond.
WINDOW_TIME = "window_time"
WINDOW_END = "window_end"


@dataclass(frozen=True)
class Branch:
    root: Source | Stateful
    steps: tuple[Step, ...] = ()

    @property
    def direct(self) -> bool:
        return isinstance(self.root, Stateful) and not self.steps

    @property
    def event_time(self) -> str:
        """A source's own; of an aggregate, `window_time`; of a join, that of its left side."""
        if isinstance(self.root, Source):
            return self.root.event_time
        return branches_of(self.root.left)[0].event_time if isinstance(self.root, JoinOf) else WINDOW_TIME

    @property
    def label(self) -> str:
        return " -> ".join(n.label for n in (self.root, *self.steps))


@dataclass
class Stage:
    id: Asset
    kind: str
    #: Several of one source for several operators, or of several operators for one sink. Otherwise there is one.
    branches: tuple[Branch, ...]
    #: (operator, number of its input).
    feeds: list[tuple[str, int]] = field(default_factory=list)
    #: Which of the branches each of these is fed with.
    fed_with: list[int] = field(default_factory=list)
    sink: Sink | None = None

    @property
    def reads(self) -> tuple[str, ...]:
        names = (b.root.name for b in self.branches if isinstance(b.root, Stateful))
        return tuple(dict.fromkeys(names))

    @property
    def source(self) -> Source:
        root = self.branches[0].root
        assert isinstance(root, Source)
        return root

    @property
    def outlets(self) -> tuple[str, ...]:
        """Of several branches of one source, a name for each: that of the first operator that takes it."""
        if self.kind != "source" or len(self.branches) == 1:
            return ()
        return tuple(self.feeds[self.fed_with.index(n)][0] for n in range(len(self.branches)))

    def feed(self, operator: str, number: int, branch: Branch) -> None:
        """Feed an input of an operator with a branch, which may be new to this stage."""
        if branch not in self.branches:
            self.branches = (*self.branches, branch)
        self.feeds.append((operator, number))
        self.fed_with.append(self.branches.index(branch))

    def may_feed(self, operator: str, branch: Branch) -> bool:
        """Can it feed this operator with a branch that it has, or that is of the same source?"""
        if any(name == operator for name, _ in self.feeds):
            return False  # one edge to each shard
        return branch in self.branches or (self.kind == "source" and branch.root is self.branches[0].root)


@dataclass(frozen=True)
class InputLayout:
    """One input of an operator: from one stage or one operator. A join's right side has side 1."""

    side: int
    #: Stage id, or name of the operator that feeds it directly.
    source: str
    branch: Branch
    #: Columns it is cut by.
    by: tuple[str, ...]


@dataclass
class OperatorLayout:
    node: Stateful
    inputs: list[InputLayout] = field(default_factory=list)
    #: Operators that it feeds directly: (operator, number of its input).
    feeds: list[tuple[str, int]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def shards(self) -> int:
        return self.node.shards

    @property
    def is_timeless(self) -> bool:
        """Is its state something else than that of windows over event time?"""
        return not isinstance(self.node, Aggregate) or self.node.counted


@dataclass
class Layout:
    operators: dict[str, OperatorLayout]
    stages: dict[str, Stage]

    def port(self, producer: str, feed: tuple[str, int], index: int) -> int:
        """Port of a shard on which the rows for one shard of a consumer leave; port 0 carries everything."""
        port = 1
        for other in self.operators[producer].feeds:
            if other == feed:
                return port + index
            port += self.operators[other[0]].shards
        raise KeyError(feed)

    def topology(self, query: str) -> Topology:
        shards = [self._shard(op, i) for op in self.operators.values() for i in range(op.shards)]
        stages, readers = [], []
        for stage in self.stages.values():
            delay_us, idle_ns = 0, 1 << 60
            if stage.kind in ("source", "port"):
                delay_us, idle_ns = stage.source.delay_us, stage.source.idle_ns
            fed = [shard_id(name, i) for name, _ in stage.feeds for i in range(self.operators[name].shards)]
            stages.append(
                StageSpec(
                    id=stage.id,
                    shards=tuple(fed),
                    query=query,
                    delay_ns=delay_us,
                    idle_ns=idle_ns,
                    tick_ns=1_000,
                    foreign=stage.kind == "port",
                    light=stage.sink is not None and stage.sink.light,
                )
            )
            if stage.reads:
                edges = [shard_edge(shard_id(n, i)) for n in stage.reads for i in range(self.operators[n].shards)]
                readers.append(ReaderSpec(id=stage.id, edges=tuple(edges)))
        timeless = tuple(sorted(op.name for op in self.operators.values() if op.is_timeless))
        return Topology(shards=tuple(shards), stages=tuple(stages), readers=tuple(readers), timeless=timeless)

    def _shard(self, op: OperatorLayout, index: int) -> ShardSpec:
        shard = shard_id(op.name, index)
        inputs = [edge for number in range(len(op.inputs)) for edge in self.edges_into(op, number, index)]
        ports = 1 + sum(self.operators[name].shards for name, _ in op.feeds)
        return ShardSpec(
            id=shard, inputs=tuple(sorted(inputs)), outputs=tuple(shard_edge(shard, port) for port in range(ports))
        )

    def edges_into(self, op: OperatorLayout, number: int, index: int) -> list[Edge]:
        """Edges of one input of one shard."""
        source = op.inputs[number].source
        if source in self.stages:
            return [stage_edge(self.stages[source].id, shard_id(op.name, index))]
        port = self.port(source, (op.name, number), index)
        return [shard_edge(shard_id(source, i), port) for i in range(self.operators[source].shards)]


def branches_of(node: GraphNode) -> list[Branch]:
    """The branches that arrive at a node's output, in the order in which they were written."""
    match node:
        case Source() | Stateful():
            return [Branch(node)]
        case Step():
            return [Branch(b.root, (*b.steps, node)) for b in branches_of(node.parent)]
        case UnionOf():
            return [branch for parent in node.parents for branch in branches_of(parent)]
    raise TypeError(node)


def lay_out(pipeline: Pipeline) -> Layout:
    """The stages and operators of a pipeline. Errors are of the graph itself: loose ends, what cannot be joined up."""
    _check_ends(pipeline)
    graph = pipeline.graph
    operators = {node.name: OperatorLayout(node) for node in graph.of(Stateful)}
    layout = Layout(operators, {})
    taken = {*operators, *(named.name for named in (*graph.of(Sink), *graph.of(Port)))}
    for operator in operators.values():
        _lay_inputs(operator, layout, taken)
    for sink in graph.of(Sink):
        branches = tuple(branches_of(sink.parent))
        _check_sink(sink, branches)
        layout.stages[sink.name] = Stage(sink.name, "sink", branches, sink=sink)
    return layout


def _lay_inputs(operator: OperatorLayout, layout: Layout, taken: set[str]) -> None:
    """Join an operator up with what feeds it."""
    for side, (parent, by) in enumerate(_sides(operator.node)):
        for branch in branches_of(parent):
            _check_windowable(operator, branch)
            number = len(operator.inputs)
            if branch.direct:
                source = branch.root.name or ""
                layout.operators[source].feeds.append((operator.name, number))
            else:
                stage = _stage_for(operator, side, branch, layout, taken)
                stage.feed(operator.name, number, branch)
                source = stage.id
            operator.inputs.append(InputLayout(side, source, branch, by))


def _stage_for(operator: OperatorLayout, side: int, branch: Branch, layout: Layout, taken: set[str]) -> Stage:
    """One that has the branch already, one that reads its source, or a new one."""
    able = [stage for stage in layout.stages.values() if stage.may_feed(operator.name, branch)]
    for stage in sorted(able, key=lambda stage: branch not in stage.branches):
        return stage
    stage = _new_stage(operator, side, branch, taken)
    layout.stages[stage.id] = stage
    return stage


def _sides(node: Stateful) -> list[tuple[GraphNode, tuple[str, ...]]]:
    if isinstance(node, JoinOf):
        return [(node.left, tuple(a for a, _ in node.on)), (node.right, tuple(b for _, b in node.on))]
    assert isinstance(node, Aggregate)
    return [(node.parent, node.by)]


def _new_stage(operator: OperatorLayout, side: int, branch: Branch, taken: set[str]) -> Stage:
    if not isinstance(branch.root, Port):
        kind = "source" if isinstance(branch.root, Source) else "between"
        return Stage(asset_id(_stage_name(operator, side, branch, taken)), kind, (branch,))
    _check_port(operator, branch)
    return Stage(asset_id(branch.root.name or ""), "port", (branch,))


def _stage_name(operator: OperatorLayout, side: int, branch: Branch, taken: set[str]) -> str:
    suffix = ("left", "right")[side] if isinstance(operator.node, JoinOf) else "in"
    base = f"{operator.name}_{suffix}"
    if isinstance(branch.root, Source) and branch.root.name:
        base = branch.root.name
    name, n = base, 1
    while name in taken:
        n += 1
        name = f"{base}_{n}"
    taken.add(name)
    return name


def _check_ends(pipeline: Pipeline) -> None:
    nodes = pipeline.graph.nodes
    if not pipeline.graph.of(Source):
        raise ConfigError(
            f"pipeline {pipeline.name!r} reads nothing", hint="Begin with pipeline.read(...) or pipeline.port(...)."
        )
    if not pipeline.graph.of(Sink):
        raise ConfigError(
            f"pipeline {pipeline.name!r} has no sink",
            detail="Its results would go nowhere.",
            hint='End with .write(lambda df: df.writeStream.format("parquet").option("path", "out/")).',
        )
    used = {id(parent) for node in nodes for parent in parents_of(node)}
    for node in nodes:
        if not isinstance(node, Sink) and id(node) not in used:
            label = f"operator {node.name}" if isinstance(node, Stateful) else getattr(node, "label", "?")
            raise ConfigError(
                f"{label}: its result is not used",
                detail=f"Made at {node.where}.",
                hint="End it with .write(...), or remove it.",
            )


def _check_sink(sink: Sink, branches: tuple[Branch, ...]) -> None:
    for branch in branches:
        if isinstance(branch.root, Source):
            raise ConfigError(
                f"{sink.name}: nothing stateful stands between {branch.root.label} and this sink",
                detail=f"Written at {sink.where}.",
                hint="Spark alone runs that exactly once; Holdfast protects windows and joins.",
            )
    if not sink.light:
        return
    if branches[0].steps:
        raise ConfigError(
            f"{sink.name}: {branches[0].steps[0].label} stands between {branches[0].root.label} and {sink.call}",
            detail="A map or a filter is a function of DataFrames, and such a sink has no Spark.",
            hint="Do it to the table, in the function of write_arrow; or end with .write(...).",
        )
    if len(branches) > 1:
        raise ConfigError(
            f"{sink.name}: {sink.call} takes the result of one operator, not a union",
            detail=f"It is given {', '.join(branch.label for branch in branches)}.",
            hint=f"End each of them with a {sink.call} of its own.",
        )


def _check_port(operator: OperatorLayout, branch: Branch) -> None:
    if branch.steps:
        raise ConfigError(
            f"{operator.name}: {branch.steps[0].label} stands between {branch.root.label} and this operator",
            detail="The rows of a port come from another program; no Spark of this pipeline sees them on their way.",
            hint="Do it in the program that writes, before df.writeStream; the port's schema is what comes out.",
        )
    if any(given.branch == branch for given in operator.inputs):
        raise ConfigError(
            f"{operator.name}: takes {branch.root.label} twice",
            detail="A port is written once, and so it has one edge to each shard.",
            hint="Declare a second port, and write the same rows to both.",
        )


def _check_windowable(operator: OperatorLayout, branch: Branch) -> None:
    """Whether what an operator gives out has an event time. (A join's pairs are as old as their left rows, which may be
    older than the join's watermark: a shard holds back the watermark it gives out by as much.)"""
    root = branch.root
    if isinstance(root, Aggregate) and root.counted:
        raise ConfigError(
            f"{operator.name}: the result of count windows {root.name} has no event time",
            detail="Windows of rows begin and end with a row, not at a time.",
            hint="Write it, or use windows of time.",
        )

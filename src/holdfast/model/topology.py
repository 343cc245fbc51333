"""What is to run: stages, shards, readers and the edges between them. Fixed once a pipeline is planned."""

from __future__ import annotations

from functools import cached_property

import msgspec

from holdfast.model.ids import Asset, Consumer, Edge, asset_id, ledger_of, operator_of, shard_edge, stage_edge


class ShardSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One key shard of an operator: input edges in the order of their ids, which breaks ties, and output edges."""

    id: Asset
    inputs: tuple[Edge, ...]
    outputs: tuple[Edge, ...]


class StageSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One Spark query: feeds shards, or (with none) only reads edges into a sink. As a reader it has the same id."""

    id: Asset
    shards: tuple[Asset, ...]
    query: str
    #: How far behind the highest event time the watermark stays, in units of the watermark.
    delay_ns: int = 0
    #: After so long without rows the stage seals an advanced watermark.
    idle_ns: int = 1 << 60
    #: Nanoseconds in one unit of the watermark.
    tick_ns: int = 1
    #: Its driver is a program of the user's own: no node starts it and the record does not place it, so that its ledger
    #: alone says which driver may go on.
    foreign: bool = False
    #: It needs no JVM.
    light: bool = False


class ReaderSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A query that reads edges. The pipeline's own sinks hold retention; anyone else who subscribes has a lease."""

    id: Consumer
    edges: tuple[Edge, ...]
    leased: bool = False


class Topology(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    shards: tuple[ShardSpec, ...]
    stages: tuple[StageSpec, ...]
    readers: tuple[ReaderSpec, ...]
    #: The most rows of a block: what a shard makes in one step is cut, so that no frame grows with the state.
    #: Positions depend on it, so it belongs to the pipeline and not to a node.
    block_rows_max: int = 65_536
    #: There is a stable store: checkpoints and batches can be kept in it.
    has_store: bool = False
    #: Operators whose state is not that of windows over event time (joins, windows that count rows): no stretch of
    #: their input has all of it.
    timeless: tuple[str, ...] = ()

    @property
    def query(self) -> str:
        """Tells this run from others (the planner gives all stages of a plan the same)."""
        return next((s.query for s in self.stages), "")

    @cached_property
    def shard(self) -> dict[Asset, ShardSpec]:
        return {u.id: u for u in self.shards}

    @cached_property
    def stage(self) -> dict[Asset, StageSpec]:
        return {s.id: s for s in self.stages}

    @cached_property
    def producer(self) -> dict[Edge, Asset]:
        made: dict[Edge, Asset] = {}
        for stage in self.stages:
            for shard in stage.shards:
                made[stage_edge(stage.id, shard)] = stage.id
        for shard in self.shards:
            for edge in shard.outputs:
                made[edge] = shard.id
        return made

    @cached_property
    def consumers(self) -> dict[Edge, tuple[Consumer, ...]]:
        """Who holds retention of an edge between shards: consuming shards and the pipeline's own sinks, sorted."""
        found: dict[Edge, list[Consumer]] = {edge: [] for shard in self.shards for edge in shard.outputs}
        for shard in self.shards:
            for edge in shard.inputs:
                if edge in found:
                    found[edge].append(shard.id)
        for reader in self.readers:
            for edge in reader.edges:
                if not reader.leased:
                    found[edge].append(reader.id)
        return {edge: tuple(sorted(names)) for edge, names in found.items()}

    def readers_of(self, edge: Edge) -> tuple[Asset, ...]:
        """The shards that consume an edge."""
        return self._readers.get(edge, ())

    @cached_property
    def _readers(self) -> dict[Edge, tuple[Asset, ...]]:
        found: dict[Edge, list[Asset]] = {}
        for shard in self.shards:
            for edge in shard.inputs:
                found.setdefault(edge, []).append(shard.id)
        return {edge: tuple(sorted(shards)) for edge, shards in found.items()}

    @cached_property
    def ledgers(self) -> tuple[Asset, ...]:
        return tuple(ledger_of(s.id) for s in self.stages if s.shards)

    @cached_property
    def placed(self) -> frozenset[Asset]:
        """Everything that a record places."""
        return frozenset((*self.shard, *self.ledgers, *(s.id for s in self.stages if not s.foreign)))

    @cached_property
    def operators(self) -> frozenset[str]:
        return frozenset(operator_of(shard) for shard in self.shard)

    def is_stage_edge(self, edge: Edge) -> bool:
        return self.producer[edge] in self.stage


def stage_alone(spec: StageSpec) -> Topology:
    """What the driver of a stage knows of a pipeline: its own edges."""
    shards = tuple(ShardSpec(id=u, inputs=(stage_edge(spec.id, u),), outputs=()) for u in spec.shards)
    return Topology(shards=shards, stages=(spec,), readers=())


def edge_alone(edge: Edge, shard: Asset) -> Topology:
    """What a task knows of it that fetches a piece of one edge."""
    return Topology(shards=(ShardSpec(id=shard, inputs=(), outputs=(edge,)),), stages=(), readers=())


def layered(
    *, stages: int, shards: int, tops: int = 0, delay_ns: int = 0, idle_ns: int = 1 << 60, placed: bool = False
) -> Topology:
    """The shape most tests use: every stage feeds every shard of a first layer; `tops` shards each read two of them.

    Every output edge is read by the sink `r0`, those that a top shard reads too: so that each has its slowest consumer.
    `placed`: the sink is a stage too, as in every planned pipeline, so that nodes start it and the record fences it.
    """
    names = [asset_id(f"u{i}") for i in range(shards)]
    sources = [asset_id(f"s{i}") for i in range(stages)]
    first = [ShardSpec(id=u, inputs=tuple(stage_edge(s, u) for s in sources), outputs=(shard_edge(u),)) for u in names]
    second = [
        ShardSpec(
            id=asset_id(f"v{t}"),
            inputs=tuple(sorted({shard_edge(names[t % shards]), shard_edge(names[(t + 1) % shards])})),
            outputs=(shard_edge(asset_id(f"v{t}")),),
        )
        for t in range(tops)
    ]
    feeds = tuple(
        StageSpec(id=s, shards=tuple(names), query=f"query-{i}", delay_ns=delay_ns, idle_ns=idle_ns)
        for i, s in enumerate(sources)
    )
    sink = asset_id("r0")
    edges = tuple(edge for shard in (*first, *second) for edge in shard.outputs)
    if placed:
        feeds = (*feeds, StageSpec(id=sink, shards=(), query="query-r0"))
    return Topology(shards=(*first, *second), stages=feeds, readers=(ReaderSpec(id=sink, edges=edges),))

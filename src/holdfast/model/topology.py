"""What is to run: stages, units, readers and the edges between them. Fixed once a pipeline is planned."""

from __future__ import annotations

from functools import cached_property

import msgspec

from holdfast.model.ids import LEDGER, Asset, Consumer, Edge, stage_edge, unit_edge


class UnitSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One HA unit: its input edges in the order of their ids (ties between watermarks go by it), its output edges."""

    id: Asset
    inputs: tuple[Edge, ...]
    outputs: tuple[Edge, ...]


class StageSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One Spark query: feeds units, or (with none) only reads edges into a sink. As a reader it has the same id."""

    id: Asset
    units: tuple[Asset, ...]
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


class ReaderSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A query that reads edges. The pipeline's own sinks hold retention; anyone else who subscribes has a lease."""

    id: Consumer
    edges: tuple[Edge, ...]
    leased: bool = False


class Topology(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    units: tuple[UnitSpec, ...]
    stages: tuple[StageSpec, ...]
    readers: tuple[ReaderSpec, ...]

    @property
    def query(self) -> str:
        """Tells this run from others (the planner gives all stages of a plan the same)."""
        return next((s.query for s in self.stages), "")

    @cached_property
    def unit(self) -> dict[Asset, UnitSpec]:
        return {u.id: u for u in self.units}

    @cached_property
    def stage(self) -> dict[Asset, StageSpec]:
        return {s.id: s for s in self.stages}

    @cached_property
    def producer(self) -> dict[Edge, Asset]:
        made: dict[Edge, Asset] = {}
        for stage in self.stages:
            for unit in stage.units:
                made[stage_edge(stage.id, unit)] = stage.id
        for unit in self.units:
            for edge in unit.outputs:
                made[edge] = unit.id
        return made

    @cached_property
    def consumers(self) -> dict[Edge, tuple[Consumer, ...]]:
        """Who holds retention of an edge between units: consuming units and the pipeline's own sinks, sorted."""
        found: dict[Edge, list[Consumer]] = {edge: [] for unit in self.units for edge in unit.outputs}
        for unit in self.units:
            for edge in unit.inputs:
                if edge in found:
                    found[edge].append(unit.id)
        for reader in self.readers:
            for edge in reader.edges:
                if not reader.leased:
                    found[edge].append(reader.id)
        return {edge: tuple(sorted(names)) for edge, names in found.items()}

    @cached_property
    def ledgers(self) -> tuple[Asset, ...]:
        return tuple(s.id + LEDGER for s in self.stages if s.units)

    def is_stage_edge(self, edge: Edge) -> bool:
        return self.producer[edge] in self.stage


def layered(*, stages: int, units: int, tops: int = 0, delay_ns: int = 0, idle_ns: int = 1 << 60) -> Topology:
    """The shape most tests use: every stage feeds every unit of a first layer; `tops` units each read two of them.

    Every output edge is read by the sink `r0`, those that a top unit reads too: so that each has its slowest consumer.
    """
    names = [f"u{i}" for i in range(units)]
    first = [
        UnitSpec(id=u, inputs=tuple(stage_edge(f"s{s}", u) for s in range(stages)), outputs=(unit_edge(u),))
        for u in names
    ]
    second = [
        UnitSpec(
            id=f"v{t}",
            inputs=tuple(sorted({unit_edge(names[t % units]), unit_edge(names[(t + 1) % units])})),
            outputs=(unit_edge(f"v{t}"),),
        )
        for t in range(tops)
    ]
    feeds = tuple(
        StageSpec(id=f"s{s}", units=tuple(names), query=f"query-{s}", delay_ns=delay_ns, idle_ns=idle_ns)
        for s in range(stages)
    )
    edges = tuple(edge for unit in (*first, *second) for edge in unit.outputs)
    return Topology(units=(*first, *second), stages=feeds, readers=(ReaderSpec(id="r0", edges=edges),))

"""Fault scenarios as data: one TOML file says what runs, what happens to it and when.

    seed = 1
    nodes = 4
    [pipeline]                  # the shape: see `holdfast.model.topology.layered`
    stages = 1
    shards = 2
    tops = 0
    [config]                    # any setting of `holdfast.model.config.Config`
    chunk_bytes = 128
    [config.protection]         # how all operators are protected: see `holdfast.model.protection.Protection`
    period_ns = 200_000_000
    [run]                       # any number of `holdfast.sim.simulation.Setup`
    safety_ms = 2000
    [[look]]                    # see `holdfast.sim.sink.Look`
    id = "b0"
    edges = ["u0.0"]
    at_ms = 500
    [[fault]]                   # see `holdfast.sim.faults.KINDS`
    kind = "crash"
    node = "n1"
    when = "delivered s0 1"     # or at_ms = 700

`shows` lists texts that the trace must contain, for the tests that keep scenarios.
"""

from __future__ import annotations

import tomllib
from typing import Any

import msgspec

from holdfast.errors import ConfigError
from holdfast.model.config import Config
from holdfast.model.protection import Protection
from holdfast.model.topology import ReaderSpec, Topology, layered
from holdfast.sim.costs import Costs
from holdfast.sim.faults import Fault
from holdfast.sim.simulation import Setup
from holdfast.sim.sink import Look

_TOP = {"seed", "nodes", "spares", "late", "pipeline", "config", "costs", "run", "fault", "reader", "look", "shows"}


def parse_scenario(text: str, name: str = "scenario") -> Setup:
    """A run out of a TOML text. What is misspelt is an error, not a default."""
    try:
        data: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name} is not TOML", detail=str(error)) from error
    unknown = sorted(set(data) - _TOP)
    if unknown:
        raise ConfigError(f"{name}: unknown entries", detail=", ".join(unknown), hint=f"Known: {sorted(_TOP)}")
    try:
        shape = layered(**{"stages": 1, "shards": 1, **data.get("pipeline", {})})
        readers = tuple(msgspec.convert(reader, ReaderSpec) for reader in data.get("reader", ()))
        config = _config(**data.get("config", {}))
        topology = Topology(
            shards=shape.shards,
            stages=shape.stages,
            readers=(*shape.readers, *readers),
            has_store=config.protection.is_stored,
        )
        return Setup(
            seed=data.get("seed", 1),
            nodes=data.get("nodes", 4),
            spares=data.get("spares", 0),
            late=data.get("late", 0),
            topology=topology,
            config=config,
            costs=Costs(**data.get("costs", {})),
            looks=tuple(msgspec.convert(look, Look) for look in data.get("look", ())),
            faults=tuple(Fault(**fault) for fault in data.get("fault", ())),
            **data.get("run", {}),
        )
    except (TypeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{name}: an entry is not known or not of the right kind", detail=str(error)) from error


def _config(*, protection: dict[str, Any] | None = None, **settings: Any) -> Config:
    return Config(protection=Protection(**protection or {}), **settings)

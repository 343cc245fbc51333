"""Sharded queries, pipelines of stages, and caches: the same models on changed parameters (paper §2.4, §8).

Shards and stages fail independently, and the query is up when all of them are; so n of them share the SLA as its n-th
root each (and the durability likewise). That is exact when they are independent; stages in a row that fail because of
each other are not modelled. A shard has 1/n of the input and of the state, so S_T stays what it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.errors import ConfigError

from .recommend import Prescription, prescribe
from .scenario import Scenario


def _root(value: float, parts: int) -> float:
    return value ** (1.0 / parts)


def shard(scenario: Scenario, shards: int) -> Scenario:
    """What one of `shards` shards must meet so that all together meet the scenario."""
    if shards < 1:
        raise ConfigError(f"shards must be at least 1, not {shards}")
    size = scenario.checkpoint_size
    return scenario.but(
        sla=_root(scenario.sla, shards),
        durability=_root(scenario.durability, shards),
        input_rate=scenario.input_rate / shards,
        checkpoint_size=None if size is None else size / shards,
    )


@dataclass(frozen=True)
class Distributed:
    """One prescription for each stage, and Cost_F of the whole against running it all non-resiliently."""

    stages: tuple[Prescription, ...]
    cost: float | None


def distribute(stages: Sequence[Scenario], sla: float, **choices: object) -> Distributed:
    """Prescribe for a pipeline of stages that meets `sla` as a whole; each stage gets an equal share of the budget."""
    if not stages:
        raise ConfigError("a pipeline needs at least one stage")
    share = _root(sla, len(stages))
    found = tuple(
        prescribe(stage.but(sla=share, durability=_root(stage.durability, len(stages))), **choices)  # type: ignore[arg-type]
        for stage in stages
    )
    weights = [(stage.replicas + 3.0) * stage.input_rate for stage in stages]
    if any(prescription.winner is None for prescription in found):
        return Distributed(found, None)
    costs = [prescription.winner.cost for prescription in found if prescription.winner is not None]
    total = sum(weight * (cost or 0.0) for weight, cost in zip(weights, costs, strict=True))
    return Distributed(found, total / sum(weights))


@dataclass(frozen=True)
class Cached:
    """A scenario with its cold state moved out, and what moving it adds to Cost_F."""

    scenario: Scenario
    extra_cost: float


def cache(scenario: Scenario, *, kept: float, traffic: float, store: str = "remote", copies: int = 1) -> Cached:
    """Keep only the share `kept` of the state in memory (§8).

    `traffic`: cold state sent out and fetched back, each as a share of the input rate. A remote store takes K_F copies
    of what is sent and gives one back. A local one costs no network in normal times, but every failure of a copy moves
    the cold state it held to its successor; it moves after the copy is level, so it costs bandwidth and not uptime.
    """
    if not 0.0 < kept <= 1.0:
        raise ConfigError(f"kept must be above 0 and at most 1, not {kept}")
    if not 0.0 <= traffic < float("inf"):
        raise ConfigError(f"traffic must be at least 0, not {traffic}")
    if store not in ("remote", "local"):
        raise ConfigError(f"unknown store {store!r}", hint="Choose remote or local.")
    if scenario.checkpoint_size is None or scenario.transfer_s is None:
        raise ConfigError("caching needs a checkpoint size")
    base = scenario.replicas + 3.0
    if store == "remote":
        extra = copies * traffic * ((scenario.replicas + 1.0) + 2.0) / base
    else:
        extra = copies * 2.0 * (1.0 - kept) * scenario.transfer_s / scenario.mtbf / base
    return Cached(scenario.but(checkpoint_size=scenario.checkpoint_size * kept), extra)

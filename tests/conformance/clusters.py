"""The one interface through which conformance tests see a cluster; the simulator's, and room for real nodes.

A test body knows only `Cluster`. The runtime adds a second class and a second entry to `CLUSTERS`; no body changes.
"""

from __future__ import annotations

from typing import Protocol

from holdfast.model.config import MS
from holdfast.model.ids import name_of
from holdfast.model.topology import layered
from holdfast.sim.faults import Fault
from holdfast.sim.simulation import Setup, Simulation


class Cluster(Protocol):
    def run_for(self, ms: int) -> None: ...
    def kill(self, name: str) -> None: ...
    def start(self, name: str) -> None: ...
    def freeze(self, name: str, ms: int) -> None: ...
    def kill_driver(self, stage: str) -> None: ...
    def kill_reader(self, reader: str) -> None: ...
    def drain(self, name: str) -> None: ...
    def primary_of(self, unit: str) -> str: ...
    def backup_of(self, unit: str) -> str: ...
    def members(self) -> dict[str, int]: ...
    def finish(self) -> str:
        """End the sources, wait, and compare the sinks with a batch computation: what is wrong, or nothing."""
        ...


class SimCluster:
    """A cluster in the virtual world."""

    def __init__(self, nodes: int = 4, units: int = 4, seed: int = 11) -> None:
        self.run = Simulation(
            Setup(seed=seed, nodes=nodes, topology=layered(stages=1, units=units, tops=1), safety_ms=6_000)
        )
        for name in self.run.world.names:
            self.run.world.start_node(name)
        for sink in self.run.sinks.values():
            sink.boot(self.run.world.names[0])

    def _do(self, **fault) -> None:
        self.run.injector.inflict(Fault(**fault))

    def run_for(self, ms: int) -> None:
        self.run.world.run(self.run.world.now_ns + ms * MS)

    def kill(self, name: str) -> None:
        self._do(kind="crash", node=name)

    def start(self, name: str) -> None:
        self._do(kind="restart", node=name)

    def freeze(self, name: str, ms: int) -> None:
        self._do(kind="stall", node=name, for_ms=ms)

    def kill_driver(self, stage: str) -> None:
        self._do(kind="crash-stage", stage=stage)

    def kill_reader(self, reader: str) -> None:
        self._do(kind="crash-reader", reader=reader)

    def drain(self, name: str) -> None:
        self._do(kind="drain", node=name)

    def primary_of(self, unit: str) -> str:
        return name_of(self.run.checker.record.places[unit].primary or "")

    def backup_of(self, unit: str) -> str:
        return name_of(self.run.checker.record.places[unit].backup or "")

    def members(self) -> dict[str, int]:
        return self.run.checker.record.members

    def finish(self) -> str:
        try:
            return "" if self.run.run_liveness() else "the promise was left"
        except Exception as error:
            return str(error)


CLUSTERS = {"simulator": SimCluster}

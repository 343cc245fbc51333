"""The one interface through which conformance tests see a cluster: the simulator's, and that of real nodes.

A test body knows only `Cluster` and speaks of the simulator's milliseconds; real nodes take a few times as long, on
machines with fewer cores than they have processes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import Protocol

from support.nodes import Nodes
from support.plans import layered_plan

from holdfast.model.config import MS
from holdfast.model.ids import name_of
from holdfast.model.topology import layered
from holdfast.sim.faults import Fault
from holdfast.sim.simulation import Setup, Simulation


class Cluster(Protocol):
    def close(self) -> None: ...
    def run_for(self, ms: int) -> None: ...
    def kill(self, name: str) -> None: ...
    def start(self, name: str) -> None: ...
    def freeze(self, name: str, ms: int) -> None: ...
    def kill_driver(self, stage: str) -> None: ...
    def kill_reader(self, reader: str) -> None: ...
    def drain(self, name: str) -> None: ...
    def primary_of(self, shard: str) -> str: ...
    def backup_of(self, shard: str) -> str: ...
    def members(self) -> dict[str, int]: ...
    def protect(self, operator: str, mode: str) -> None: ...
    def mode_of(self, shard: str) -> str: ...
    def load_on(self, name: str, shard: str) -> float | None:
        """How busy its copy keeps this node, in percent of a core; None: not measured yet, or it has no copy."""
        ...

    def finish(self) -> str:
        """End the sources, wait, and compare the sinks with a batch computation: what is wrong, or nothing."""
        ...


class SimCluster:
    """A cluster in the virtual world."""

    def close(self) -> None: ...

    def __init__(self, nodes: int = 4, shards: int = 4, seed: int = 11) -> None:
        self.run = Simulation(
            Setup(
                seed=seed, nodes=nodes, topology=layered(stages=1, shards=shards, tops=1, placed=True), safety_ms=6_000
            )
        )
        for name in self.run.world.names:
            self.run.world.start_node(name)
        self.run.boot_sinks()

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

    def primary_of(self, shard: str) -> str:
        return name_of(self.run.checker.record.places[shard].primary or "")

    def backup_of(self, shard: str) -> str:
        return name_of(self.run.checker.record.places[shard].backup or "")

    def members(self) -> dict[str, int]:
        return self.run.checker.record.members

    def protect(self, operator: str, mode: str) -> None:
        self._do(kind="protect", operator=operator, mode=mode)

    def mode_of(self, shard: str) -> str:
        return self.run.checker.record.places[shard].mode

    def load_on(self, name: str, shard: str) -> float | None:
        node = self.run.world.node(name)
        copy = node.host.copies.get(shard) if node else None
        return None if copy is None or copy.gauge.load is None else copy.gauge.load / 1e7

    def finish(self) -> str:
        try:
            return "" if self.run.run_liveness() else "the promise was left"
        except Exception as error:
            return str(error)


class NodeCluster:
    """Real node processes on loopback, with stages that need no Spark. `kill` is kill -9, `freeze` is SIGSTOP."""

    #: Real milliseconds for one of the simulator's.
    SCALE = 3.0

    def __init__(self, nodes: int = 4, shards: int = 4) -> None:
        self._made = tempfile.TemporaryDirectory(prefix="holdfast-")
        self.nodes = Nodes(Path(self._made.name) / "run", layered_plan(shards=shards, tops=1), nodes)
        self._timers: list[threading.Timer] = []
        self.nodes.start()
        self.nodes.wait_up()
        self.nodes.begin()
        sink = self.nodes.dir / "sink" / "commit-0"
        self.nodes.until("the first rows at the sink", sink.exists, 60)

    def close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self.nodes.close()
        self._made.cleanup()

    def run_for(self, ms: int) -> None:
        time.sleep(ms * self.SCALE / 1e3)

    def kill(self, name: str) -> None:
        self.nodes.kill(name)

    def start(self, name: str) -> None:
        self.nodes.start(name)
        self.nodes.wait_up(name)

    def freeze(self, name: str, ms: int) -> None:
        self.nodes.signal(name, signal.SIGSTOP)
        timer = threading.Timer(ms * self.SCALE / 1e3, self.nodes.signal, (name, signal.SIGCONT))
        timer.start()
        self._timers.append(timer)

    def _kill_child(self, stage: str) -> None:
        for name in self.nodes.alive():
            found = self.nodes.status(name)["drivers"].get(stage)
            if found is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(found["pid"], signal.SIGKILL)

    def kill_driver(self, stage: str) -> None:
        self._kill_child(stage)

    def kill_reader(self, reader: str) -> None:
        self._kill_child(reader)

    def drain(self, name: str) -> None:
        self.nodes.caller.call(self.nodes.alive()[-1], "drain", {"name": name}, timeout=15)

    def _place(self, shard: str) -> dict:
        return self.nodes.until("the record", self.nodes.status)["places"][shard]

    def primary_of(self, shard: str) -> str:
        return name_of(self._place(shard)["primary"] or "")

    def backup_of(self, shard: str) -> str:
        return name_of(self._place(shard)["backup"] or "")

    def members(self) -> dict[str, int]:
        return self.nodes.until("the record", self.nodes.status)["members"]

    def protect(self, operator: str, mode: str) -> None:
        self.nodes.caller.call(self.nodes.alive()[0], "protect", {"operator": operator, "mode": mode}, timeout=15)

    def mode_of(self, shard: str) -> str:
        return self._place(shard)["mode"]

    def load_on(self, name: str, shard: str) -> float | None:
        return self.nodes.until(f"{name}", lambda: self.nodes.status(name))["shards"].get(shard, {}).get("load_percent")

    def finish(self) -> str:
        for timer in self._timers:
            timer.join()
        try:
            self.nodes.finish()
            return self.nodes.difference()
        except AssertionError as error:
            return str(error)


CLUSTERS = {"simulator": SimCluster, "nodes": NodeCluster}

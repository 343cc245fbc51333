"""A cluster of real nodes with a driver without Spark, whose operator changes its mode while it runs.

The driver does to a batch what a stage does once Spark has given it the rows (`spark/collect.py`: lateness, grouping,
shards) and hands it over through the same door. A reader acknowledges the results without fetching them. So what is in
the figures is the work of the nodes and of a stage's Python; Spark, and what a sink does, are not.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import pyarrow as pa

from holdfast.core.reader import Reader
from holdfast.core.ready import Ready
from holdfast.model.config import Config
from holdfast.model.ids import Asset, Consumer, shard_edge, shard_id, stage_edge
from holdfast.model.plan import Plan, StagePlan, to_micros
from holdfast.model.topology import ReaderSpec, ShardSpec, StageSpec, Topology
from holdfast.runtime.net.security import Security
from holdfast.runtime.net.transport import Peer
from holdfast.runtime.node.loop import MachineLoop
from holdfast.spark.collect import Collector
from holdfast.spark.hand_over import StageHandOver, ask_record

TESTS = Path(__file__).resolve().parents[2] / "tests"
NODES, SHARDS = 3, 4
WINDOW_BATCHES = 10
#: Event time that one batch covers, and a window.
BATCH_US = 1_000_000
WINDOW_US = WINDOW_BATCHES * BATCH_US
#: Batches with keys of their own; then they come again, later.
MADE = 2 * WINDOW_BATCHES
OPERATOR, STAGE, SINK = "counts", Asset(Consumer("counts_in")), Consumer("r0")
#: A long step on a busy machine must not look like a dead node, and no backup may move: that would be measured.
SETTINGS = {"state_limit": "4 GB", "misses": 100, "busy_limit": "60 s", "balance": "1 h"}
LIMIT_S = 300.0
LOOK_S = 0.05


@dataclass
class Spent:
    """What some batches took."""

    rows: int
    seconds: float
    #: CPU seconds of the nodes, and of the driver.
    nodes_s: float
    driver_s: float
    #: None: not counted.
    captures: int | None = None
    captured_bytes: int | None = None


def _plan() -> Plan:
    from support.plans import ROWS, aggregate_plan  # pyright: ignore[reportMissingImports]

    aggs = {"n": ["count", None, False], "total": ["sum", "value", False]}
    made = aggregate_plan(OPERATOR, [(STAGE, ROWS, "ts")], WINDOW_US, aggs)
    inputs = tuple(msgspec.structs.replace(one, partial=True) for one in made.inputs)
    names = tuple(shard_id(OPERATOR, i) for i in range(SHARDS))
    specs = tuple(ShardSpec(id=u, inputs=(stage_edge(STAGE, u),), outputs=(shard_edge(u),)) for u in names)
    stage = StageSpec(id=STAGE, shards=names, query="query", tick_ns=1_000, foreign=True)
    reader = ReaderSpec(id=SINK, edges=tuple(shard_edge(u) for u in names))
    return Plan(
        pipeline="fed",
        query="fed-1",
        topology=Topology(shards=specs, stages=(stage,), readers=(reader,)),
        operators=(msgspec.structs.replace(made, shards=SHARDS, inputs=inputs),),
        stages=(StagePlan(id=STAGE, kind="source", feeds=((OPERATOR, 0),)),),
    )


class Fed:
    """Nodes, a driver and a reader; feeds whole windows and says what they took."""

    def __init__(self, home: Path, keys: int, rows: int) -> None:
        sys.path[:0] = [p for p in (str(TESTS),) if p not in sys.path]
        from support.nodes import Nodes  # pyright: ignore[reportMissingImports]

        self.rows = rows
        self._batches = [_columns(number, keys, rows) for number in range(MADE)]
        self._number = 0
        plan = _plan()
        self.nodes = Nodes(home, plan, NODES, settings=SETTINGS)
        self._open: list[Any] = []
        try:
            self.nodes.start()
            self.nodes.wait_up()
            security = Security.load(home / "secret", deployment=plan.query)
            self.door = StageHandOver(plan, STAGE, 1, self.nodes.endpoints, security, lambda *_, **__: None)
            self._open.append(self.door)
            self.door.open()
            self._collector = Collector(plan, plan.stages[0], spark_rows_min=1 << 60)
            self._reader = self._follow(plan, security)
        except BaseException:
            self.close()
            raise

    def _follow(self, plan: Plan, security: Security) -> MachineLoop:
        loops: list[MachineLoop] = []
        peer = Peer(SINK, self.nodes.endpoints, security, lambda source, message: loops[0].received(source, message))
        self._open.append(peer)
        spec = plan.topology.readers[0]
        start, record = dict.fromkeys(spec.edges, 0), ask_record(peer, lambda *_, **__: None)
        reader = Reader(spec, 1, plan.topology, Config(), record, start, time.monotonic_ns())
        loops.append(MachineLoop(reader, peer.send, name=SINK))
        loops[0].start()
        return loops[0]

    def close(self) -> None:
        if hasattr(self, "_reader"):
            self._reader.stop()
        for one in reversed(self._open):
            one.close()
        self.nodes.close()

    # --- rows

    def begin(self) -> None:
        """The first window, which does not count; from now on each span closes as many windows as it opens."""
        self._hand_over()
        self.feed(1)

    def feed(self, windows: int) -> Spent:
        """So many windows, each closed by its last batch, from the first batch until everything is through."""
        before = self._told()
        began = time.perf_counter()
        for _ in range(windows * WINDOW_BATCHES):
            self._hand_over()
        self.nodes.until("the last batch to be sealed", lambda: not self.door.driver.unsealed(), LIMIT_S)
        self.nodes.until("all rows to be consumed and all results to be read", self._is_through, LIMIT_S)
        took = time.perf_counter() - began
        self.nodes.until("all of it to be captured", self._is_captured, LIMIT_S)
        after = self._told()
        nodes_s, driver_s, captures, captured = (b - a for a, b in zip(before, after, strict=True))
        return Spent(self.rows * windows * WINDOW_BATCHES, took, nodes_s, driver_s, int(captures), int(captured))

    def _hand_over(self) -> None:
        times, keys, values = self._batches[self._number % MADE]
        moved = times + self._number * BATCH_US
        table = pa.table({"ts": pa.array(moved).cast(pa.timestamp("us", tz="UTC")), "key": keys, "value": values})
        made = self._collector.split(table, to_micros(self.door.watermark), lambda: table)
        self.door.run(made.parts, spark_batch=self._number, plan="", max_us=made.max_us)
        self._number += 1
        self._reader.ask(_commit)

    def switch(self, mode: str) -> None:
        """To another mode, and until every shard is in it."""
        if all(place["mode"] == mode for place in self._places()):
            return
        self.nodes.caller.call(self.nodes.names[0], "protect", {"operator": OPERATOR, "mode": mode}, timeout=15.0)
        self.nodes.until(f"mode {mode}", lambda: all(self._is_in(place, mode) for place in self._places()), LIMIT_S)
        self.nodes.until("calm", self._is_captured, LIMIT_S)

    @staticmethod
    def _is_in(place: dict[str, Any], mode: str) -> bool:
        settled = place["backup"] if mode == "passive" else not place["backup"]
        return place["mode"] == mode and bool(settled) and not place["joining"]

    def _places(self) -> list[dict[str, Any]]:
        return [p for shard, p in self.nodes.status()["places"].items() if shard.startswith(f"{OPERATOR}-")]

    # --- looking

    def _copies(self) -> list[dict[str, Any]]:
        return [copy for name in self.nodes.names for copy in self.nodes.status(name)["shards"].values()]

    def _is_through(self) -> bool:
        self._reader.ask(_commit)
        primaries = [copy for copy in self._copies() if copy["role"] == "primary"]
        outputs = [queue for copy in primaries for queue in copy["outputs"].values()]
        read = all(ack >= queue["next"] for queue in outputs for ack in queue["acks"].values())
        return (read and len(primaries) == SHARDS and not any(map(_waits, primaries))) or self._pause()

    def _is_captured(self) -> bool:
        """An image retains the input that it has not got as state."""
        return not any(map(_waits, self._copies())) or self._pause()

    def _pause(self) -> bool:
        time.sleep(LOOK_S)
        return False

    def _told(self) -> tuple[float, float, int, int]:
        """CPU seconds of nodes and driver, captures, bytes in them; of all since the start."""
        used = [psutil.Process(p.pid).cpu_times() for p in self.nodes.processes.values()]
        copies = self._copies()
        return (
            sum(one.user + one.system for one in used),
            time.process_time(),
            sum(copy["captures"] for copy in copies),
            sum(copy["captured_bytes"] for copy in copies),
        )


def _columns(number: int, keys: int, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(number)
    return np.sort(rng.integers(0, BATCH_US, rows)), rng.integers(0, keys, rows), rng.integers(40, 1500, rows)


def _waits(copy: dict[str, Any]) -> bool:
    return any(edge["waiting"] for edge in copy["inputs"].values())


def _commit(reader: Reader, now_ns: int) -> Ready:
    return reader.commit(reader.latest(), now_ns)

"""One arm of `hand_over`: real nodes on loopback and a driver without Spark, of whichever tree PYTHONPATH names.

    PYTHONPATH=TREE/src:TREE/tests python arm.py
        '{"home": DIR, "batches": 200, "warm": 60, "rows": 1000, "shards": 4, "pause_s": 0.03}'

Hands batches over through the same door as a stage does (`spark/hand_over.py`), first with a pause after each, as Spark
makes one, then back to back; prints, as JSON, by pace the milliseconds of each batch from `RunBatch` until the driver
knows that every holder has sealed it (`sealed`), and until `foreachBatch` may return (`done`). It uses only what the
trees it compares have in common.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
from support.nodes import Nodes  # pyright: ignore[reportMissingImports]
from support.plans import layered_plan  # pyright: ignore[reportMissingImports]
from support.source import rows  # pyright: ignore[reportMissingImports]

from holdfast.model.ids import stage_edge
from holdfast.spark import hand_over

try:
    from holdfast.runtime.net.rows import ArrowRows
    from holdfast.runtime.net.security import Security
except ImportError:  # before `runtime/` had rooms
    from holdfast.runtime.rows import ArrowRows  # pyright: ignore[reportMissingImports]
    from holdfast.runtime.security import Security  # pyright: ignore[reportMissingImports]
from holdfast.runtime.shards import cut

try:  # as a driver process of that tree does
    from holdfast.runtime.node.loop import SWITCH_S

    sys.setswitchinterval(SWITCH_S)
except ImportError:
    pass

#: Its name has changed.
_Door: Any = getattr(hand_over, "StageHandOver", None) or getattr(hand_over, "HandOver", None)
#: Rows a second of event time: windows of 100 ms close as they would in a stream of this rate.
RATE = 20_000


def main() -> None:
    asked: dict[str, Any] = json.loads(sys.argv[1])
    plan = layered_plan(asked["shards"], 0, 1)
    (stage, *_) = plan.topology.stages
    foreign = msgspec.structs.replace(stage, foreign=True)  # no node starts a child for it: this process is its driver
    topology = msgspec.structs.replace(plan.topology, stages=(foreign,), readers=())
    plan = msgspec.structs.replace(plan, topology=topology, stages=plan.stages[:1])
    home = Path(asked["home"])
    nodes = Nodes(home, plan, 3)
    try:
        nodes.start()
        nodes.wait_up()
        print(json.dumps(_measure(nodes, plan, asked)), flush=True)
    finally:
        nodes.close()


class SealWatch:
    """When the driver knew, of each batch, that every holder has sealed it: looked up after each of its steps."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.at: dict[int, float] = {}
        self._step, driver.step = driver.step, self.step

    def step(self, event: Any, now_ns: int) -> Any:
        ready = self._step(event, now_ns)
        driver = self.driver
        if driver.last and all(driver.sealed.get(seat) == shards for seat, shards in driver.grouped.items()):
            self.at.setdefault(driver.last.batch, time.perf_counter())
        return ready

    def wait(self, batch: int) -> None:
        until = time.perf_counter() + 30.0
        while batch not in self.at:
            if time.perf_counter() > until:
                raise RuntimeError(f"batch {batch} was not sealed within 30 s")
            time.sleep(0.001)


def _measure(nodes: Nodes, plan: Any, asked: dict[str, Any]) -> dict[str, dict[str, list[float]]]:
    (stage,) = plan.topology.stages
    shards = [edge.partition(">")[2] for edge, owner in plan.topology.producer.items() if owner == stage.id]
    security = Security.load(nodes.dir / "secret")
    security.deployment = plan.query  # of no meaning to earlier releases
    door = _Door(plan, stage.id, 1, nodes.endpoints, security, lambda *_, **__: None)
    door.open()
    seals = SealWatch(door.driver)
    begins: list[float] = []
    done: list[float] = []
    size = asked["rows"]
    warm, batches = asked["warm"], asked["batches"]
    for number in range(warm + 2 * batches):
        batch = rows(number * size, (number + 1) * size, RATE)
        found = cut(batch, ("key",), len(shards))
        parts = {stage_edge(stage.id, s): ArrowRows([p]) for s, p in zip(shards, found, strict=True)}
        max_us = int(batch.column("ts").cast("int64").to_numpy().max())
        begins.append(time.perf_counter())
        door.run(parts, spark_batch=number, plan="", max_us=max_us)
        done.append(time.perf_counter())
        if number < warm + batches:
            time.sleep(asked["pause_s"])
    seals.wait(len(begins) - 1)
    door.close()
    ends = {"sealed": [seals.at[number] for number in range(len(begins))], "done": done}
    took = {name: [(b - a) * 1e3 for a, b in zip(begins, found, strict=True)] for name, found in ends.items()}
    spans = {"paced": slice(warm, warm + batches), "back to back": slice(warm + batches, None)}
    return {pace: {name: found[span] for name, found in took.items()} for pace, span in spans.items()}


if __name__ == "__main__":
    main()

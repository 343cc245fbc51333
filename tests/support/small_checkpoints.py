"""Operators with rows in them, and their checkpoints in a store: what tests of checkpoints on real state share."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.checkpoint import BuiltOn, PagedJob, Stand, Tenure, fit_of, publish, take
from holdfast.checkpoint.head import HeadEntry
from holdfast.model.ids import Edge, asset_id
from holdfast.operators import LEFT, RIGHT, Agg, Join, StateConfig, Window, WindowAggregate, Within
from holdfast.operators.operator import FOREVER, StatefulOperator
from holdfast.store import IoService, Steps, Store, run_alone

DEPLOYMENT = "deployment-1"
SHARD = asset_id("talkers-0")
CONFIG = StateConfig(page_bytes=4096, limit_bytes=1 << 26)
_TIME = pa.timestamp("us", tz="UTC")
_START = datetime(2026, 1, 1, tzinfo=UTC)


def batch(seed: int, rows: int = 400, keys: int = 150, prefix: str = "") -> pa.RecordBatch:
    """Rows of one minute: text keys short and long, some without one."""
    rng = np.random.default_rng(seed)
    names = [None if k == 0 else f"host-{k}" + "-with-a-long-name" * (k % 3) for k in rng.integers(0, keys, rows)]
    times = [_START + timedelta(seconds=int(s)) for s in rng.integers(0, 60, rows)]
    columns = {"ts": pa.array(times, _TIME), "host": pa.array(names), "size": pa.array(rng.integers(0, 1000, rows))}
    return pa.RecordBatch.from_arrays(list(columns.values()), names=[prefix + name for name in columns])


def aggregate(config: StateConfig = CONFIG) -> WindowAggregate:
    aggs = {"n": Agg("count"), "total": Agg("sum", "size"), "least": Agg("min", "host"), "last": Agg("last", "size")}
    window = Window(30_000_000, 10_000_000)
    return WindowAggregate(
        "talkers", batch(0).schema, event_time="ts", window=window, by=["host"], aggs=aggs, config=config
    )


def join(config: StateConfig = CONFIG) -> Join:
    left, right = batch(0, prefix="l_").schema, batch(0, prefix="r_").schema
    return Join(
        "talkers", left, right, times=("l_ts", "r_ts"), on=[("l_host", "r_host")], window=Within(0, 5_000_000),
        how="left_outer", config=config,
    )  # fmt: skip


def feed(op: Any, seed: int, rows: int = 400) -> None:
    if isinstance(op, Join):
        op.process(LEFT, batch(seed, rows // 2, 20, "l_"))
        op.process(RIGHT, batch(seed + 1000, rows // 4, 20, "r_"))
    else:
        op.process(batch(seed, rows))


def results(op: Any) -> list[dict[str, Any]]:
    """Everything that it holds, by key, in what it still emits; the operator is of no use afterwards."""
    if not isinstance(op, Join):
        return op.on_watermark(FOREVER).to_pylist()
    rows = [
        *op.process(RIGHT, batch(7, 60, 20, "r_")).to_pylist(),
        *op.process(LEFT, batch(8, 60, 20, "l_")).to_pylist(),
    ]
    rows += op.on_watermark(LEFT, FOREVER).to_pylist() + op.on_watermark(RIGHT, FOREVER).to_pylist()
    return sorted(rows, key=repr)


MAKERS: dict[str, Callable[..., StatefulOperator]] = {"aggregate": aggregate, "join": join}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def stand(epoch: int, position: int = 0) -> Stand:
    edge = Edge("packets>talkers-0")
    return Stand(epoch=epoch, positions={edge: position}, watermarks={edge: 10 * position})


def job_of(op: StatefulOperator, epoch: int, base: BuiltOn | None = None, position: int = 0, **more: Any) -> PagedJob:
    return take(
        op,
        SHARD,
        stand(epoch, position),
        fit_of(op, DEPLOYMENT),
        now_ms=now_ms,
        clock_ns=time.monotonic_ns,
        base=base,
        **more,
    )


def run(store: Store | IoService, plan: Steps[Any]) -> Any:
    return store.run(plan) if isinstance(store, IoService) else run_alone(store, plan)


class Chain:
    """An operator whose checkpoints build on each other."""

    def __init__(
        self, store: Store | IoService, tenure: Tenure, op: StatefulOperator, kept: BuiltOn | None = None
    ) -> None:
        self.store, self.tenure, self.op, self.kept = store, tenure, op, kept

    def checkpoint(self, position: int = 0, **more: Any) -> HeadEntry:
        job = job_of(self.op, self.tenure.head.epoch, self.kept, position, **more)
        entry = run(self.store, publish(self.tenure, job))
        self.kept = job.kept(entry.sequence)
        return entry

"""A large state that says nothing for a day, beside an operator that speaks every 100 ms: plan, drivers, comparison.

`silent` keeps windows of 24 hours, wide ones, so that a few million keys are a gigabyte. Its driver remembers what it
fed, key by key; when the windows are closed at the end, `drain` compares every row that comes out with that: a row that
was lost, doubled or left as it was before a rewrite shows. The keys belong to many days, and the days end one after the
other: a window closes in one step, and with gigabytes in one window that would take longer than a node may be busy.
`speaks` counts in windows of 100 ms of the real time.

The drivers are threads of this process (the stages are `foreign`), so nothing of Spark is started.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from holdfast.core.reader import Piece, Reader
from holdfast.core.ready import Ready
from holdfast.model.block import WATERMARK_MAX
from holdfast.model.config import Config
from holdfast.model.ids import maker_of, name_of, shard_edge, shard_id, stage_edge
from holdfast.model.plan import OperatorPlan, Plan, StagePlan
from holdfast.model.topology import ReaderSpec, ShardSpec, StageSpec, Topology
from holdfast.runtime.net.rows import ArrowRows
from holdfast.runtime.net.security import Security
from holdfast.runtime.net.transport import Peer
from holdfast.runtime.node.loop import MachineLoop
from holdfast.runtime.shards import cut
from holdfast.spark.connect import Run
from holdfast.spark.fetch import Order, fetch
from holdfast.spark.hand_over import StageHandOver, Stopped, ask_record
from support.plans import ROWS, aggregate_plan

DAY_US = 86_400_000_000
SPEAKS_US = 100_000
#: More results of the same column: they make a record wide.
WIDE = tuple(f"high{i:02}" for i in range(24))
#: Bytes of state per key, about: measured with 200,000 keys.
KEY_BYTES = 268
FILL_ROWS, REWRITE_ROWS = 50_000, 500
#: Days to which the keys belong, in turn.
DAYS = 64
SINK = "r0"


def silent_plan(shards: int = 4, speaking: int = 2) -> Plan:
    """Operators `silent` and (if it has shards) `speaks`, each with a source of its own; a sink reads `silent`."""
    wide = {name: ["max", "value", False] for name in WIDE}
    aggs = {"n": ["count", None, False], "total": ["sum", "value", False], "low": ["min", "value", False], **wide}
    found = [("silent", shards, DAY_US, aggs)]
    if speaking:
        found.append(("speaks", speaking, SPEAKS_US, {"n": ["count", None, False]}))
    operators: list[OperatorPlan] = []
    specs: list[ShardSpec] = []
    stages: list[StageSpec] = []
    for name, count, size_us, asked in found:
        stage, names = f"{name}_in", tuple(shard_id(name, i) for i in range(count))
        plan = aggregate_plan(name, [(stage, ROWS, "ts")], size_us, asked)
        operators.append(msgspec.structs.replace(plan, shards=count))
        specs += [ShardSpec(id=u, inputs=(stage_edge(stage, u),), outputs=(shard_edge(u),)) for u in names]
        stages.append(StageSpec(id=stage, shards=names, query=f"query-{name}", tick_ns=1_000, foreign=True))
    edges = tuple(shard_edge(shard_id("silent", i)) for i in range(shards))
    topology = Topology(shards=tuple(specs), stages=tuple(stages), readers=(ReaderSpec(id=SINK, edges=edges),))
    plans = tuple(
        StagePlan(id=s.id, kind="source", feeds=((o.name, 0),)) for s, o in zip(stages, operators, strict=True)
    )
    return Plan(pipeline="silent", query="silent-1", topology=topology, operators=tuple(operators), stages=plans)


def _rows(times: np.ndarray, keys: np.ndarray, values: np.ndarray) -> pa.RecordBatch:
    columns = [pa.array(times).view(ROWS.field("ts").type), pa.array(keys), pa.array(values)]
    return pa.RecordBatch.from_arrays(columns, schema=ROWS)


class _Driver:
    """The driver of one stage, in this process."""

    def __init__(self, plan: Plan, operator: str, endpoints: dict[str, str], security: Security) -> None:
        self.stage = plan.topology.stage[f"{operator}_in"]
        self.door = StageHandOver(plan, self.stage.id, 1, endpoints, security, lambda *_, **__: None)
        self.door.open()
        self.batches = 0

    def hand_over(self, batch: pa.RecordBatch, *, max_us: int, final: bool = False) -> None:
        found = cut(batch, ("key",), len(self.stage.shards))
        parts = {stage_edge(self.stage.id, u): ArrowRows([p]) for u, p in zip(self.stage.shards, found, strict=True)}
        if final:
            parts = {}
        self.door.run(parts, spark_batch=self.batches, plan="", max_us=max_us, final=final)
        self.batches += 1

    def close(self) -> None:
        self.door.stopping.set()
        self.door.close()


class _Paced:
    """A driver that runs a batch every so often, in a thread, until it is stopped."""

    def __init__(self, name: str, every_s: float, driver: _Driver) -> None:
        self.driver = driver
        self._every_s = every_s
        self._over = threading.Event()
        self.crash: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def batch(self) -> None:
        raise NotImplementedError

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._over.wait(self._every_s):
                self.batch()
        except Stopped:
            pass
        except BaseException as error:
            self.crash = error

    def stop(self) -> None:
        self._over.set()
        self._thread.join()
        if self.crash is not None:
            raise self.crash

    def close(self) -> None:
        """The end of this driver, whatever it waits for."""
        self._over.set()
        self.driver.close()
        if self._thread.ident is not None:
            self._thread.join()


class Speaker(_Paced):
    """Rows at the real time, so that a window closes every 100 ms."""

    def __init__(self, plan: Plan, endpoints: dict[str, str], security: Security) -> None:
        super().__init__("speaks", 0.05, _Driver(plan, "speaks", endpoints, security))

    def batch(self) -> None:
        now_us = time.time_ns() // 1_000
        keys = np.arange(200, dtype=np.int64)
        self.driver.hand_over(_rows(np.full(200, now_us), keys, keys), max_us=now_us)


class Silent(_Paced):
    """Fills the state, rewrites keys at random every 100 ms, and knows what every key must come to."""

    def __init__(self, plan: Plan, keys: int, endpoints: dict[str, str], security: Security) -> None:
        super().__init__("silent", 0.1, _Driver(plan, "silent", endpoints, security))
        self.keys = keys
        self._random = np.random.default_rng(12)
        self.n, self.total = np.zeros(keys, np.int64), np.zeros(keys, np.int64)
        self.low, self.high = np.full(keys, 1 << 60), np.full(keys, -1)
        self.rewritten = 0

    def fill(self) -> None:
        for start in range(0, self.keys, FILL_ROWS):
            self._feed(np.arange(start, min(self.keys, start + FILL_ROWS), dtype=np.int64))

    def batch(self) -> None:
        self._feed(self._random.integers(0, self.keys, REWRITE_ROWS))
        self.rewritten += REWRITE_ROWS

    def _feed(self, keys: np.ndarray) -> None:
        values = self._random.integers(0, 1 << 30, len(keys))
        self.driver.hand_over(_rows(keys % DAYS * DAY_US + 1_000, keys, values), max_us=1_000)
        np.add.at(self.n, keys, 1)
        np.add.at(self.total, keys, values)
        np.minimum.at(self.low, keys, values)
        np.maximum.at(self.high, keys, values)

    def finish(self) -> None:
        """Close every window, one day after the other."""
        nothing = _rows(*np.zeros((3, 0), np.int64))
        for day in range(1, DAYS):
            self.driver.hand_over(nothing, max_us=day * DAY_US)
        self.driver.hand_over(nothing, max_us=DAYS * DAY_US, final=True)

    def wrong(self, batch: pa.RecordBatch, seen: np.ndarray) -> int:
        """Rows that are not what was fed, or came before; marks those that came."""
        columns = {name: batch.column(name).to_numpy() for name in ("key", "n", "total", "low", *WIDE)}
        keys = columns.pop("key")
        bad = seen[keys] | (np.bincount(keys, minlength=self.keys)[keys] > 1)
        seen[keys] = True
        for name, values in columns.items():
            bad |= values != (self.high if name in WIDE else getattr(self, name))[keys]
        return int(bad.sum())


def drain(
    plan: Plan, feed: Silent, endpoints: dict[str, str], secret: Path, limit_s: float = 120.0
) -> tuple[int, int, int]:
    """Read all that the silent operator says at last, and compare it: (keys missing, rows wrong, rows)."""
    spec = plan.topology.readers[0]
    loops: list[MachineLoop] = []
    peer = Peer(
        SINK,
        endpoints,
        Security.load(secret, deployment=plan.query),
        lambda source, message: loops[0].received(source, message),
    )
    record = ask_record(peer, lambda *_, **__: None)
    start = dict.fromkeys(spec.edges, 0)
    reader = Reader(spec, 1, plan.topology, Config(), record, start, time.monotonic_ns())
    loops.append(MachineLoop(reader, peer.send, name=SINK))
    loops[0].start()
    seen, wrong, rows = np.zeros(feed.keys, bool), 0, 0
    ended: set[str] = set()
    run = Run(endpoints=endpoints, secret_file=str(secret), deployment=plan.query)
    deadline = time.monotonic() + limit_s

    def look(reader: Reader, now: int) -> tuple[dict[str, int], list[Piece], set[str]]:
        end = reader.latest()
        over = {e for e, blocks in reader.buffers.items() if any(b.watermark >= WATERMARK_MAX for b in blocks)}
        return end, reader.pieces(start, end), over

    def commit(reader: Reader, now: int) -> Ready:
        return reader.commit(start, now)

    try:
        while len(ended) < len(spec.edges):
            end, pieces, over = loops[0].ask(look)
            for piece in pieces:
                record = loops[0].ask(lambda reader, now: reader.record)
                place = record.places[maker_of(piece.edge)]
                order = Order(
                    run=run,
                    consumer=SINK,
                    epoch=1,
                    pieces=(piece,),
                    homes={piece.shard: name_of(place.primary or "")},
                    epochs={piece.shard: place.epoch},
                    version=record.version,
                    query=plan.topology.query,
                )
                for batch in fetch(order, piece):
                    wrong += feed.wrong(batch, seen)
                    rows += batch.num_rows
            start, ended = end, ended | over
            loops[0].ask(commit)
            if time.monotonic() > deadline:
                raise RuntimeError(f"the windows did not all come within {limit_s:.0f} s: {rows} rows of {feed.keys}")
            time.sleep(0.02)
    finally:
        loops[0].stop()
        peer.close()
    return int((~seen).sum()), wrong, rows

"""One life of a real-time stage's driver, on a real Spark and without nodes: its ledger is a file. To be killed at any
moment, and started again.

    python -m support.real_time_life DIRECTORY JARS ADDRESS TOPIC [LATENCY]

A line of DIRECTORY/ledger is a batch that counts: its rows as [partition, offset, age in ms], and its commit record.
"finish" on stdin: read what is there, and end.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa

from holdfast.model.block import WATERMARK_MAX
from holdfast.model.latency import HandOverClock
from holdfast.model.parts import CommitRecord
from holdfast.model.plan import REAL_TIME, StagePlan
from holdfast.spark.collect import Batch
from holdfast.spark.real_time import RealTimeStage
from holdfast.spark.real_time_jar import with_jar
from holdfast.spark.session import session
from holdfast.spark.stage import FeedingStage

KEPT = "offset % 7 != 3"


class FileLedger:
    """In place of a hand-over: what is on the disk whole counts."""

    def __init__(self, path: Path) -> None:
        self.clock, self.watermark, self.epoch = HandOverClock(), 0, 1
        self.stopping = threading.Event()
        self.last: CommitRecord | None = None
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        whole = [line for line in lines if line.endswith("\n")]
        if lines != whole:
            path.write_text("".join(whole))
        if whole:
            self.last = msgspec.convert(json.loads(whole[-1])["commit"], CommitRecord)
        self._file = path.open("a")

    def open(self) -> CommitRecord | None:
        return self.last

    def run(self, parts: Any, *, spark_batch: int, plan: str, positions: Any = None, **rest: Any) -> CommitRecord:
        number = self.last.batch + 1 if self.last else 0
        mark = WATERMARK_MAX if rest.get("final") else 0
        commit = CommitRecord(
            query="q", batch=number, epoch=1, attempt=1, watermark=mark, offsets=(spark_batch, spark_batch + 1),
            plan=plan, positions=dict(positions or {}),
        )  # fmt: skip
        now = time.time() * 1e3
        rows = [(p, at, round(now - ms, 1)) for p, at, ms in parts.get("rows", ())]
        self._file.write(json.dumps({"rows": rows, "commit": msgspec.to_builtins(commit)}) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.last = commit
        return commit


class PlainCollector:
    def collect(self, frame: Any, watermark_us: int, bad_max: int) -> Batch:
        return self.take(frame.toArrow(), watermark_us, bad_max)

    def take(self, table: pa.Table, watermark_us: int, bad_max: int) -> Batch:
        columns = [table.column(name).to_pylist() for name in ("partition", "offset", "ms")]
        return Batch(parts={"rows": list(zip(*columns, strict=True))}, rows=table.num_rows)  # type: ignore[dict-item]


def main(directory: Path, jars: str, address: str, topic: str, latency: str = REAL_TIME) -> None:
    conf, why = with_jar({"spark.jars": jars, "spark.holdfast.realTimeBatch": "5 seconds"}, "local[*]")
    assert not why, why
    spark = session("life", "local[*]", conf, stages=1, quick=True, slots=64)
    frame = (
        spark.readStream.format("kafka").option("kafka.bootstrap.servers", address).option("subscribe", topic)
        .option("startingOffsets", "earliest").load()
        .selectExpr("cast(value as string) as v", "partition", "offset", "unix_millis(timestamp) as ms").where(KEPT)
    )  # fmt: skip
    given: Any = (SimpleNamespace(query="q"), StagePlan(id="s", kind="source"), directory, PlainCollector())
    kind = RealTimeStage if latency == REAL_TIME else FeedingStage
    stage = kind(*given, lambda event, **fields: event != "batch" and print(event, fields, file=sys.stderr))
    ledger: Any = FileLedger(directory / "ledger")
    assert stage.open(ledger)
    stage.start(frame)
    told, is_told = threading.Event(), False
    threading.Thread(target=lambda: (sys.stdin.readline(), told.set()), daemon=True).start()
    while not told.wait(0.05):
        assert stage.query is not None
        assert stage.query.isActive, stage.failure or stage.query.exception()
        stage.on_idle()
        if not is_told and (not isinstance(stage, RealTimeStage) or stage.inlet is not None):
            is_told = True
            print("in real time" if latency == REAL_TIME else "in micro-batches", flush=True)
    stage.finish()
    assert stage.failure is None, stage.failure
    print("finished", flush=True)
    with contextlib.suppress(Exception):
        spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])

"""The pipeline of the soak; settings come by HOLDFAST_BENCH (JSON).

Its sink writes one parquet file a batch, under the batch's number: a batch that runs twice writes the same file twice.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import holdfast as hf

options = json.loads(os.environ["HOLDFAST_BENCH"])

pipeline = hf.Pipeline("soak")


def _given(reader):
    for name in ("start_us", "rate", "keys", "end"):
        reader = reader.option(name, str(options[name]))
    return reader.load()


def source(spark):
    from bench.soak.source import SoakSource

    spark.dataSource.register(SoakSource)
    return _given(spark.readStream.format("soak"))


def whole(spark):
    from bench.soak.source import SoakSource

    spark.dataSource.register(SoakSource)
    return _given(spark.read.format("soak"))


def sink(frame, batch):
    import pyarrow.parquet as pq

    table = frame.toArrow()
    if not table.num_rows:
        return
    out = Path(options["out"])
    out.mkdir(parents=True, exist_ok=True)
    made = out / f".{batch}.tmp"
    pq.write_table(table, made)
    made.replace(out / f"{batch:08}.parquet")
    told = {"at": time.time(), "end": max(table["window_end"].to_pylist()).timestamp(),
            "through": sum(table["packets"].to_pylist()), "rows": table.num_rows}  # fmt: skip
    with open(options["arrivals"], "a") as arrivals:
        arrivals.write(json.dumps(told) + "\n")


packets = pipeline.read(source, event_time="ts", watermark=options["delay"], batch=whole)
counts = (
    packets.window(options["window"])
    .by("src")
    .agg(packets=hf.count(), bytes=hf.sum("bytes"), name="counts", shards=options["shards"])
)
counts.write(
    lambda df: df.writeStream.foreachBatch(sink), name="out", result=lambda spark: spark.read.parquet(options["out"])
)

"""The query of `restart.py` as a Holdfast pipeline; settings come by HOLDFAST_BENCH (JSON)."""

from __future__ import annotations

import json
import os
import time

import holdfast as hf

options = json.loads(os.environ["HOLDFAST_BENCH"])
pipeline = hf.Pipeline("restart")

rows = pipeline.read(
    lambda spark: (
        spark.readStream.schema("ts timestamp, key long, value long")
        .option("maxFilesPerTrigger", 1)
        .parquet(options["in"])
    ),
    event_time="ts",
    watermark="1 hour",
)


def sink(frame, batch):
    with open(options["out"], "a") as out:
        out.write(json.dumps({"at": time.time(), "rows": frame.count()}) + "\n")


(
    rows.window("24 hours")
    .by("key")
    .agg(n=hf.count(), total=hf.sum("value"), most=hf.max("value"), name="held", shards=options["shards"])
    .write(lambda df: df.writeStream.foreachBatch(sink), name="arrivals")
)

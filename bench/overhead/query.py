"""The same query as a Holdfast pipeline; settings come by HOLDFAST_BENCH (JSON)."""

from __future__ import annotations

import json
import os

import holdfast as hf
from bench.overhead.data import SCHEMA

options = json.loads(os.environ["HOLDFAST_BENCH"])

pipeline = hf.Pipeline("overhead")
rows = pipeline.read(
    lambda spark: spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(options["input"]),
    event_time="ts",
    watermark="0 seconds",
)
counts = (
    rows.window(options["window"])
    .by("src")
    .agg(packets=hf.count(), bytes=hf.sum("bytes"), name="counts", shards=options["shards"])
)
counts.write(lambda df: df.writeStream.format("noop"), name="nothing")

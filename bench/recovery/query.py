"""The query of the bench as a Holdfast pipeline; settings come by HOLDFAST_BENCH (JSON), as `plain.py` gets them."""

from __future__ import annotations

import json
import os
import time

import holdfast as hf

options = json.loads(os.environ["HOLDFAST_BENCH"])

pipeline = hf.Pipeline("recovery")


def source(spark):
    from bench.recovery.clock import ClockSource

    spark.dataSource.register(ClockSource)
    reader = spark.readStream.format("clock")
    for name in ("start_us", "rate", "keys"):
        reader = reader.option(name, str(options[name]))
    return reader.load()


def sink(frame, batch):
    from pyspark.sql import functions as F

    newest = frame.agg(F.max("window_end"), F.count("*")).first()
    if newest and newest[1]:
        with open(options["out"], "a") as out:
            out.write(json.dumps({"at": time.time(), "end": newest[0].timestamp(), "rows": newest[1]}) + "\n")


packets = pipeline.read(source, event_time="ts", watermark=options["delay"])
counts = (
    packets.window(options["window"])
    .by("src")
    .agg(packets=hf.count(), bytes=hf.sum("bytes"), name="counts", shards=options["shards"])
)
counts.write(lambda df: df.writeStream.foreachBatch(sink), name="arrivals")

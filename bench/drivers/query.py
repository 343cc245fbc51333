"""A pipeline of two, four or eight stages: pairs of a source and a sink, with an operator between them.

Settings come by HOLDFAST_BENCH (JSON). Where the pairs shall differ (`mixed`), every second one has a source in the JVM
and a sink of files, the others a source in Python and a `foreachBatch`. It uses only what the trees that are compared
have in common.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

import holdfast as hf
from holdfast.pipeline.generators import traffic

options = json.loads(os.environ["HOLDFAST_BENCH"])
BATCH_MS = 200

pipeline = hf.Pipeline("stages")


def clock(spark: Any) -> Any:
    from bench.recovery.clock import ClockSource

    spark.dataSource.register(ClockSource)
    reader = spark.readStream.format("clock")
    for name in ("start_us", "rate", "keys", "pause"):
        reader = reader.option(name, str(options[name]))
    return reader.load()


def packets(spark: Any) -> Any:
    return traffic(spark, rate=options["rate"], batch_ms=BATCH_MS, late_every=0)


def arrivals(number: int) -> Callable[[Any, int], None]:
    """A sink that notes when rows come, and the end of their newest window."""

    def sink(frame: Any, batch: int) -> None:
        from pyspark.sql import functions as F

        newest = frame.agg(F.max("window_end"), F.count("*")).first()
        if newest and newest[1]:
            with open(os.path.join(options["out"], f"arrivals-{number}.jsonl"), "a") as out:
                out.write(json.dumps({"at": time.time(), "end": newest[0].timestamp(), "rows": newest[1]}) + "\n")

    return sink


def arrow_arrivals(number: int) -> Callable[[Any, Any], None]:
    """The same without Spark: a function that gets Arrow tables."""

    def sink(table: Any, batch: Any) -> None:
        import pyarrow.compute as pc

        newest = pc.call_function("max", [table["window_end"]]).as_py()
        with open(os.path.join(options["out"], f"arrivals-{number}.jsonl"), "a") as out:
            out.write(json.dumps({"at": time.time(), "end": newest.timestamp(), "rows": table.num_rows}) + "\n")

    return sink


def is_files(number: int) -> bool:
    return bool(options["mixed"]) and number % 2 == 1


def pair(number: int) -> None:
    """One source, one operator, one sink."""
    source = packets if is_files(number) else clock
    trigger = f"{BATCH_MS} ms" if is_files(number) else None
    rows = pipeline.read(source, event_time="ts", watermark=options["delay"], name=f"rows_{number}", trigger=trigger)
    counts = (
        rows.window(options["window"])
        .by("src")
        .agg(packets=hf.count(), bytes=hf.sum("bytes"), name=f"counts_{number}", shards=options["shards"])
    )
    if is_files(number):
        path = os.path.join(options["out"], f"files-{number}")
        counts.write(lambda df: df.writeStream.format("parquet").option("path", path), name=f"sink_{number}")
    elif options.get("arrow"):
        counts.write_arrow(arrow_arrivals(number), name=f"sink_{number}")
    else:
        counts.write(lambda df: df.writeStream.foreachBatch(arrivals(number)), name=f"sink_{number}")


for one in range(options["stages"] // 2):
    pair(one)

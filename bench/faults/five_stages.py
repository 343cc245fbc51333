"""Two sources and three sinks, for `bench faults --part stages`.

As long as a file HOLDFAST_OUT/fail is there, the third sink fails on its data. With `hang-worker` it hangs in a worker,
with `hang-sink` in its own function.

Spark can end a query whose worker hangs: it kills the worker. Nothing ends a function that hangs in the driver. One
that was left behind and wakes up writes its batch beside whoever took over: so a batch is one file, which is the same
whoever writes it, and is there as a whole or not at all.
"""

import holdfast as hf
from holdfast.pipeline.generators import bids, nexmark, output, setting, traffic

RATE, BATCH_MS = setting("HOLDFAST_RATE", 2_000), setting("HOLDFAST_BATCH_MS", 300)

pipeline = hf.Pipeline("five_stages")
packets = pipeline.read(
    lambda spark: traffic(spark, rate=RATE, batch_ms=BATCH_MS, late_every=5_000),
    event_time="ts",
    watermark="1 second",
    trigger=f"{BATCH_MS} ms",
    name="packets",
)
offers = pipeline.read(
    lambda spark: bids(nexmark(spark, rate=RATE, batch_ms=BATCH_MS)),
    event_time="ts",
    watermark="1 second",
    trigger=f"{BATCH_MS} ms",
    name="offers",
)
talkers = (
    packets.window("4 seconds", every="1 second")
    .by("src")
    .agg(packets=hf.count(), bytes=hf.sum("bytes"), shards=2, name="talkers")
)
auctions = offers.window("2 seconds").by("auction").agg(bids=hf.count(), shards=2, name="auctions")


def touchy(frame):
    """Every row passes, once the files are gone."""
    import os
    import time

    from pyspark.sql import functions as F

    fail, hang = output("fail"), output("hang-worker")

    def passes(count: int) -> bool:
        if os.path.exists(fail):
            raise ValueError(f"the third sink cannot stand {count} bids")
        while os.path.exists(hang):
            time.sleep(0.1)
        return True

    return frame.where(F.udf(passes, "boolean")("bids"))


def keep(batch, number):
    import os
    import time
    import uuid

    import pyarrow.parquet as pq

    while os.path.exists(output("hang-sink")):
        time.sleep(0.1)
    table = batch.toArrow()
    if table.num_rows:
        os.makedirs(output("touchy"), exist_ok=True)
        new = os.path.join(output("touchy"), f".{uuid.uuid4().hex}")
        pq.write_table(table, new)
        os.replace(new, os.path.join(output("touchy"), f"{number:08}.parquet"))


def files(name):
    return lambda df: df.writeStream.format("parquet").option("path", output(name))


talkers.write(files("talkers"), name="alerts")
auctions.map(lambda df: df.where("bids > 1")).write(files("auctions"), name="hot")
auctions.map(touchy).write(
    lambda df: df.writeStream.foreachBatch(keep),
    name="touchy",
    result=lambda spark: spark.read.parquet(output("touchy")),
)

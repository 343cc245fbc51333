"""Two sources and three sinks, for `bench faults --part stages`. The third sink hangs, or fails on its data, as long as
a file says so: HOLDFAST_OUT/hang, HOLDFAST_OUT/fail."""

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

    fail, hang = output("fail"), output("hang")

    def passes(count: int) -> bool:
        if os.path.exists(fail):
            raise ValueError(f"the third sink cannot stand {count} bids")
        while os.path.exists(hang):
            time.sleep(0.1)
        return True

    return frame.where(F.udf(passes, "boolean")("bids"))


def files(name):
    return lambda df: df.writeStream.format("parquet").option("path", output(name))


talkers.write(files("talkers"), name="alerts")
auctions.map(lambda df: df.where("bids > 1")).write(files("auctions"), name="hot")
auctions.map(touchy).write(files("touchy"), name="touchy")

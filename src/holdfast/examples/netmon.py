"""Network monitoring, the query of cooperative-ha §8.1: packets of each source in the last 10 s, every second.

    holdfast run examples/netmon.py --nodes 4

Traffic is generated (rates and skew as in the paper). HOLDFAST_RATE: packets a second (2100); HOLDFAST_BATCH_MS: how
often a batch is read (250); HOLDFAST_ROWS: stop after so many (0: never); HOLDFAST_LATE_EVERY: one in so many comes
too late (10000; 0: none); HOLDFAST_OUT: where results go (./out).
"""

import holdfast as hf
from holdfast.pipeline.generators import output, setting, traffic

RATE, BATCH_MS, ROWS = setting("HOLDFAST_RATE", 2_100), setting("HOLDFAST_BATCH_MS", 250), setting("HOLDFAST_ROWS", 0)
LATE_EVERY = setting("HOLDFAST_LATE_EVERY", 10_000)

pipeline = hf.Pipeline("netmon")

packets = pipeline.read(
    lambda spark: traffic(spark, rate=RATE, batch_ms=BATCH_MS, rows=ROWS, late_every=LATE_EVERY),
    event_time="ts",
    watermark="2 seconds",
    trigger=f"{BATCH_MS} ms",
    name="packets",
)
tcp = packets.map(lambda df: df.where("bytes > 0"))

talkers = (
    tcp.window("10 seconds", every="1 second")
    .by("src")
    .agg(packets=hf.count(), bytes=hf.sum("bytes"), largest=hf.max("bytes"), shards=8, name="talkers")
)

talkers.map(lambda df: df.where("packets > 5")).write(
    lambda df: df.writeStream.format("parquet").option("path", output("netmon")), name="alerts"
)

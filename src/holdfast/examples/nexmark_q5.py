"""Nexmark query 5, hot items: the auctions with the most bids in the last 10 s, every 2 s. Windows over windows.

    holdfast run examples/nexmark_q5.py

HOLDFAST_RATE: events a second (10000); HOLDFAST_BATCH_MS (250); HOLDFAST_ROWS: stop after so many events (0: never).
"""

import holdfast as hf
from holdfast.pipeline.generators import bids, nexmark, output, setting

RATE, BATCH_MS, ROWS = setting("HOLDFAST_RATE", 10_000), setting("HOLDFAST_BATCH_MS", 250), setting("HOLDFAST_ROWS", 0)

pipeline = hf.Pipeline("nexmark_q5")

stream = pipeline.read(
    lambda spark: bids(nexmark(spark, rate=RATE, batch_ms=BATCH_MS, rows=ROWS)),
    event_time="ts",
    watermark="1 second",
    trigger=f"{BATCH_MS} ms",
    name="bids",
)

counts = stream.window("10 seconds", every="2 seconds").by("auction").agg(bids=hf.count(), name="counts")
# a result's event time is the last moment of its window: all windows that end together fall into one window of 2 s
most = counts.window("2 seconds").agg(most=hf.max("bids"), name="most")
hot = counts.join(most, on=[("bids", "most")], window="2 seconds", name="hot")

hot.map(lambda df: df.select("window_start", "window_end", "auction", "bids")).write(
    lambda df: df.writeStream.format("parquet").option("path", output("nexmark_q5")), name="hot_items"
)

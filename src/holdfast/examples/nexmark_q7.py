"""Nexmark query 7, highest bid: the bids with the highest price of each 10 s. One source feeds an aggregate and a join.

    holdfast run examples/nexmark_q7.py

HOLDFAST_RATE: events a second (10000); HOLDFAST_BATCH_MS (250); HOLDFAST_ROWS: stop after so many events (0: never).
"""

import holdfast as hf
from holdfast.pipeline.generators import bids, nexmark, output, setting

RATE, BATCH_MS, ROWS = setting("HOLDFAST_RATE", 10_000), setting("HOLDFAST_BATCH_MS", 250), setting("HOLDFAST_ROWS", 0)

pipeline = hf.Pipeline("nexmark_q7")

stream = pipeline.read(
    lambda spark: bids(nexmark(spark, rate=RATE, batch_ms=BATCH_MS, rows=ROWS)),
    event_time="ts",
    watermark="1 second",
    trigger=f"{BATCH_MS} ms",
    name="bids",
)

highest = stream.window("10 seconds").agg(highest=hf.max("price"), name="highest")
winners = stream.join(highest, on=[("price", "highest")], window="10 seconds", name="winners")

winners.map(lambda df: df.select("window_end", "ts", "auction", "bidder", "price")).write(
    lambda df: df.writeStream.format("parquet").option("path", output("nexmark_q7")), name="highest_bids"
)

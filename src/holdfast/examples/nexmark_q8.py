"""Nexmark query 8, new users: who registered and opened an auction in the same 10 s? Two aggregates, joined.

    holdfast run examples/nexmark_q8.py

HOLDFAST_RATE: events a second (10000); HOLDFAST_BATCH_MS (250); HOLDFAST_ROWS: stop after so many events (0: never).
"""

import holdfast as hf
from holdfast.pipeline.generators import auctions, nexmark, output, persons, setting

RATE, BATCH_MS, ROWS = setting("HOLDFAST_RATE", 10_000), setting("HOLDFAST_BATCH_MS", 250), setting("HOLDFAST_ROWS", 0)

pipeline = hf.Pipeline("nexmark_q8")

events = pipeline.read(
    lambda spark: nexmark(spark, rate=RATE, batch_ms=BATCH_MS, rows=ROWS),
    event_time="ts",
    watermark="1 second",
    trigger=f"{BATCH_MS} ms",
)

registered = events.map(persons).window("10 seconds").by("id", "name").agg(events=hf.count(), name="registered")
sellers = events.map(auctions).window("10 seconds").by("seller").agg(opened=hf.count(), name="sellers")
new_users = registered.join(sellers, on=[("id", "seller")], window="10 seconds", name="new_users")

new_users.map(lambda df: df.select("window_start", "window_end", "id", "name", "opened")).write(
    lambda df: df.writeStream.format("parquet").option("path", output("nexmark_q8")), name="monitor"
)

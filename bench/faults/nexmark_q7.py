"""Nexmark q7 with a second sink that counts every bid: the highest ones alone would hide most rows that were lost."""

import holdfast as hf
from holdfast.examples import nexmark_q7 as example
from holdfast.pipeline.generators import output

pipeline = example.pipeline

counts = (
    example.stream.window("10 seconds", every="2 seconds")
    .by("auction")
    .agg(bids=hf.count(), total=hf.sum("price"), name="counts")
)
counts.map(lambda df: df.select("window_start", "window_end", "auction", "bids", "total")).write(
    lambda df: df.writeStream.format("parquet").option("path", output("nexmark_q7_counts")), name="all_counts"
)

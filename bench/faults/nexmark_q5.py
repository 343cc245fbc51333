"""Nexmark q5 with a second sink that holds every count: the hot items alone would hide most rows that were lost."""

from holdfast.examples import nexmark_q5 as example
from holdfast.pipeline.generators import output

pipeline = example.pipeline

example.counts.map(lambda df: df.select("window_start", "window_end", "auction", "bids")).write(
    lambda df: df.writeStream.format("parquet").option("path", output("nexmark_q5_counts")), name="all_counts"
)

"""What goes by the order of arrival, for `bench faults --part restarts`: first and last, windows of rows, sums of
doubles, and a stage between two operators.

Rows are numbers 0, 1, 2, ... and a batch has as many as there are keys `once`: of each of those it has exactly one row,
so whatever order Spark gives a batch, their rows come by their numbers. Keys `often` have 15 rows a batch in any
order. `by_arrival.py` knows from this what must be in the sinks that `verify` cannot compute.
"""

import holdfast as hf
from holdfast.pipeline.generators import EPOCH_US, numbers, output, setting

RATE, BATCH_MS = setting("HOLDFAST_RATE", 2_000), setting("HOLDFAST_BATCH_MS", 300)
PER_BATCH = RATE * BATCH_MS // 1000
#: Of a key `often` a batch has so many rows, and a window of rows so many: windows begin and end inside of batches.
OFTEN, WINDOW_ROWS = 15, 4
#: Odd, and below 2^40: number * MIX mod 2^40 mixes numbers, and no sum of a few of them is that of others.
MIX, BITS = 654_435_761_337, 40

pipeline = hf.Pipeline("ordered")
rows = pipeline.read(
    lambda spark: numbers(spark, rate=RATE, batch_ms=BATCH_MS).selectExpr(
        f"timestamp_micros({EPOCH_US}L + value * 1000000L div {RATE}L) as ts",
        "value as number",
        f"value % {PER_BATCH} as once",
        f"value % {PER_BATCH // OFTEN} as often",
        f"cast(pmod(cast(value as decimal(20,0)) * {MIX}, {1 << BITS}) as bigint) as mixed",
        "cast(value as double) * 0.1D as tenth",
    ),
    event_time="ts",
    watermark="1 second",
    trigger=f"{BATCH_MS} ms",
    name="rows",
)


def files(name):
    return lambda df: df.writeStream.format("parquet").option("path", output(name))


picks = (
    rows.window("6 seconds", every="3 seconds")
    .by("once")
    .agg(first=hf.first("number"), last=hf.last("number"), rows=hf.count(), shards=3, name="picks")
)
runs = rows.window(rows=WINDOW_ROWS).by("often").agg(total=hf.sum("mixed"), rows=hf.count(), shards=3, name="runs")
doubles = rows.window("2 seconds").by("often").agg(tenths=hf.sum("tenth"), rows=hf.count(), shards=2, name="doubles")
again = (
    doubles.map(lambda df: df.selectExpr("window_start", "window_end", "often % 5 as fifth", "tenths", "rows"))
    .window("6 seconds")
    .by("fifth")
    .agg(tenths=hf.sum("tenths"), rows=hf.sum("rows"), shards=2, name="again")
)

picks.map(lambda df: df.select("window_start", "once", "first", "last", "rows")).write(files("picks"), name="picked")
runs.map(lambda df: df.select("often", "total", "rows")).write(files("runs"), name="ran")
doubles.map(lambda df: df.select("window_start", "often", "tenths", "rows")).write(files("doubles"), name="summed")
again.map(lambda df: df.select("window_start", "fifth", "tenths", "rows")).write(files("again"), name="summed_again")

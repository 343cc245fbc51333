"""Taxi rides: START and END events of real rides brought together, with how long each ride took.

    HOLDFAST_DATA=../shared/data holdfast run examples/taxi.py

HOLDFAST_FILE_ROWS: rows of a file; a batch reads one (2000); HOLDFAST_BATCH_MS (250); HOLDFAST_ROWS: only so many
rows (0: all 100,000). The stream ends with the data: `holdfast stop --finish`.
"""

import holdfast as hf
from holdfast.pipeline.generators import output, setting, split_files

FILE_ROWS, BATCH_MS = setting("HOLDFAST_FILE_ROWS", 2_000), setting("HOLDFAST_BATCH_MS", 250)
RIDES = split_files("taxi_rides", rows_per_file=FILE_ROWS, rows=setting("HOLDFAST_ROWS", 0))

pipeline = hf.Pipeline("taxi")

rides = pipeline.read(
    lambda spark: (
        spark.readStream.schema("ts_us long, kind string, ride_id long, taxi_id long, passengers long")
        .option("maxFilesPerTrigger", 1)
        .parquet(RIDES)
        .selectExpr("timestamp_micros(ts_us) as ts", "* except (ts_us)")
    ),
    event_time="ts",
    watermark="1 minute",
    trigger=f"{BATCH_MS} ms",
)

starts = rides.filter("kind = 'START'").map(lambda df: df.select("ts", "ride_id", "taxi_id", "passengers"))
ends = rides.filter("kind = 'END'").map(lambda df: df.select("ts", "ride_id"))

trips = starts.join(ends, on="ride_id", within="2 hours", name="trips")

trips.map(
    lambda df: df.selectExpr(
        "ride_id",
        "taxi_id",
        "passengers",
        "ts as started",
        "right_ts as ended",
        "(unix_micros(right_ts) - unix_micros(ts)) div 1000000 as seconds",
    )
).write(lambda df: df.writeStream.format("parquet").option("path", output("taxi")), name="rides")

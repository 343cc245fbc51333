"""The same query on plain Structured Streaming with RocksDB, in a process of its own: killed, and started again."""

from __future__ import annotations

import json
import sys
import time

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bench.recovery.plain import _SETTINGS
from holdfast.jvm import find_java


def main() -> None:
    find_java()
    options = json.loads(sys.argv[1])
    builder = SparkSession.builder.master("local[2]").appName("plain")
    for name, value in {**_SETTINGS, "spark.driver.memory": "2g"}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    reader = spark.readStream.schema("ts timestamp, key long, value long").option("maxFilesPerTrigger", 1)
    held = (
        reader.parquet(options["in"])
        .withWatermark("ts", "1 hour")
        .groupBy(F.window("ts", "24 hours"), "key")
        .agg(F.count("*").alias("n"), F.sum("value").alias("total"), F.max("value").alias("most"))
    )

    def sink(frame: DataFrame, batch: int) -> None:
        rows = frame.count()  # nothing comes out of an open window, but all of the state is looked at
        with open(options["out"], "a") as out:
            out.write(json.dumps({"at": time.time(), "batch": batch, "rows": rows}) + "\n")

    writer = held.writeStream.outputMode("append").option("checkpointLocation", options["checkpoint"])
    writer.foreachBatch(sink).start().awaitTermination()


if __name__ == "__main__":
    main()

"""Structured Streaming's own windowed aggregate over the files: RocksDB with changelog, noop sink."""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from bench.overhead.data import SCHEMA
from bench.recovery.plain import _SETTINGS
from holdfast.jvm import find_java


def main() -> None:
    find_java()
    options = json.loads(sys.argv[1])
    builder = SparkSession.builder.master("local[2]").appName("plain").config("spark.driver.memory", "6g")
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(options["input"])
    counts = (
        rows.withWatermark("ts", "0 seconds")
        .groupBy(F.window("ts", options["window"]), "src")
        .agg(F.count("*").alias("packets"), F.sum("bytes").alias("bytes"))
    )
    query = (
        counts.writeStream.outputMode("append")
        .option("checkpointLocation", options["checkpoint"])
        .format("noop")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()

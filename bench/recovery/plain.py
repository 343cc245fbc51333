"""The same query on plain Structured Streaming: RocksDB with changelog, tuned as kindly as we know how.

Run as a process of its own; kill it and start it again with the same checkpoint. Every batch of its sink appends a
line to `out`: wall time and the end of the newest window.
"""

from __future__ import annotations

import json
import sys
import time

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bench.recovery.clock import ClockSource
from holdfast.jvm import find_java

_SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # at the default of a minute a process that dies early restores more slowly, which would flatter us
    "spark.sql.streaming.stateStore.maintenanceInterval": "10s",
}


def main() -> None:
    find_java()
    options = json.loads(sys.argv[1])
    builder = SparkSession.builder.master("local[2]").appName("plain")
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(ClockSource)
    reader = spark.readStream.format("clock")
    for name in ("start_us", "rate", "keys"):
        reader = reader.option(name, str(options[name]))
    counts = (
        reader.load()
        .withWatermark("ts", options["delay"])
        .groupBy(F.window("ts", options["window"]), "src")
        .agg(F.count("*").alias("packets"), F.sum("bytes").alias("bytes"))
    )

    def sink(frame: DataFrame, batch: int) -> None:
        newest = frame.agg(F.max("window.end"), F.count("*")).first()
        if newest and newest[1]:
            with open(options["out"], "a") as out:
                out.write(json.dumps({"at": time.time(), "end": newest[0].timestamp(), "rows": newest[1]}) + "\n")

    query = (
        counts.writeStream.outputMode("append")
        .option("checkpointLocation", options["checkpoint"])
        .foreachBatch(sink)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()

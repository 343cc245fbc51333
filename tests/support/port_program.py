"""A Spark program of somebody's own that writes to a port: `port_program.py BASE once|stay`.

stay   write what is in BASE/in, file by file, and whatever comes, until killed
once   write what is there and end; then try what must be refused, and say with which words it was
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from holdfast.spark import HoldfastDataSource

SCHEMA = "ts timestamp, key long, value long"


def main(base: Path, how: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.python.daemon.module", "holdfast.spark.daemon")
        .config("spark.sql.session.timeZone", "Europe/Paris")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(HoldfastDataSource)
    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(base / "in"))

    def written(frame: Any, checkpoint: str) -> Any:
        writer = frame.writeStream.format("holdfast").option("run", str(base / "run")).option("stream", "packets")
        return writer.option("checkpointLocation", str(base / checkpoint))

    if how == "stay":
        written(rows, "checkpoint").start().awaitTermination()
    query = written(rows, "checkpoint").trigger(availableNow=True).start()
    query.awaitTermination()

    def batch(**options: str) -> None:
        frame = spark.read.schema(SCHEMA).json(str(base / "in"))
        writer = frame.write.format("holdfast").option("run", str(base / "run")).option("stream", "packets")
        writer.options(**options).mode("append").save()

    def stream(frame: Any, checkpoint: str) -> None:
        written(frame, checkpoint).trigger(availableNow=True).start().awaitTermination()

    attempts: dict[str, Callable[[], None]] = {
        "another checkpoint": lambda: stream(rows, "other"),
        "another schema": lambda: stream(rows.drop("value"), "narrow"),
        "a batch without a number": batch,
        "a batch of another writer": lambda: batch(batch="3"),
    }
    for what, attempt in attempts.items():
        try:
            attempt()
            said = ""
        except Exception as error:
            said = str(error)
        print(json.dumps({"attempt": what, "said": said}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])

"""A Spark of its own with the class that pushes rows: what comes of it, and which plans could be real-time.

    python -m support.pushing rows DIRECTORY   rows of every type, pushed by a query of micro-batches, against Spark's
    python -m support.pushing plans JARS       of some plans over Kafka: why they cannot be real-time (asks no broker)

Prints one JSON object. A program, because the JVM of other tests has not got the class.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast.pipeline.real_time import OFFSET, PARTITION, POSITION, TOPIC, why_not, with_positions
from holdfast.spark.inlet import Inlet
from holdfast.spark.real_time_jar import with_jar
from holdfast.spark.session import session

LIMIT_S = 240.0
VALUES = """
    select o, p,
        cast(o % 2 as boolean) as b, cast(o % 100 as tinyint) as i8, cast(o as smallint) as i16, cast(o as int) as i32,
        o * 1000000007 as i64, cast(o / 3 as float) as f32, o / 7 as f64, if(o % 5 = 0, null, concat('s', o)) as s,
        cast(concat('b', o) as binary) as bin, date_add(date'2026-01-01', cast(o as int)) as d,
        timestamp_micros(1767225600000000 + o * 1001) as ts, cast(timestamp_micros(o) as timestamp_ntz) as ntz,
        cast(o / 100 as decimal(12, 3)) as dec, array(o, null) as many, struct(o as x, 'y' as y) as both
    from (select id as o, {p} as p from range({rows}))
"""


def rows(directory: Path) -> dict[str, Any]:
    conf, why = with_jar({}, "local[4]")
    assert not why, why
    spark = session("pushing", "local[4]", conf)
    for p, count in enumerate((7_000, 300)):
        spark.sql(VALUES.format(p=p, rows=count)).coalesce(1).write.parquet(str(directory / "in" / f"p={p}.parquet"))
    paths = str(directory / "in" / "*")
    expected = spark.read.parquet(paths)
    stream = spark.readStream.schema(expected.schema).option("maxFilesPerTrigger", 1).parquet(paths)
    stream = stream.selectExpr("*", f"'t' as {TOPIC}", f"p as {PARTITION}", f"o as {OFFSET}")
    inlet = Inlet("pushing")
    query = pushing(spark, stream, inlet, directory / "checkpoint")
    tables: list[pa.Table] = []
    until = time.monotonic() + LIMIT_S
    while sum(t.num_rows for t in tables) < 7_300 and time.monotonic() < until:
        inlet.wait(0.1)
        if (table := inlet.take(1_000)) is not None:
            tables.append(table)
    query.awaitTermination()
    got, right = pa.concat_tables(tables).sort_by([("p", "ascending"), ("o", "ascending")]), expected.toArrow()
    right = right.sort_by([("p", "ascending"), ("o", "ascending")])
    positions = inlet.positions
    inlet.close()
    failed = pushing(spark, stream, inlet, directory / "again")
    try:
        failed.awaitTermination()
        error = ""
    except Exception as found:
        error = str(found)
    other = [f"{f.name}: {f.type}" for f in got.schema if f.type != right.schema.field(f.name).type]
    return {
        "types": other,
        "same": got.to_pylist() == right.to_pylist(),
        "pieces": len(tables),
        "positions": positions,
        "error": error,
    }


def pushing(spark: Any, stream: Any, inlet: Inlet, checkpoint: Path) -> Any:
    from pyspark.sql.streaming.query import StreamingQuery

    writer = spark._jvm.holdfast.RealTimeWriter(inlet.path, inlet.secret, stream._jdf.schema(), "UTC", 5, 500, 1_000)
    made = stream.writeStream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)._jwrite
    return StreamingQuery(made.foreach(writer).start())


def plans(jars: str) -> dict[str, Any]:
    from pyspark.sql import functions as F

    spark = session("plans", "local[2]", {"spark.jars": jars})
    table = spark.createDataFrame([(1, "a")], "partition int, name string")

    def kafka(**options: str) -> Any:
        reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", "127.0.0.1:1")
        return reader.options(**{"subscribe": "t", **options}).load()

    narrow = kafka().selectExpr("cast(value as string) as offset", "timestamp as ts").where("offset > 'a'").alias("x")
    found = with_positions(narrow)
    frames = {
        "narrow": narrow,
        "whole": kafka(),
        "explode": kafka().select(F.explode(F.array("key", "value"))),
        "python": kafka().select(F.udf(lambda x: x)("value")),
        "join": kafka().join(table, "partition"),
        "repartition": kafka().repartition(3),
        "split": kafka(minPartitions="7"),
        "limit": kafka(maxOffsetsPerTrigger="7"),
        "loss": kafka(failOnDataLoss="false"),
        "union": kafka().union(kafka()),
        "rate": spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load(),
        "files": spark.readStream.schema("x int").json("/tmp"),
    }
    return {
        "why": {name: why_not(frame) for name, frame in frames.items()},
        "columns": list(found.columns),
        "position": list(POSITION),
        "whole": list(with_positions(kafka()).columns),
    }


if __name__ == "__main__":
    said = rows(Path(sys.argv[2])) if sys.argv[1] == "rows" else plans(sys.argv[2])
    print(json.dumps(said))

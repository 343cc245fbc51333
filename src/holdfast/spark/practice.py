"""What a standby's JVM does while it waits: small queries, no two alike.

A standby must not call the user's own function, since that may write. So the first batch after a take-over plans and
compiles queries that this JVM has never seen, with a planner and a compiler that have hardly run: 1.0 s where a usual
batch needs 0.2 s. What makes plans and compiles them is the same for all queries, so others do as well: Spark generates
new code for every query here, because the numbers in it differ.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: A JVM runs this many of them in all, whatever the number of stages that stand by in it.
QUERIES = 60
#: It rests this many times as long as a query took, since other stages of it may be at work.
REST = 2
ROWS = 1_000
LOOK_S = 0.5


def _first(rows: DataFrame, k: int) -> None:
    rows.agg(F.max("ts"), F.count("*"), F.sum(F.col("id") + k)).first()


def _grouped(rows: DataFrame, k: int) -> None:
    of_key = rows.groupBy("name").agg(F.sum("amount").alias("amount"), F.avg(F.col("id") * k).alias("mean"))
    of_key.orderBy(F.desc("amount")).limit(10 + k).collect()


def _written(rows: DataFrame, k: int) -> None:
    what = F.when(F.col("id") > k, F.upper("name")).otherwise(F.concat("name", F.lit(str(k))))
    rows.withColumn("what", what).drop("name").write.format("noop").mode("append").save()


def _fetched(rows: DataFrame, k: int) -> None:
    rows.filter(F.col("id") % (k + 2) == 0).select("name", "ts", (F.col("amount") / (k + 1)).alias("part")).toArrow()


def _newest(rows: DataFrame, k: int) -> None:
    place = F.row_number().over(Window.partitionBy("name").orderBy(F.desc("ts")))
    rows.withColumn("place", place).filter(F.col("place") <= k + 1).drop("place").collect()


def _joined(rows: DataFrame, k: int) -> None:
    other = rows.filter(F.col("id") < 50 + k).select(F.col("id").alias("key"), F.col("name").alias("other"))
    rows.join(other, rows["id"] == other["key"]).groupBy().count().collect()


KINDS: tuple[Callable[[DataFrame, int], None], ...] = (_first, _grouped, _written, _fetched, _newest, _joined)


class Practice:
    """Of one JVM."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._turn = threading.Lock()
        self.done = 0

    def run(self, told: Callable[[], bool], gives_way: Callable[[], bool]) -> None:
        """Until there is something better to do, or it has been enough. Its errors are nobody's."""
        spark = self._spark.newSession()
        while not told():
            if gives_way():
                _rest(LOOK_S, told)
                continue
            with self._turn:
                number = self.done
                if number >= QUERIES or told():
                    return
                self.done += 1
                began = time.monotonic()
                try:
                    rows = _rows(spark)
                    KINDS[number % len(KINDS)](rows, number)
                except Exception:  # the JVM ends, say: whoever depends on it tells so
                    return
                took_s = time.monotonic() - began
            _rest(REST * took_s, told)


def _rows(spark: SparkSession) -> DataFrame:
    return spark.range(0, ROWS, numPartitions=1).select(
        "id",
        F.concat(F.lit("k"), F.col("id") % 97).alias("name"),
        (F.col("id") * 0.5).alias("amount"),
        F.timestamp_micros(F.col("id") * 1_000_000).alias("ts"),
    )


def _rest(seconds: float, told: Callable[[], bool]) -> None:
    until = time.monotonic() + seconds
    while not told() and (left := until - time.monotonic()) > 0:
        time.sleep(min(0.1, left))

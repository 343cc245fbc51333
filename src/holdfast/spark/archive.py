"""An archive of the classes that Spark loads, made once per machine: a session is there after 4.9 s instead of 7.9 s.

The JVM maps it instead of finding, checking and linking some twenty thousand classes in Spark's jars (class data
sharing). It checks by itself that Java and the jars are the same, and goes without if not.

    python -m holdfast.spark.archive    make it now: starts Spark, runs a small stream, and says what came of it

`holdfast run` makes it in the background, at the lowest priority, if there is none. HOLDFAST_CLASS_ARCHIVE=off: never.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.jvm import cache_directory, find_java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: A JVM writes an archive when it ends, and takes some seconds for it.
WRITE_S_MAX = 180.0
_BATCHES = 3


def archive_file() -> Path | None:
    """Where the archive of this Java and this Spark is, or would be; None: not wanted."""
    if os.environ.get("HOLDFAST_CLASS_ARCHIVE", "").lower() in ("off", "0", "no", "false"):
        return None
    import pyspark

    of = "|".join([os.path.realpath(find_java()), str(Path(pyspark.__file__).parent), version("pyspark")])
    return cache_directory() / f"spark-{hashlib.sha256(of.encode()).hexdigest()[:16]}.jsa"


def java_options() -> str:
    """What a driver's JVM is told, if there is an archive."""
    file = archive_file()
    return f"-XX:SharedArchiveFile={file} -Xshare:auto" if file is not None and file.exists() else ""


def make_in_background() -> bool:
    """If there is none and none was tried: in a process of its own that nobody waits for."""
    file = archive_file()
    if file is None or file.exists() or _failed(file).exists():
        return False
    subprocess.Popen(
        [sys.executable, "-m", "holdfast.spark.archive"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: os.nice(19),
    )
    return True


def make() -> tuple[bool, str]:
    """Make the archive. Returns whether there is one now, and a sentence."""
    file = archive_file()
    if file is None:
        return False, "HOLDFAST_CLASS_ARCHIVE is off."
    file.parent.mkdir(parents=True, exist_ok=True)
    with _only_one(file) as mine:
        if not mine:
            return False, "Another process is making it."
        if file.exists():
            return True, f"{file} already exists."
        began = time.monotonic()
        written = file.with_suffix(f".{os.getpid()}")
        try:
            _train(written)
            why = "" if written.exists() else "this Java cannot write one"
        except Exception as error:
            why = repr(error)
        if why:
            written.unlink(missing_ok=True)  # a part of it may be there
            _failed(file).write_text(why + "\n")
            return False, f"No archive: {why}. Stages start without it; to try again, delete {_failed(file)}."
        os.replace(written, file)
        return True, f"{file}: {file.stat().st_size >> 20} MB, made in {time.monotonic() - began:.0f} s."


def _failed(file: Path) -> Path:
    return file.with_suffix(".failed")


@contextlib.contextmanager
def _only_one(file: Path) -> Iterator[bool]:
    with open(file.with_suffix(".lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True


def _train(target: Path) -> None:
    """Do once what stages do, so that their classes are loaded; then let the JVM end, which writes the archive."""
    from holdfast.spark.session import DEFAULTS, session

    options = f"{DEFAULTS['spark.driver.extraJavaOptions']} -XX:ArchiveClassesAtExit={target}"
    spark = session("holdfast archive", "local[2]", {"spark.driver.extraJavaOptions": options})
    with tempfile.TemporaryDirectory(prefix="holdfast-archive-") as scratch:
        _rehearse(spark, Path(scratch))
    gateway: Any = spark.sparkContext._gateway
    with contextlib.suppress(Exception):  # it ends in the middle of the answer
        gateway.jvm.java.lang.System.exit(0)
    gateway.proc.wait(WRITE_S_MAX)


def _rehearse(spark: SparkSession, scratch: Path) -> None:
    spark.range(1_000).selectExpr("id % 7 AS k", "id AS v", "timestamp_micros(id) AS ts").write.parquet(
        str(scratch / "in")
    )
    rows = spark.read.parquet(str(scratch / "in"))
    rows.groupBy("k").count().collect()

    def body(batch: DataFrame, number: int) -> None:
        batch.toArrow()
        batch.groupBy().count().collect()
        batch.write.format("noop").mode("append").save()

    files = spark.readStream.schema(rows.schema).option("maxFilesPerTrigger", 1).parquet(str(scratch / "in"))
    made = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100).load()
    spark.dataSource.register(_counter())
    counted = spark.readStream.format("holdfast-counter").load()
    for number, stream in enumerate((files.filter("v > 1"), made, counted)):
        query = stream.writeStream.foreachBatch(body).option("checkpointLocation", f"{scratch}/c{number}").start()
        _wait_for(query)
    written = made.writeStream.format("parquet").option("checkpointLocation", f"{scratch}/c").start(f"{scratch}/out")
    _wait_for(written)


def _counter() -> type:
    """A data source in Python that streams something: sinks read by one."""
    import pyarrow as pa
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

    class Reader(DataSourceStreamReader):
        def initialOffset(self) -> dict:
            return {"at": 0}

        def latestOffset(self, start: dict, limit: Any) -> dict:
            return {"at": start["at"] + 1}

        def partitions(self, start: dict, end: dict) -> list:
            return [InputPartition(start["at"])]

        def read(self, partition: InputPartition) -> Iterator:
            yield pa.RecordBatch.from_pydict({"at": [partition.value], "name": ["x"]})

    class Counter(DataSource):
        @classmethod
        def name(cls) -> str:
            return "holdfast-counter"

        def schema(self) -> str:
            return "at long, name string"

        def streamReader(self, schema: Any) -> Reader:
            return Reader()

    return Counter


def _wait_for(query: Any) -> None:
    """Some batches, or as many as there are."""
    until = time.monotonic() + 60.0
    while query.isActive and time.monotonic() < until:
        last = query.lastProgress
        if last is not None and (last.batchId >= _BATCHES or not query.status["isDataAvailable"]):
            break
        time.sleep(0.1)
    query.stop()


if __name__ == "__main__":
    done, told = make()
    print(told)
    sys.exit(0 if done else 1)

"""The Spark session of a driver process: settings that make a micro-batch short, the package where workers are.

The settings are defaults; whatever the user sets wins. The plain checkpoint file manager and file system take a
micro-batch from 153 ms to 70 ms (docs/spark/costs.md has what was measured with these settings).
Spark's checkpoint need not survive a power cut: the stage's ledger is the truth, and the checkpoint is made to agree
with it at every start.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.jvm import find_java
from holdfast.spark.archive import java_options
from holdfast.spark.launcher import launcher

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: What the JVM's second compiler is left for: code that handles rows (`jit = "full"`). What plans queries runs for a
#: moment in every batch; compiling that well took a quarter of the CPU of a driver's first minute.
_COMPILER = Path(__file__).with_name("compiler.json")
#: The first compiler only (`jit = "quick"`).
_QUICK = "-XX:TieredStopAtLevel=1"
_FILES = "spark.submit.pyFiles"
_CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"

#: With a local master the driver's machine is the only one: workers are started by a daemon of ours.
_LOCAL = {"spark.python.daemon.module": "holdfast.spark.daemon"}
#: With all executors here nobody else needs to reach the driver; elsewhere Spark finds an address they can reach.
_LOOPBACK = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
#: Where executors reach the driver of a stage. No other session may claim it, least of all on another machine.
_ADDRESSES = ("spark.driver.host", "spark.driver.bindAddress", "spark.driver.port")
#: The heap of a driver process is enough for this many stages; every other one adds to it. (What is not used costs
#: nothing.)
STAGES_IN_MEMORY, MEMORY_MB, STAGE_MB = 2, 1_024, 256
#: Every setting that differs from Spark's own, and why.
DEFAULTS: dict[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": f"{MEMORY_MB}m",
    # less than the heap: a batch that is too large must end with an error that says so, not with the JVM
    "spark.driver.maxResultSize": "400m",
    # a stack that survives a stop in the middle of a batch, a collector that leaves the cores alone, and an end instead
    # of a JVM in which some threads have died
    "spark.driver.extraJavaOptions": "-Xss4m -XX:+UseSerialGC -XX:+ExitOnOutOfMemoryError",
    # a query that does not end when it is stopped is left behind, not waited for
    "spark.sql.streaming.stopTimeout": "6s",
    "spark.sql.session.timeZone": "UTC",
    # rename instead of checksum files and output streams that sync: see above
    "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINTS,
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    # one small job per batch
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "5",
    # a file source lists its directory each time: at 5 ms that took two thirds of a core, with nothing to read
    "spark.sql.streaming.pollingDelay": "20ms",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.minBatchesToRetain": "100",
    "spark.shuffle.compress": "false",
    "spark.cleaner.periodicGC.interval": "10min",
    "spark.python.worker.reuse": "true",
}


def compiler_options(quick: bool) -> str:
    """What the JVM of stages is told about compiling. (It answers on stdout, which is a log there.)"""
    if quick:
        return _QUICK
    path = str(_COMPILER)
    if not _COMPILER.is_file() or " " in path:  # in a zip; and a JVM splits its options at blanks
        return ""
    return f"-XX:+UnlockDiagnosticVMOptions -XX:CompilerDirectivesFile={path}"


def package_root() -> Path:
    """The directory that holds the package `holdfast`."""
    return Path(__file__).resolve().parents[2]


def package_zip() -> str:
    """The package as a file that Spark sends to executors. (They must have pyarrow, msgspec and xxhash installed.)"""
    target = Path(tempfile.mkdtemp(prefix="holdfast-package-")) / "holdfast.zip"
    root = package_root()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted((root / "holdfast").rglob("*.py")):
            archive.write(file, file.relative_to(root))
    atexit.register(shutil.rmtree, target.parent, ignore_errors=True)
    return str(target)


def is_here(master: str) -> bool:
    """Is all of this Spark on this machine: local[…], local-cluster[…], or a standalone master on loopback?"""
    if not master.startswith("spark://"):
        return master.startswith("local")
    hosts = [address.rpartition(":")[0] for address in master.removeprefix("spark://").split(",")]
    return all(host in ("localhost", "[::1]") or host.startswith("127.") for host in hosts)


def settings_beside(conf: dict[str, str]) -> dict[str, str]:
    """The settings of stages for a session that is none: the planner's and `verify`'s need the same jars and keys."""
    return {key: value for key, value in conf.items() if key not in _ADDRESSES}


def for_stages(master: str, stages: int, slots: int = 0) -> tuple[str, dict[str, str]]:
    """Master and settings of a process that runs up to this many stages at once. `slots`: for tasks that never end."""
    settings = {"spark.scheduler.mode": "FAIR"}
    if stages > STAGES_IN_MEMORY:
        settings["spark.driver.memory"] = f"{MEMORY_MB + STAGE_MB * (stages - STAGES_IN_MEMORY)}m"
    if master == "local[*]":  # a slot is a thread: a task that never ends keeps one, and must not keep all of them
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        settings["spark.default.parallelism"] = str(cores)
        master = f"local[{cores + stages + slots}]"
    return master, settings


def session(
    name: str,
    master: str = "local[*]",
    conf: dict[str, str] | None = None,
    stages: int = 0,
    quick: bool = False,
    slots: int = 0,
) -> SparkSession:
    """A session for some stages, or for something else (0). What the user set wins over `DEFAULTS`. `slots`: for tasks
    that never end, beside others."""
    find_java()
    named = os.environ.get("PYSPARK_PYTHON", "")
    os.environ["PYSPARK_PYTHON"] = launcher(named) if master.startswith("local") else named or sys.executable
    # Python workers of this driver inherit it: the package is found without being installed, and before Spark's zip
    root = str(package_root())
    path = os.environ.get("PYTHONPATH", "")
    if root not in path.split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join(p for p in (root, path) if p)
    from pyspark.sql import SparkSession

    master, shared = for_stages(master, stages, slots) if stages > 1 or slots else (master, {})
    builder = SparkSession.builder.appName(name).master(master)  # pyright: ignore[reportAttributeAccessIssue]
    ours = DEFAULTS | shared | (_LOCAL if master.startswith("local") else {})
    ours |= _LOOPBACK if is_here(master) else {}
    options = [ours["spark.driver.extraJavaOptions"], compiler_options(quick) if stages else "", java_options()]
    ours["spark.driver.extraJavaOptions"] = " ".join(filter(None, options))
    if "spark.driver.memory" in (conf or {}):
        del ours["spark.driver.maxResultSize"]  # it was chosen for our heap: with another, Spark's own
    settings = {**ours, **(conf or {})}
    if not master.startswith("local"):  # executors fetch rows with code of ours
        settings[_FILES] = ",".join(filter(None, (settings.get(_FILES), package_zip())))
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel((conf or {}).get("spark.log.level", "ERROR"))
    return spark

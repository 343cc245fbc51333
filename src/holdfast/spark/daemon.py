"""Python workers of a local Spark, started fast: `spark.python.daemon.module`.

Spark puts its own `pyspark.zip` before all else on the workers' path, and what is imported from a zip is compiled again
in every daemon: 2.9 s against 0.7 s from site-packages, for each of the four kinds of workers that a query
needs. This daemon looks past the zip, and imports what its workers need before it forks the first. Spark's own leaves
that to every worker (0.2 s of CPU in the first batch of a take-over, for the one that plans a source's reads).

It ends at once when its JVM has: what an interpreter frees at its end took 0.27 s of CPU, in every daemon of a node
that was killed, at the very moment when another node takes over.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import sys


def main() -> None:
    spark_zips = [p for p in sys.path if p.endswith(".zip") and "/python/lib/" in p]
    sys.path[:] = [p for p in sys.path if p not in spark_zips]
    if importlib.util.find_spec("pyspark") is None or importlib.util.find_spec("py4j") is None:
        sys.path += spark_zips  # a Spark that was not installed as a package
    from pyspark.daemon import manager

    import holdfast.spark.datasource  # noqa: F401 (for the workers, who are forks of this process)

    if len(sys.argv) > 1 and sys.argv[1].startswith("pyspark."):
        importlib.import_module(sys.argv[1])
    gc.freeze()  # or every worker would look at all of it, and so copy it
    try:
        manager()
    except SystemExit as end:
        os._exit(end.code if isinstance(end.code, int) else 1)


if __name__ == "__main__":
    main()

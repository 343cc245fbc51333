"""Python workers of a local Spark, started fast: `spark.python.daemon.module`.

Spark puts its own `pyspark.zip` before all else on the workers' path, and what is imported from a zip is compiled again
in every daemon: 2.9 s against 0.7 s from site-packages, for each of the four kinds of workers that a query
needs. This daemon looks past the zip, and imports what tasks of `format("holdfast")` need before it forks the first.
"""

from __future__ import annotations

import importlib.util
import sys


def main() -> None:
    spark_zips = [p for p in sys.path if p.endswith(".zip") and "/python/lib/" in p]
    sys.path[:] = [p for p in sys.path if p not in spark_zips]
    if importlib.util.find_spec("pyspark") is None or importlib.util.find_spec("py4j") is None:
        sys.path += spark_zips  # a Spark that was not installed as a package
    from pyspark.daemon import manager

    import holdfast.spark.datasource  # noqa: F401 (for the workers, who are forks of this process)

    manager()


if __name__ == "__main__":
    main()

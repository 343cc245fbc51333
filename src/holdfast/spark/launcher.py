"""A Python for what Spark starts on this machine, without Spark's own zips on its path: `PYSPARK_PYTHON`.

Spark puts `pyspark.zip` before all else, and what is imported from a zip is compiled again by every process. The
process that plans a sink's batches took 1.2 s of CPU to start, and takes 0.4 s with this. Spark gives that process 10 s
to answer, which on a busy machine were too few.

Workers that tasks need come from a daemon of ours, which has imported what they need before it forks (`daemon.py`):
`spark.python.daemon.module`. Spark does not ask that setting for the workers that plan, so they are led there too.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

from holdfast.jvm import cache_directory

_SCRIPT = """\
#!/bin/sh
# Python without Spark's zips on its path. Made by holdfast/spark/launcher.py, and made again if it is gone.
set -f
IFS=:
kept=
for entry in $PYTHONPATH; do
    case $entry in
        */python/lib/*.zip) ;;
        *) kept=$kept${{kept:+:}}$entry ;;
    esac
done
PYTHONPATH=$kept
export PYTHONPATH
unset IFS
if [ "$1 $2" = "-m pyspark.daemon" ]; then
    shift 2
    set -- -m holdfast.spark.daemon "$@"
fi
exec {python} "$@"
"""


def launcher(named: str = "") -> str:
    """The path of the script. Python itself where PySpark is in a zip, or nothing can be written; `named`, if that is
    another Python than this one, since only Spark's zips may have PySpark for it."""
    import pyspark

    python = sys.executable
    if named and os.path.abspath(shutil.which(named) or named) != os.path.abspath(python):
        return named
    if ".zip" in str(pyspark.__file__) or not os.path.exists("/bin/sh"):
        return python
    text = _SCRIPT.format(python=shlex.quote(python))
    file = cache_directory() / f"python-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    try:
        if not file.exists():
            _write(file, text)
    except OSError:
        return python
    return str(file)


def _write(file: Path, text: str) -> None:
    """Whole or not at all: several processes may start at once."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(dir=file.parent)
    with os.fdopen(handle, "w") as script:
        script.write(text)
    os.chmod(part, 0o700)
    os.replace(part, file)

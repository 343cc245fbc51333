"""A Python for what Spark starts on this machine, without Spark's own zips on its path: `PYSPARK_PYTHON`.

Spark puts `pyspark.zip` before all else, and what is imported from a zip is compiled again by every process. Workers
that tasks need come from a daemon of ours, which looks past the zips (`daemon.py`). The process that plans a sink's
batches does not: each start of a sink, or of a stage between operators, took 1.2 s of CPU, and takes 0.4 s with this.
Spark gives that process 10 s to answer, which on a busy machine were too few.
"""

from __future__ import annotations

import hashlib
import os
import shlex
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
exec {python} "$@"
"""


def launcher() -> str:
    """The path of the script; Python itself where PySpark is in a zip, or nothing can be written."""
    import pyspark

    python = sys.executable
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

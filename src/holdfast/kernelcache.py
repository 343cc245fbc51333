"""Keep compiled kernels on disk, under a name that changes with any source they may be made of.

Numba notices when the file of a cached function changes, but not when a function that was compiled into it does: after
an update, kernels in one module would go on using old code from another. So all kernels of a tree share one directory
that is named after the hash of the tree's sources; an update starts an empty one. The last few stay: a process that
was started before the update may still have kernels to compile, and fails if its directory is gone.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numba
import xxhash
from numba.core import config

_ROOT = Path(__file__).parent
#: Everything that kernels are written in.
_SOURCES = ("state", "operators")
#: Versions kept beside the current one.
OTHERS_MAX = 3


def directory() -> Path:
    """Where this version's kernels are: beside the package, or under the user's cache if that cannot be written."""
    digest = xxhash.xxh3_64()
    for folder in _SOURCES:
        for path in sorted((_ROOT / folder).glob("*.py")):
            digest.update(path.read_bytes())
    name = f"kernels-{numba.__version__}-{digest.hexdigest()}"
    base = _ROOT / "__pycache__"
    if not os.access(base if base.exists() else _ROOT, os.W_OK):
        base = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "holdfast"
    return base / name


@contextmanager
def versioned() -> Iterator[None]:
    """Kernels that are defined inside are cached in `directory()`; what others cache is left alone."""
    target = directory()
    target.mkdir(parents=True, exist_ok=True)
    others = [path for path in target.parent.glob("kernels-*") if path != target]
    for old in sorted(others, key=lambda path: path.stat().st_mtime)[:-OTHERS_MAX]:
        shutil.rmtree(old, ignore_errors=True)
    before = config.CACHE_DIR  # pyright: ignore[reportAttributeAccessIssue]
    config.CACHE_DIR = str(target)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        config.CACHE_DIR = before  # pyright: ignore[reportAttributeAccessIssue]

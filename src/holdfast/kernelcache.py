"""Keep compiled kernels on disk, under a name that changes with any source they may be made of.

Numba notices when the file of a cached function changes, but not when a function that was compiled into it does: after
an update, kernels in one module would go on using old code from another. So all kernels of a tree share one directory
that is named after the hash of the tree's sources; an update starts an empty one and removes the old.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numba
import xxhash

_ROOT = Path(__file__).parent
#: Everything that kernels are written in.
_SOURCES = ("state", "operators")


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
    for old in target.parent.glob("kernels-*"):
        if old != target:
            shutil.rmtree(old, ignore_errors=True)
    before = numba.config.CACHE_DIR  # pyright: ignore[reportAttributeAccessIssue]
    numba.config.CACHE_DIR = str(target)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        numba.config.CACHE_DIR = before  # pyright: ignore[reportAttributeAccessIssue]

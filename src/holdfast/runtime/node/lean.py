"""Keep out of a node what it never uses: Arrow and Numba import pandas and SciPy just because they are installed.

That costs a third of a second at every start and a quarter of a node's memory. To this process they are not installed.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
from importlib.abc import MetaPathFinder

_WITHOUT = ("pandas", "scipy")


class _NotHere(MetaPathFinder):
    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname in _WITHOUT:
            raise ModuleNotFoundError(f"a node does without {fullname}", name=fullname)


def be_lean() -> None:
    if not any(isinstance(finder, _NotHere) for finder in sys.meta_path):
        sys.meta_path.insert(0, _NotHere())


def settle() -> None:
    """After everything is loaded: give back what loading took, and let the collector leave the rest alone."""
    gc.collect()
    gc.freeze()
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)

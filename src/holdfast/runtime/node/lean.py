"""Keep a node small: what it never uses stays out, and what was freed is used again.

Arrow and Numba import pandas and SciPy just because they are installed. That costs a third of a second at every start
and a quarter of a node's memory. To this process they are not installed.

glibc's malloc has a heap for every thread, up to eight per core, and a heap keeps what was freed in it. gRPC has many
threads: chunks of a state on their way left their size behind in one heap after the other. Nearly all threads of a node
wait for the same interpreter, so two heaps serve them as well.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
from importlib.abc import MetaPathFinder

_WITHOUT = ("pandas", "scipy")
HEAPS_MAX = 2
#: Its name in glibc's malloc.h.
_M_ARENA_MAX = -8


class _NotHere(MetaPathFinder):
    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname in _WITHOUT:
            raise ModuleNotFoundError(f"a node does without {fullname}", name=fullname)


def be_lean() -> None:
    if not any(isinstance(finder, _NotHere) for finder in sys.meta_path):
        sys.meta_path.insert(0, _NotHere())
    with contextlib.suppress(AttributeError, OSError):  # another libc has its own ways
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, HEAPS_MAX)


def settle() -> None:
    """After everything is loaded: give back what loading took, and let the collector leave the rest alone."""
    gc.collect()
    gc.freeze()
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)

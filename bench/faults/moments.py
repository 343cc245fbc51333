"""Moments at which everything is killed: by the clock, or when something has just been written.

What a run writes into its store, its journals and its sinks tells where it is between two steps. A moment waits for the
next such write and returns at once, so that a kill -9 lands within a few milliseconds of it: before the step that comes
next, in it, or right behind it.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

LIMIT_S = 300.0
LOOK_S = 0.001


@dataclass(frozen=True)
class Places:
    """Where a run writes."""

    run: Path
    store: Path
    out: Path


def _walk(folder: Path) -> Iterator[str]:
    try:
        entries = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path))
        else:
            yield entry.path


def _names(folder: Path, ending: str = "") -> set[str]:
    return {path for path in _walk(folder) if path.endswith(ending) and not os.path.basename(path).startswith(".")}


def _logged(places: Places) -> set[str]:
    return _names(places.store / "log")


def _planned(places: Places) -> set[str]:
    found = _names(places.store / "run" / "files")
    return {path for path in found if "/offsets/" in path}


def _written(places: Places) -> set[str]:
    return {path for path in _names(places.out) if "/_spark_metadata/" in path}


def _pages(places: Places) -> set[str]:
    return {path for path in _names(places.store / "checkpoint") if "/pages-" in path}


def _manifests(places: Places) -> set[str]:
    return _names(places.store / "checkpoint", "/manifest")


def _heads(places: Places) -> set[str]:
    return _names(places.store / "head")


def _journals(places: Places) -> set[str]:
    found = set()
    for path in (places.run / "nodes").glob("*/journal"):
        found.add(f"{path} {path.stat().st_size}")
    return found


Look = Callable[[Places], set[str]]


def _until(look: Look, places: Places, *, gone: bool = False, limit_s: float = LIMIT_S) -> None:
    """Until there is something new (or something less)."""
    before, deadline = look(places), time.monotonic() + limit_s
    while True:
        now = look(places)
        if (before - now) if gone else (now - before):
            return
        before = now if not gone else before | now
        if time.monotonic() > deadline:
            raise RuntimeError(f"nothing happened to {look.__name__.strip('_')}: not within {limit_s:.0f} s")
        time.sleep(LOOK_S)


def _at_once(look: Look, *, gone: bool = False) -> Callable[[Places, random.Random], None]:
    return lambda places, rng: _until(look, places, gone=gone)


def _soon(look: Look) -> Callable[[Places, random.Random], None]:
    """A few steps later."""

    def wait(places: Places, rng: random.Random) -> None:
        _until(look, places)
        time.sleep(rng.uniform(0.0, 0.1))

    return wait


def _committed(places: Places, rng: random.Random) -> None:
    """A try is in the log, and then a ledger's journal has grown: the batch counts, and nobody was told so yet."""
    _until(_logged, places)
    _until(_journals, places)


#: How to wait for it, by what is about to happen then.
MOMENTS: dict[str, Callable[[Places, random.Random], None]] = {
    "any": lambda places, rng: time.sleep(rng.uniform(0.0, 8.0)),
    "before a commit": _at_once(_logged),
    "between commit and seal": _committed,
    "around a commit": _soon(_logged),
    "before a sink writes": _at_once(_planned),
    "between a sink's write and Spark's commit": _at_once(_written),
    "around Spark's commit of a sink": _soon(_written),
    "before a manifest": _at_once(_pages),
    "between manifest and head": _at_once(_manifests),
    "around a head": _soon(_heads),
    "in the middle of a collection": _at_once(_manifests, gone=True),
}

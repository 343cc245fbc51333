"""Files with rows that a stage has set aside (`late/STAGE`, `bad/STAGE`): which of them count, and what has expired.

    batch=7.parquet       what batch 7 left out
    batch=3-9.parquet     several such files in one: all that batches 3 to 9 left out
    _expired.json         up to which batch rows were removed because they were old, and how many

`spark/tidy.py` merges and removes them. It gives a merged file its name before it removes what is in it, and writes
down what expires before it removes that. So a file whose batches lie within those of another, or have expired, is one
that it had no time to remove: it does not count. Whoever reads these files goes by that rule.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.errors import InputError

EXPIRED = "_expired.json"
_NAME = re.compile(r"batch=([0-9]+)(?:-([0-9]+))?\.parquet")


class Recorded(NamedTuple):
    """A file, and its first and last batch."""

    first: int
    last: int
    path: Path


class Expired(msgspec.Struct, frozen=True, kw_only=True):
    """What is gone for good."""

    #: The last batch of it; -1: nothing is.
    batch: int = -1
    rows: int = 0


def recorded(directory: Path) -> list[Recorded]:
    """The files that count, in the order of their batches."""
    return which_count(*_looked(directory), expired(directory).batch)[0]


def which_count(directory: Path, names: list[str], gone: int) -> tuple[list[Recorded], list[Path]]:
    """Of these files: those that count, and those that were to be removed. Batches up to `gone` have expired."""
    found = [(int(m[1]), int(m[2] or m[1]), m[0]) for m in map(_NAME.fullmatch, names) if m]
    counts: list[Recorded] = []
    rest: list[Path] = []
    for first, last, name in sorted(found, key=lambda one: (one[0], -one[1])):
        before = counts[-1] if counts else None
        if last <= gone or (before is not None and last <= before.last):
            rest.append(directory / name)
            continue
        if before is not None and first <= before.last:
            raise InputError(
                f"{directory}: two files hold the same batches",
                detail=f"{before.path.name} and {name}.",
                hint="Was something copied into it? It holds what one run has set aside, and nothing else.",
            )
        counts.append(Recorded(first, last, directory / name))
    return counts, rest


def expired(directory: Path) -> Expired:
    file = directory / EXPIRED
    try:
        return msgspec.json.decode(file.read_bytes(), type=Expired)
    except FileNotFoundError:
        return Expired()
    except (OSError, msgspec.MsgspecError) as error:
        raise InputError(
            f"{file} cannot be read",
            detail=f"{error}.",
            hint="It says which rows were removed because they were old. Restore it from a backup.",
        ) from error


def _looked(directory: Path) -> tuple[Path, list[str]]:
    """All names at one moment. A look during a merge may see neither the parts nor the whole; the next one sees it."""
    names: list[str] | None = None
    while True:
        before, names = names, sorted(os.listdir(directory)) if directory.is_dir() else []
        if names == before:
            return directory, names

"""Refuse to write where an earlier run has left something: rows would vanish in it without a word.

Spark's file sink notes every batch it holds in `<path>/_spark_metadata`, and skips a batch whose number stands there.
That is what makes it exact after a failure, but a new run counts from 0 again: all its batches up to the last number
there would be dropped. Late rows are files by number too (`late.py`), and would be overwritten.

`holdfast run` asks before it starts anything, and each stage asks again when it starts with a checkpoint of its own
that is new: one that goes on after a failure finds what it wrote itself. Nothing is ever removed here.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from holdfast.errors import ConfigError
from holdfast.pipeline.checks import IDEMPOTENT_FILES, SinkFacts
from holdfast.pipeline.recorded import EXPIRED
from holdfast.spark import checkpoint

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def check_sink(sink: str, facts: SinkFacts, checkpoint_directory: Path) -> None:
    """Refuse a file sink whose path holds batches that its checkpoint knows nothing of."""
    if facts.format.lower() not in IDEMPOTENT_FILES or not checkpoint.is_new(checkpoint_directory):
        return
    path = _local(facts.path)
    if path is None:  # on storage of another kind, which only Spark can look at
        return
    if path.is_file():
        raise ConfigError(
            f"sink {sink}: {path} is a file",
            detail="A file sink writes into a directory.",
            hint="Give the sink another path, or remove the file if it is not needed.",
        )
    log = path / "_spark_metadata"
    held = [name for name in _names(log) if name.removesuffix(".compact").isdecimal()]
    if held:  # an empty one is of a first start that went no further
        raise ConfigError(
            f"sink {sink}: {path} holds what an earlier run wrote",
            detail=f"Spark skips every batch that {log} lists, so rows of this run would be dropped.",
            hint=f"Give the sink another path, or remove {path.absolute()} if those rows are not needed.",
        )


def check_late(stage: str, directory: Path, kind: str = "late") -> None:
    """Refuse a directory of late (or bad) rows that has some, for a stage that has not handed anything over yet."""
    if any(name.startswith(("batch=", EXPIRED)) for name in _names(directory)):
        raise ConfigError(
            f"stage {stage}: {directory} holds {kind} rows of an earlier run",
            detail=f"{kind.capitalize()} rows are files by number of batch: those of this run would overwrite them.",
            hint=f"Remove {directory.absolute()} if those rows are not needed, or give another "
            f"{'late_to' if kind == 'late' else 'directory'}.",
        )


def _local(path: str) -> Path | None:
    """A path of this machine, as Hadoop writes it (file:/a, file:///a, a); None: it is elsewhere."""
    if path.startswith("file:"):
        rest = path.removeprefix("file:")
        return Path(re.sub(r"^//[^/]*", "", rest))
    return None if _SCHEME.match(path) else Path(path)


def _names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []

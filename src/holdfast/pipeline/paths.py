"""Where sinks write and sources read: two that meet would destroy or feed each other.

Spark's file sink skips every batch whose number its path already holds, so of two sinks in one path one loses all rows.
A sink inside of what a source reads would feed the pipeline with its own results.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from holdfast.pipeline.checks import SinkFacts


def check_paths(sinks: dict[str, SinkFacts], inputs: dict[str, list[str]]) -> None:
    """`inputs` has the paths that each source reads."""
    taken: dict[str, str] = {}
    for name, facts in sinks.items():
        if not facts.path:
            continue
        path = _plain(facts.path)
        if path in taken:
            raise ConfigError(
                f"{name}: writes to the same path as {taken[path]}",
                detail=f"It is {facts.path}.",
                hint="Give each sink a path of its own.",
            )
        taken[path] = name
        for label, paths in inputs.items():
            for given in map(_plain, paths):
                if path == given or path.startswith(f"{given}/"):
                    raise ConfigError(
                        f"{name}: writes into what {label} reads",
                        detail=f"It writes to {facts.path}.",
                        hint="Its results would come in again as rows. Give the sink a path outside.",
                    )


def _plain(path: str) -> str:
    """A path by which it can be compared with others, wherever it is."""
    local = re.sub(r"^file:(//[^/]*)?", "", path)
    return os.path.abspath(local) if "://" not in local else local.rstrip("/")

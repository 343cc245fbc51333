"""What every driver process finds out before its first stage: the plan, where it was started, the way to the nodes."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import msgspec

from holdfast.errors import ConfigError
from holdfast.model.plan import Plan, digest
from holdfast.runtime.config import read_plan
from holdfast.spark.connect import Run


def run_options(order: dict[str, Any]) -> Run:
    """How to reach the nodes, from what a driver process is told."""
    wanted = {key: order.get(key) for key in ("endpoints", "secret_file", "tls", "deployment")}
    return msgspec.convert({k: v for k, v in wanted.items() if v}, Run)


def plan_of_run(path: Path, known: str) -> Plan:
    """The plan on disk, which must be the one that the node runs."""
    plan = read_plan(path)
    if known and digest(plan) != known:
        raise ConfigError(
            "the plan was changed while it runs",
            detail=f"{path} has the digest {digest(plan)}, the node runs {known}.",
            hint="Put the old plan.json back, or start anew in another --dir.",
        )
    return plan


def take_over_run(directory: Path) -> str:
    """Go to where `run` was called, where relative paths of sources and sinks start; gives the user's file."""
    with contextlib.suppress(OSError, ValueError):
        run = json.loads((directory / "run.json").read_text())
        if run.get("cwd"):
            os.chdir(run["cwd"])
        return run.get("source") or ""
    return ""

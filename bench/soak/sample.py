"""What a run uses, every few seconds: memory, descriptors and threads by kind of process, disk by folder, output.

A kind is summed over its processes. Folders are those that docs/running.md names; what the user's own sink keeps is
apart, because nobody but the user removes it.
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import psutil

#: Kinds of processes, by what their command lines hold; the first that fits.
KINDS = (
    ("JVMs", "java"),
    ("Python workers", "pyspark"),
    ("Python workers", "holdfast.spark.daemon"),
    ("stage drivers", "holdfast.spark.child"),
    ("nodes", "holdfast.runtime.node"),
)
MB = 1e6


class Sampler:
    """Samples a run until it is closed; `rows` has what it saw, each line also in a file, in case the run fails."""

    def __init__(self, supervisor: int, home: Path, period_s: float, kept: Path) -> None:
        self.rows: list[dict[str, float]] = []
        self._supervisor = psutil.Process(supervisor)
        self._home = home
        self._period_s = period_s
        self._kept = kept
        self._seen = 0
        self._began = time.time()
        self.failure: BaseException | None = None
        self._closed = threading.Event()
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text("")
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            self._sample_on()
        except BaseException as error:
            self.failure = error

    def _sample_on(self) -> None:
        next_at = time.monotonic()
        while not self._closed.wait(max(0.0, next_at - time.monotonic())):
            next_at = time.monotonic() + self._period_s
            self.rows.append(self.sample())
            with self._kept.open("a") as kept:
                kept.write(json.dumps(self.rows[-1]) + "\n")

    def sample(self) -> dict[str, float]:
        row = {"s": round(time.time() - self._began, 1)}
        row |= processes(self._supervisor)
        row |= folders(self._home)
        return row | self._output()

    def _output(self) -> dict[str, float]:
        """What came out since the last look: input rows that it stands for, by the second, and how late it was."""
        lines = _lines(self._home / "arrivals.jsonl")
        new, self._seen = lines[self._seen :], len(lines)
        told = {"rows/s through": sum(line["through"] for line in new) / self._period_s}
        if new:
            told["delay s"] = round(max(line["at"] - line["end"] for line in new), 3)
        return told


def kind_of(command: list[str]) -> str:
    """Which kind of process this is, by its command line; "": none of ours."""
    text = " ".join(command)
    if "leash.py" in text:  # before the rest: the command that it guards follows
        return "guards"
    return next((kind for kind, word in KINDS if word in text), "")


def processes(supervisor: psutil.Process) -> dict[str, float]:
    found: dict[str, float] = {}

    def add(kind: str, process: psutil.Process) -> None:
        with process.oneshot():
            figures = {
                "MB": process.memory_info().rss / MB,
                "descriptors": process.num_fds(),
                "threads": process.num_threads(),
                "processes": 1,
            }
        for name, value in figures.items():
            found[f"{kind}, {name}"] = found.get(f"{kind}, {name}", 0) + value

    for process in [supervisor, *supervisor.children(recursive=True)]:
        try:
            kind = "supervisor" if process == supervisor else kind_of(process.cmdline())
            add(kind or "others", process)
        except psutil.Error:  # it has ended
            continue
    return found


def folder_of(path: Path) -> str:
    """The folder of a run that a file belongs to, by its path below the run's home."""
    top, *rest = path.parts
    if top != "run" or not rest:
        return "the user's sink" if top == "out" else "temporary" if top == "tmp" else ""
    if rest[0] != "nodes" or len(rest) < 3:
        return {"checkpoints": "Spark's checkpoints"}.get(rest[0], rest[0] if len(rest) > 1 else "settings")
    name = rest[2]
    if name.startswith(("journal", "lives")):
        return "journals"
    return "events" if name.startswith("events") else name if len(rest) > 3 else "settings"


def folders(home: Path) -> dict[str, float]:
    found: dict[str, float] = {}
    for path in (Path(top) / name for top, _, names in os.walk(home) for name in names):
        folder = folder_of(path.relative_to(home))
        if not folder:
            continue
        try:
            size = path.lstat().st_size
        except OSError:  # just removed
            continue
        for name, value in (("MB", size / MB), ("files", 1)):
            found[f"{folder}, {name}"] = found.get(f"{folder}, {name}", 0) + value
    return found


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        text = path.read_text()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

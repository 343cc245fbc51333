"""Stages in whose batches driver processes ran out of memory: after two such ends, a stage has a process of its own.

A process without memory takes all its stages with it, and the one to blame would go on with that where it is started
next. Which one that is nobody can see: the one whose batch had lasted longest is blamed, and if it was another, that
one is next. Every node must know, so a line for each such end is in a file of the stage, in the run's directory, which
all nodes share. Only ends that memory explains count: that somebody killed a process says nothing about what it ran.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.model.ids import Asset

#: Ends of processes in the middle of its batch after which a stage is alone.
ENDS = 2
#: The exit code of a driver process whose JVM was out of memory.
OUT_OF_MEMORY = 5


class Offenders:
    """As files under `directory`. Without it (on a disk that fails) nobody is one."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def blame(self, stage: Asset, line: str) -> bool:
        """One more end; true: with this one it is alone."""
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            with open(self._directory / stage, "a") as file:
                file.write(line + "\n")
        except OSError:
            return False
        return self._ends(stage) == ENDS

    def is_alone(self, stage: Asset) -> bool:
        return self._ends(stage) >= ENDS

    def _ends(self, stage: Asset) -> int:
        try:
            return len((self._directory / stage).read_text().splitlines())
        except OSError:
            return 0


def kills_for_memory() -> int:
    """How many processes the kernel has killed for memory since the machine started; 0 where it does not say."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)

"""A whole pipeline, Spark at both ends, whose operator changes its mode while it runs.

The query of `bench overhead` over a backlog of files, on three nodes; the source never waits for input. A span is so
many micro-batches of the source, from commit to commit. It may begin anywhere in a window, but is whole windows long,
so each has as many windows to close. The same JVMs, shards and places serve both modes.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import psutil

from bench import recovery
from bench.overhead.data import write_plain_files
from bench.overhead.fed import LIMIT_S, NODES, OPERATOR, SETTINGS, SHARDS, WINDOW_BATCHES, Spent

#: Batches that go by while the mode is switched, at most.
SLACK = 20
LOOK_S = 0.02


class Piped:
    """A run of `query.py`; says what the next windows take."""

    def __init__(self, home: Path, keys: int, rows: int, *, warm: int, spans: int, windows: int) -> None:
        from holdfast.cli.start import RunOptions, start_run

        self.rows = rows
        files = warm + spans * (windows * WINDOW_BATCHES + SLACK)
        write_plain_files(home / "input", files=files, rows=rows, keys=keys)
        options = {"input": str(home / "input"), "window": f"{WINDOW_BATCHES} seconds", "shards": SHARDS}
        os.environ.update(recovery._environment(options))
        settings = tuple(f'{name} = "{v}"' if isinstance(v, str) else f"{name} = {v}" for name, v in SETTINGS.items())
        self.started = start_run(
            Path(__file__).parent / "query.py",
            RunOptions(nodes=NODES, directory=home / "run", standby=False, master="local[2]", settings=settings),
        )
        (source,) = (s.id for s in self.started.plan.stages if s.kind == "source")
        self._commits = home / "run" / "checkpoints" / source / "commits"
        self._wait_for(warm)

    def close(self) -> None:
        self.started.stop()

    def switch(self, mode: str) -> None:
        """To another mode, and until every shard is in it."""
        from holdfast.cli.watch import cluster_status

        run, until = self.started.run, time.monotonic() + LIMIT_S
        run.ask("protect", {"operator": OPERATOR, "mode": mode}, timeout_s=15.0)
        while any(now["mode"] != mode or now["joining"] for now in cluster_status(run)["shards"].values()):
            if time.monotonic() > until:
                raise RuntimeError(f"not all shards were in mode {mode} after {LIMIT_S:.0f} s")
            time.sleep(0.1)

    def feed(self, windows: int) -> Spent:
        """What so many windows take, from the commit of the next batch on."""
        first = self._newest() + 1
        last = first + windows * WINDOW_BATCHES
        began, before = self._wait_for(first), self._told()
        ended, after = self._wait_for(last), self._told()
        used = {pid: s - before.get(pid, 0.0) for pid, s in after.items()}
        nodes_s = sum(used[p.pid] for p in self.started.nodes.processes.values())
        rest_s = sum(used.values()) - nodes_s
        return Spent(self.rows * (last - first), ended - began, nodes_s, rest_s)

    def _newest(self) -> int:
        return max((int(file.name) for file in self._commits.glob("[0-9]*")), default=-1)

    def _wait_for(self, batch: int) -> float:
        """When this batch of the source was committed."""
        file, until = self._commits / str(batch), time.monotonic() + LIMIT_S
        while not file.exists():
            if time.monotonic() > until:
                raise RuntimeError(f"batch {batch} did not come within {LIMIT_S:.0f} s; {self._newest()} was the last")
            time.sleep(LOOK_S)
        return file.stat().st_mtime

    def _told(self) -> dict[int, float]:
        """CPU seconds so far of every process of the run."""
        found: dict[int, float] = {}
        for node in self.started.nodes.processes.values():
            family: list[Any] = [psutil.Process(node.pid), *psutil.Process(node.pid).children(recursive=True)]
            for process in family:
                try:
                    times = process.cpu_times()
                except psutil.NoSuchProcess:
                    continue
                found[process.pid] = times.user + times.system
        return found

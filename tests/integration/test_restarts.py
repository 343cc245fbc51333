"""kill -9 of all nodes and drivers at once, again and again, at random moments; they go on from their store. Real
nodes, without Spark.

A life ends after a random time or within milliseconds of a write: of a try in the log, of a commit, of a manifest, of a
sink's plan or commit (`bench/faults/moments.py` has such moments for real pipelines). The next one starts with the
disks of the nodes, or with nothing but the store and the sink.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from support.nodes import Nodes
from support.plans import layered_plan

from holdfast.cli.resume import FILES, rebuild
from holdfast.model.ids import Name
from holdfast.model.plan import Plan
from holdfast.runtime.stable import description
from holdfast.runtime.stable.description import RunDescription
from holdfast.store.local import LocalStore
from holdfast.store.plan import run_alone

pytestmark = pytest.mark.slow

#: Seconds until rows flow, also on a machine that has much else to do.
LIMIT_S = 240.0
SETTINGS = {"checkpoint_every": "200 ms", "standby": False}
MADE = ("nodes", "plan.json", "pipeline.py", "explain.txt", *FILES)


class Restarted:
    """Nodes with a store, which are killed and started again."""

    def __init__(self, directory: Path, seed: int, plan: Plan | None = None) -> None:
        self.rng = random.Random(f"restarts {seed}")
        self.store = directory / "store"
        plan = plan or layered_plan(shards=4, tops=2)
        self.nodes = Nodes(directory / "run", plan, 3, settings={**SETTINGS, "store": f"file://{self.store}"})
        home = self.nodes.dir
        told = RunDescription(
            deployment=plan.query, pipeline=plan.pipeline, source="/gone/mine.py", cwd="/",
            names=tuple(map(Name, self.nodes.names)), plan=(home / "plan.json").read_bytes(), file=b"", explain="",
            settings=SETTINGS, conf=(),
        )  # fmt: skip
        run_alone(LocalStore(self.store), description.put_description(told))
        self.story: list[str] = []

    def start(self) -> None:
        self.nodes.start()
        self.nodes.wait_up()

    def crash(self) -> None:
        """All at once; whatever a node had started goes with it."""
        doomed = [psutil.Process(process.pid) for process in self.nodes.processes.values()]
        for one in list(doomed):
            with contextlib.suppress(psutil.NoSuchProcess):
                doomed += one.children(recursive=True)
        for one in doomed:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(doomed, timeout=20)
        for process in self.nodes.processes.values():
            process.wait(20)

    def lose_disks(self) -> None:
        home = self.nodes.dir
        for path in (home / name for name in MADE):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif os.path.lexists(path):
                path.unlink()
        rebuild(home, {"store": f"file://{self.store}", "conf": {}}, lambda line: None)

    def batches(self) -> int:
        return len(list((self.nodes.dir / "sink").glob("commit-*")))

    def live(self, moment: str) -> None:
        """A life: until rows flow, then until its moment."""
        before = self.batches()
        self.nodes.until(f"rows to flow {self.story}", lambda: self.batches() > before, LIMIT_S)
        MOMENTS[moment](self)

    def _new(self, folder: Path, pattern: str) -> None:
        """Until the next such file is there."""
        before = set(folder.glob(pattern))
        until = time.monotonic() + 60
        while not set(folder.glob(pattern)) - before:
            assert time.monotonic() < until, f"nothing new in {folder}: {pattern}\n{self.nodes.tail()}"
            time.sleep(0.001)


def _committed(one: Restarted) -> None:
    """A try is in the log, and a ledger's journal has grown: the batch counts, and nobody was told so yet."""
    one._new(one.store / "log", "*/*/*/*")
    journals = {path: path.stat().st_size for path in one.nodes.dir.glob("nodes/*/journal")}
    until = time.monotonic() + 5
    while all(path.stat().st_size == size for path, size in journals.items()) and time.monotonic() < until:
        time.sleep(0.001)


MOMENTS: dict[str, Callable[[Restarted], None]] = {
    "any": lambda one: time.sleep(one.rng.uniform(0, 1.5)),
    "logged": lambda one: one._new(one.store / "log", "*/*/*/*"),
    "committed": _committed,
    "pages": lambda one: one._new(one.store / "checkpoint", "*/pages-*"),
    "entry": lambda one: one._new(one.store / "checkpoint", "*/part-entry"),
    "manifest": lambda one: one._new(one.store / "checkpoint", "*/manifest"),
    "head": lambda one: one._new(one.store / "head", "*/*"),
    "planned": lambda one: one._new(one.nodes.dir / "sink", "plan-*"),
    "written": lambda one: one._new(one.nodes.dir / "sink", "batch-*"),
    "sink committed": lambda one: one._new(one.nodes.dir / "sink", "commit-*"),
}


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[int], Restarted]]:
    made: list[Restarted] = []

    def one(seed: int) -> Restarted:
        made.append(Restarted(tmp_path, seed))
        return made[-1]

    yield one
    for restarted in made:
        restarted.crash()
        restarted.nodes.close()


def go_through(one: Restarted, lives: int, lacking: str = "entry") -> None:
    """`lacking`: a moment that never comes with these checkpoints."""
    one.start()
    one.nodes.begin()
    for _ in range(lives):
        moment = one.rng.choice(sorted(set(MOMENTS) - {lacking}))
        disks = one.rng.random() < 0.5
        one.story.append(f"{moment}, {'with' if disks else 'without'} disks")
        one.live(moment)
        one.crash()
        if not disks:
            one.lose_disks()
        one.start()
    one.nodes.finish(LIMIT_S)
    assert one.nodes.difference() == "", one.story


def test_whatever_was_killed_and_lost_the_sink_has_every_row_once(make: Callable[[int], Restarted]):
    go_through(make(1), lives=3)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 10))
def test_the_same_over_many_moments(make: Callable[[int], Restarted], seed: int):
    go_through(make(seed), lives=6)

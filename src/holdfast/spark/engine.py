"""One Spark session for all the stages of a driver process; each of them works in a session of its own on top of it.

Those have their own settings, views and data sources, and share the JVM, its Python workers and its scheduler. Every
stage is a pool of Spark's fair scheduler: a batch of one does not wait until a large one of another is through.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.model.ids import Asset
from holdfast.model.plan import REAL_TIME, StagePlan
from holdfast.pipeline import Pipeline, load
from holdfast.pipeline.load import file_of_run
from holdfast.runtime.stable.door import StoreDoor
from holdfast.spark.ahead import JUMP_US
from holdfast.spark.hand_over import Say
from holdfast.spark.life import ChildRole
from holdfast.spark.practice import Practice
from holdfast.spark.real_time_jar import with_jar
from holdfast.spark.session import session
from holdfast.spark.shared import plan_of_run, run_options, take_over_run
from holdfast.spark.tidy import KEEP, Keep
from holdfast.store.url import is_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


#: Every partition of a real-time stage keeps a slot of Spark's, which is a thread.
REAL_TIME_SLOTS = 1_024


def wants_real_time(stage: StagePlan, latency: str) -> bool:
    """`latency`: of sources that do not say it themselves."""
    return stage.kind == "source" and (stage.latency or latency) == REAL_TIME


class SparkEngine:
    """What the stages of this process share: the session, the user's functions, the way to the nodes."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.directory = Path(order["dir"]).resolve()
        self.plan = plan_of_run(self.directory / "plan.json", order.get("plan", ""))
        source = take_over_run(self.directory)
        self.run = run_options(order)
        self.watermark_jump_us = int(order.get("watermark_jump_us") or JUMP_US)
        self.master: str = order.get("master") or "local[*]"
        #: The pipeline's store, one for all stages of this process; None: there is none.
        self.store = _store(order)
        self.mirrors = self.store is not None and not is_folder(order["store"]["url"])
        self.keep = Keep(*order["late_keep"]) if order.get("late_keep") else KEEP
        self.pipeline: Pipeline = load(file_of_run(source, self.directory, self.plan.file))
        name = f"holdfast {self.plan.pipeline} {order.get('node', '')}".strip()
        stages = len(self.plan.stages)
        conf: dict[str, str] = order.get("conf") or {}
        #: Stages that are to be in real time; and why none can be here ("": they can).
        self.real_time = frozenset(s.id for s in self.plan.stages if wants_real_time(s, order.get("latency") or ""))
        self.not_real_time = ""
        if self.real_time:
            conf, self.not_real_time = with_jar(conf, self.master)
        self._spark = session(
            name, self.master, conf, stages, bool(order.get("quick")), slots=REAL_TIME_SLOTS * len(self.real_time)
        )  # fmt: skip
        gateway: Any = self._spark.sparkContext._gateway
        self._jvm: Any = gateway.jvm
        self._process: Any = gateway.proc
        self._practice = Practice(self._spark)

    def role(self, stage: Asset, stopping: threading.Event, say: Say) -> ChildRole:
        from holdfast.spark.roles import role_of

        return role_of(self, self.plan.stage(stage), stopping, say)

    def session(self, stage: Asset) -> SparkSession:
        """A new one. What this thread starts goes into the stage's pool, and so do the threads of its queries."""
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", stage)
        return self._spark.newSession()

    def practise(self, told: Callable[[], bool], gives_way: Callable[[], bool]) -> None:
        self._practice.run(told, gives_way)

    def thread(self, target: Callable[[], None], name: str) -> threading.Thread:
        from pyspark.util import InheritableThread

        return InheritableThread(target, name=name, daemon=True)

    def ask(self) -> None:
        self._jvm.java.lang.System.nanoTime()

    def wait(self) -> int:
        return self._process.wait()


def _store(order: dict[str, Any]) -> StoreDoor | None:
    stored = order.get("store")
    if not stored:
        return None
    home = Path(order["dir"]) / "nodes" / str(order.get("node") or "") / "logs"
    return StoreDoor.of(stored["url"], stored["settings"], home / "store-of-stages.log")

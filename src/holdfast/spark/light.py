"""A light process: for stages that need no Spark, and so no JVM. A take-over there is over when a thread has begun.

It is a driver process like any other (`child.py`): the same commands, lives, epochs and standbys.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.model.ids import Asset, Consumer
from holdfast.model.plan import StagePlan
from holdfast.pipeline import Pipeline, light_sink, load
from holdfast.pipeline.load import file_of_run
from holdfast.spark import checkpoint
from holdfast.spark.arrow_sink import ROWS_MAX, ArrowLoop, FunctionWriter, SinkWriter
from holdfast.spark.follower import ReadOptions
from holdfast.spark.hand_over import Say
from holdfast.spark.life import ChildRole
from holdfast.spark.orders import rehearse
from holdfast.spark.shared import plan_of_run, run_options, take_over_run
from holdfast.spark.sink import is_over
from holdfast.store.url import is_folder


class LightEngine:
    """What such stages share: the plan, the user's functions, the way to the nodes."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.directory = Path(order["dir"]).resolve()
        self.plan = plan_of_run(self.directory / "plan.json", order.get("plan", ""))
        source = take_over_run(self.directory)
        self.run = run_options(order)
        #: The pipeline's store is not a folder: nodes put there what a sink has planned.
        self.keeps = bool(order.get("store")) and not is_folder(order["store"]["url"])
        self.pipeline: Pipeline = load(file_of_run(source, self.directory, self.plan.file))

    def role(self, stage: Asset, stopping: threading.Event, say: Say) -> ChildRole:
        return ArrowWriting(self, self.plan.stage(stage), say)

    def thread(self, target: Callable[[], None], name: str) -> threading.Thread:
        return threading.Thread(target=target, name=name, daemon=True)

    def practise(self, told: Callable[[], bool], gives_way: Callable[[], bool]) -> None:
        """There is nothing to compile."""

    def ask(self) -> None:
        """It answers as long as it is there."""

    def wait(self) -> int:
        """It ends with its process, never before."""
        threading.Event().wait()
        return 0


class ArrowWriting:
    """An Arrow sink."""

    failure: BaseException | None = None

    def __init__(self, engine: LightEngine, stage: StagePlan, say: Say) -> None:
        self.engine = engine
        self.stage = stage
        self.say = say
        self.query: ArrowLoop | None = None
        self._sink = light_sink(engine.pipeline, stage.id)
        self._checkpoint = engine.directory / "checkpoints" / stage.id
        self._told = -1

    def warm_up(self, scratch: Path, told: Callable[[], bool]) -> None:
        """Connect and read once, as a guest. The writer only looks for what it writes to."""
        rehearse(self._settings(0))
        self._writer().prepare()

    def start(self, epoch: int) -> bool:
        engine = self.engine
        checkpoint.claim(self._checkpoint, self.stage.id, engine.plan.query)
        if self.is_over():
            return False
        self.query = ArrowLoop(engine.plan, self.stage, self._settings(epoch), self._writer())
        self.query.start()
        return True

    def _writer(self) -> SinkWriter:
        if self._sink.arrow is not None:
            return FunctionWriter(self._sink.arrow)
        from holdfast.spark.kafka_sink import KafkaWriter  # its serialisers are not for runs without one

        target = self._sink.kafka
        assert target is not None  # it is a sink without Spark
        return KafkaWriter(target, self.engine.plan.query, self.stage.id, self._checkpoint, self.say)

    def _settings(self, epoch: int) -> ReadOptions:
        engine = self.engine
        return ReadOptions(
            run=engine.run,
            directory=str(engine.directory),
            stream=self.stage.reads[0],
            consumer=Consumer(self.stage.id),
            epoch=epoch,
            parallelism=1,
            max_rows=ROWS_MAX,
            watermarks=False,
            keeps=engine.keeps and bool(epoch),
        )

    def finish(self) -> bool:
        return False  # it ends when what it reads has ended

    def is_over(self) -> bool:
        return is_over(self._checkpoint)

    def pause(self, until: float, mark: int) -> None:
        """What was made has to be written all the same."""

    def is_paused(self) -> bool:
        return False

    def on_idle(self) -> None:
        progress = self.query.progress if self.query is not None else None
        if progress is not None and progress["batchId"] > self._told:
            self._told = progress["batchId"]
            self.say("batch", progress=progress)

    def busy_s(self) -> float:
        return self.query.busy_s() if self.query is not None else 0.0

    def stop(self) -> None:
        if self.query is not None:
            self.query.stop()

    def close(self) -> None:
        """Its thread has let go of everything."""

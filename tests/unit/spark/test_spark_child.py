"""The process of a stage, without Spark: what it says while it waits."""

from __future__ import annotations

import io
import json
import time

from holdfast.spark import child as module
from holdfast.spark.child import Child, Ears, Mouth


class Query:
    isActive = True


class Slow:
    """A role whose last batch takes long: a fail-over, or much to read."""

    query = Query()
    failure = None

    def is_over(self) -> bool:
        return False

    def on_idle(self) -> None:
        pass

    def finish(self) -> bool:
        time.sleep(0.5)
        return True


def test_a_stage_that_takes_long_to_finish_still_says_that_it_lives(monkeypatch):
    """The node kills a child that has been silent for long, and would do so again in each of its lives."""
    monkeypatch.setattr(module, "ALIVE_S", 0.05)
    out = io.StringIO()
    made = Child.__new__(Child)
    made.stage_id, made.mouth, made.ears = "s", Mouth(out), Ears()
    made.ears.finish.set()
    assert made._watch(Slow(), 1) == module.STOPPED
    said = [json.loads(line)["event"] for line in out.getvalue().splitlines()]
    assert said.count("alive") >= 5
    assert said.index("finished") > 5

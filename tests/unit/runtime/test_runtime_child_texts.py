"""What a node says about the stages in its driver processes: what happened, and from when the seconds count."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

from holdfast.core.node import WARM
from holdfast.model.ids import asset_id
from holdfast.runtime.node.child import Hosted
from holdfast.runtime.node.children import Children

STAGE = asset_id("out_0")


def test_a_stage_that_runs_says_how_long_its_whole_start_took_and_its_query_of_that():
    hosted = Hosted(STAGE, 3, 1, SimpleNamespace())  # pyright: ignore[reportArgumentType]
    hosted.started = time.monotonic() - 27.0
    news = hosted.on_running({"event": "running", "seconds": 1.07})
    assert news["text"] == (
        "out_0 runs at epoch 3, 27 s after this node was to start it; starting the query took 1.07 s of that."
    )
    assert hosted.running
    assert "took" not in hosted.on_running({"event": "running"})["text"]


def test_a_standby_whose_process_starts_is_not_called_warm(tmp_path):
    told: list[str] = []
    children: Any = SimpleNamespace(
        _events=SimpleNamespace(write=lambda kind, text, **more: told.append(text)),
        _slot=lambda stage, epoch: "driver",
        _process=lambda slot, light: SimpleNamespace(host=lambda *of: SimpleNamespace(tell=lambda what: None)),
        _is_light=lambda stage: False,
        _tickets=iter(range(9)),
        drivers={},
    )
    Children._begin(children, STAGE, WARM)
    assert told == ["A standby of out_0 is wanted here; it is cold for now."]

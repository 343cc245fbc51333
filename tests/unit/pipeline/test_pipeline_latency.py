"""How the rows of a source come: what a user may say, and what a plan says of it."""

from __future__ import annotations

import msgspec
import pytest

import holdfast as hf
from holdfast.errors import ConfigError
from holdfast.model.plan import StagePlan
from holdfast.pipeline.graph import Source


def test_a_source_says_how_its_rows_come_or_leaves_that_to_the_run():
    p = hf.Pipeline("p")
    for latency in ("real-time", "micro-batch", None):
        found = p.read(lambda spark: None, event_time="ts", watermark="1 s", latency=latency).node
        assert isinstance(found, Source)
        assert found.latency == (latency or "")
    for wrong in ("fast", "", 5, True):
        with pytest.raises(ConfigError, match="read: latency="):
            p.read(lambda spark: None, event_time="ts", watermark="1 s", latency=wrong)


def test_a_plan_that_says_nothing_of_latency_is_written_as_before():
    written = msgspec.json.encode(StagePlan(id="s0", kind="source"))
    assert b"latency" not in written
    assert msgspec.json.decode(written, type=StagePlan) == StagePlan(id="s0", kind="source")

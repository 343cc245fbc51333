"""Aggregates have names, and an error says so."""

from __future__ import annotations

import pytest

import holdfast as hf
from holdfast.errors import ConfigError


def test_an_aggregate_without_a_name_is_refused_with_what_to_write():
    rows = hf.Pipeline("p").read(lambda spark: None, event_time="ts", watermark="1 s")
    with pytest.raises(ConfigError, match="every aggregate needs a name") as refused:
        rows.window("10 s").by("src").agg(hf.count())
    assert "rows=hf.count()" in refused.value.hint
    assert "test_pipeline_names.py" in refused.value.detail

"""Durations as people write them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast.errors import ConfigError
from holdfast.pipeline.durations import micros, text


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("10 seconds", 10_000_000),
        ("2s", 2_000_000),
        ("500ms", 500_000),
        ("1 hour 30 minutes", 5_400_000_000),
        ("1h30m", 5_400_000_000),
        ("1.5 s", 1_500_000),
        ("250 us", 250),
        ("INTERVAL 1 Day", 86_400_000_000),
        ("2 weeks", 1_209_600_000_000),
        ("0s", 0),
        (timedelta(milliseconds=3), 3_000),
    ],
)
def test_a_duration_is_read_as_it_is_written(written, expected):
    assert micros(written, "window") == expected


@pytest.mark.parametrize("written", ["", "10", "ten seconds", "10 parsecs", "s", "10 seconds ago", "1 month", 10, None])
def test_what_is_no_duration_is_named(written):
    with pytest.raises(ConfigError, match="talkers: window"):
        micros(written, "talkers: window")


def test_a_sign_is_taken_only_where_it_makes_sense():
    assert micros("-5 s", "within", negative=True) == -5_000_000
    with pytest.raises(ConfigError, match="negative"):
        micros("-5 s", "window")


def test_nothing_is_finer_than_a_microsecond():
    with pytest.raises(ConfigError, match="finer"):
        micros("0.5 us", "window")


@pytest.mark.parametrize("value", [0, 1, 999, 1_000, 1_500_000, 60_000_000, 86_400_000_000, -2_000_000])
def test_a_duration_that_was_written_out_is_read_back(value):
    assert micros(text(value), "x", negative=True) == value

"""Quantities as people write them."""

import pytest

from holdfast.errors import ConfigError
from holdfast.prescriber.units import (
    duration_s,
    fraction,
    rate_bytes_per_s,
    show_duration,
    show_factor,
    show_fraction,
    show_size,
    size_bytes,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10min", 600), ("250ms", 0.25), ("30d", 2592000), ("1.5 h", 5400), ("90", 90),
     ("1month", 2592000), ("2us", 2e-6), (7, 7)],
)  # fmt: skip
def test_durations_are_read_with_their_unit(text, seconds):
    assert duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "size"), [("300MB", 3e8), ("4GiB", 4 * 2**30), ("1.5 kb", 1500), ("12", 12), ("1e3B", 1000)]
)
def test_sizes_are_read_with_their_unit(text, size):
    assert size_bytes(text) == pytest.approx(size)


@pytest.mark.parametrize(("text", "rate"), [("2MB/s", 2e6), ("60MB/min", 1e6), ("5", 5), ("1GiB / h", 2**30 / 3600)])
def test_rates_are_sizes_per_time(text, rate):
    assert rate_bytes_per_s(text) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("text", "share"), [("99.99%", 0.9999), ("0.5", 0.5), ("99.9999999%", 0.999999999), (0.9, 0.9)]
)
def test_shares_are_read_as_percent_or_fraction(text, share):
    assert fraction(text) == share


@pytest.mark.parametrize(
    "text", ["0", "-5min", "5parsec", "nan", "inf", "", "min", "5 5min", "1e999s", float("nan"), -1, 0]
)
def test_a_bad_duration_is_refused_with_its_name(text):
    with pytest.raises(ConfigError, match="the window"):
        duration_s(text, "the window")


@pytest.mark.parametrize("text", ["0", "1", "100%", "-1%", "101%", "nan", "99,9%", "99.9%%", 1.0, 0.0, float("nan")])
def test_a_share_outside_zero_to_one_is_refused(text):
    with pytest.raises(ConfigError):
        fraction(text)


@pytest.mark.parametrize("text", ["2MB", "2MB/parsec", "-2MB/s", "2XB/s", "/s"])
def test_a_bad_rate_is_refused(text):
    with pytest.raises(ConfigError):
        rate_bytes_per_s(text)


@pytest.mark.parametrize("text", ["4GiX", "0B", "-1", "nan"])
def test_a_bad_size_is_refused(text):
    with pytest.raises(ConfigError):
        size_bytes(text)


def test_values_are_written_as_people_write_them():
    assert show_duration(600) == "10min"
    assert show_duration(2.5e-3) == "2.5ms"
    assert show_size(3e8) == "300MB"
    assert show_fraction(0.9999) == "99.99%"
    assert show_fraction(0.5) == "50%"
    assert show_factor(19107.2) == "19,107x"

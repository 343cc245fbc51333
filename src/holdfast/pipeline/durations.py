"""Durations as people write them: "10 seconds", "2s", "500ms", "1 hour 30 minutes". In here they are microseconds."""

from __future__ import annotations

import re
from datetime import timedelta

from holdfast.errors import ConfigError

_UNITS = {
    ("us", "µs", "microsecond", "microseconds"): 1,
    ("ms", "millisecond", "milliseconds", "millis"): 1_000,
    ("s", "sec", "secs", "second", "seconds"): 1_000_000,
    ("m", "min", "mins", "minute", "minutes"): 60_000_000,
    ("h", "hour", "hours"): 3_600_000_000,
    ("d", "day", "days"): 86_400_000_000,
    ("w", "week", "weeks"): 7 * 86_400_000_000,
}
_MICROS = {name: micros for names, micros in _UNITS.items() for name in names}
#: Event times are of the years 1 to 9999.
LONGEST_US = 10_000 * 365 * 86_400_000_000
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zµ]+)")

Duration = str | timedelta


def micros(duration: Duration, what: str, *, negative: bool = False) -> int:
    """A duration in microseconds; `what` says whose it is ("talkers: window"). A sign is taken only if `negative`."""
    if isinstance(duration, timedelta):
        value = duration // timedelta(microseconds=1)
    elif isinstance(duration, str):
        value = _parse(duration, what)
    else:
        raise ConfigError(
            f"{what} is not a duration",
            detail=f"It is {duration!r}.",
            hint='Write it as text with a unit, such as "10 seconds" or "500ms".',
        )
    if value < 0 and not negative:
        raise ConfigError(f"{what} is negative", detail=f"It is {duration!r}.")
    if abs(value) > LONGEST_US:
        raise ConfigError(f"{what} is longer than 10,000 years", detail=f"It is {duration!r}.")
    return value


def _parse(text: str, what: str) -> int:
    rest = text.strip().lower().removeprefix("interval ").strip()
    sign = -1 if rest.startswith("-") else 1
    rest = rest.lstrip("+-").strip()
    total = 0.0
    at = 0
    for part in _PART.finditer(rest):
        unit = _MICROS.get(part[2])
        if rest[at : part.start()].strip(" ,") or unit is None:
            break
        total += float(part[1]) * unit
        at = part.end()
    if not rest or rest[at:].strip() or (total == 0 and at == 0):
        raise ConfigError(
            f"{what} cannot be understood",
            detail=f"It is {text!r}.",
            hint='Write a number and a unit from microseconds to weeks: "10 seconds", "2s", "500ms", "1 hour 30 min".',
        )
    if total != int(total):
        raise ConfigError(f"{what} is finer than a microsecond", detail=f"It is {text!r}.")
    return sign * int(total)


def text(duration_us: int) -> str:
    """A duration the way it is read most easily."""
    if duration_us < 0:
        return "-" + text(-duration_us)
    names = (("d", 86_400_000_000), ("h", 3_600_000_000), ("min", 60_000_000), ("s", 1_000_000), ("ms", 1_000))
    for name, unit in names:
        if duration_us and duration_us % unit == 0:
            return f"{duration_us // unit} {name}"
    return f"{duration_us} us" if duration_us else "0 s"


def about(duration_us: int) -> str:
    """The same with one unit, rounded: for a person who wants to know how much it is."""
    names = (("years", 31_556_952_000_000), ("days", 86_400_000_000), ("h", 3_600_000_000), ("min", 60_000_000))
    for name, unit in names:
        if duration_us >= 2 * unit:
            return f"{duration_us // unit:,} {name}"
    return f"{duration_us / 1e6:,.1f} s"

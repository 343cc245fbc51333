"""Read and write quantities the way people write them: 10min, 99.99%, 4GiB, 2MB/s, 30d.

A plain number is taken in the base unit (seconds, bytes, bytes per second, a fraction). An unknown unit, a sign or
a NaN is a `ConfigError` with one line that says what was read; nothing is ever guessed from context.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal

from holdfast.errors import ConfigError

YEAR_S = 365.25 * 86400.0
MONTH_S = 30.0 * 86400.0  # the paper's F_T = 1 month

DURATIONS = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "second": 1.0, "seconds": 1.0,
    "m": 60.0, "min": 60.0, "minute": 60.0, "minutes": 60.0, "h": 3600.0, "hour": 3600.0, "hours": 3600.0,
    "d": 86400.0, "day": 86400.0, "days": 86400.0, "w": 604800.0, "week": 604800.0, "weeks": 604800.0,
    "month": MONTH_S, "months": MONTH_S, "y": YEAR_S, "year": YEAR_S, "years": YEAR_S,
}  # fmt: skip
SIZES = {
    "b": 1.0, "byte": 1.0, "bytes": 1.0,
    **{prefix + "b": 1000.0**power for power, prefix in enumerate("kmgtp", start=1)},
    **{prefix + "ib": 1024.0**power for power, prefix in enumerate("kmgtp", start=1)},
}  # fmt: skip

_QUANTITY = re.compile(r"^([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([^\d\s].*)?$")


def _split(text: str, what: str, example: str) -> tuple[float, str]:
    match = _QUANTITY.match(text.strip())
    if not match:
        raise ConfigError(f"{what}: cannot read {text!r}", hint=f"Write a number with a unit, such as {example}.")
    return float(match.group(1)), (match.group(2) or "").strip()


def positive(value: float, what: str, text: object = None) -> float:
    """`value` itself if it is a finite number above zero."""
    if not math.isfinite(value) or value <= 0.0:
        shown = value if text is None else text
        raise ConfigError(f"{what} must be a finite number above zero, not {shown}")
    return value


def duration_s(text: str | float, what: str = "duration") -> float:
    """Seconds from `10min`, `250ms`, `30d`, `1y`, or a plain number of seconds."""
    if isinstance(text, int | float):
        return positive(float(text), what)
    number, unit = _split(text, what, "10min")
    if unit and unit not in DURATIONS and unit.lower() not in DURATIONS:
        raise ConfigError(
            f"{what}: unknown unit {unit!r} in {text!r}", hint="Use ns, us, ms, s, min, h, d, w, month, y."
        )
    factor = DURATIONS.get(unit, DURATIONS.get(unit.lower(), 1.0)) if unit else 1.0
    return positive(number * factor, what, text)


def size_bytes(text: str | float, what: str = "size") -> float:
    """Bytes from `300MB` (10^6), `4GiB` (2^30), or a plain number of bytes."""
    if isinstance(text, int | float):
        return positive(float(text), what)
    number, unit = _split(text, what, "300MB")
    if unit and unit.lower() not in SIZES:
        raise ConfigError(
            f"{what}: unknown unit {unit!r} in {text!r}", hint="Use B, KB, MB, GB, TB or KiB, MiB, GiB, TiB."
        )
    return positive(number * (SIZES[unit.lower()] if unit else 1.0), what, text)


def rate_bytes_per_s(text: str | float, what: str = "rate") -> float:
    """Bytes per second from `2MB/s`, `1GiB/min`, `500KB/h`, or a plain number."""
    if isinstance(text, int | float):
        return positive(float(text), what)
    amount, slash, per = text.partition("/")
    if not slash:
        number, unit = _split(text, what, "2MB/s")
        if unit:
            raise ConfigError(f"{what}: {text!r} is a size, not a rate", hint="Write it per time, such as 2MB/s.")
        return positive(number, what, text)
    per = per.strip()
    if per not in DURATIONS:
        raise ConfigError(f"{what}: unknown unit {per!r} in {text!r}", hint="Write it per s, min, h or d.")
    return size_bytes(amount, what) / DURATIONS[per]


def fraction(text: str | float, what: str = "fraction") -> float:
    """A share strictly between 0 and 1 from `99.99%` or `0.9999`; decimal arithmetic, so that no nine is lost."""
    if isinstance(text, int | float):
        value = float(text)
    else:
        body = text.strip()
        number = _QUANTITY.match(body.removesuffix("%").strip())
        if number is None or number.group(2):
            raise ConfigError(f"{what}: cannot read {text!r}", hint="Write 99.99% or 0.9999.")
        value = float(Decimal(number.group(1)) / (100 if body.endswith("%") else 1))
    if not 0.0 < value < 1.0:
        raise ConfigError(f"{what} must lie strictly between 0 and 1 (100%), not {text}")
    return value


def _scaled(value: float, steps: list[tuple[float, str]]) -> str:
    for factor, unit in steps:
        if abs(value) >= factor:
            return f"{value / factor:.4g}{unit}"
    factor, unit = steps[-1]
    return f"{value / factor:.4g}{unit}"


def show_duration(seconds: float) -> str:
    """Seconds as a person would write them."""
    steps = [
        (YEAR_S, "y"),
        (86400.0, "d"),
        (3600.0, "h"),
        (60.0, "min"),
        (1.0, "s"),
        (1e-3, "ms"),
        (1e-6, "us"),
        (1e-9, "ns"),
    ]
    return _scaled(seconds, steps)


def show_size(size: float) -> str:
    """Bytes as a person would write them (powers of ten, as networks count)."""
    return _scaled(size, [(1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "KB"), (1.0, "B")])


def show_fraction(value: float) -> str:
    """A share as a percentage with as many digits as its nines need."""
    nines = 0 if value >= 1.0 else max(0, math.ceil(-math.log10(1.0 - value)))
    return f"{value * 100:.{max(0, nines - 2) + 2}f}".rstrip("0").rstrip(".") + "%"


def show_factor(value: float) -> str:
    """A factor such as RR_F with three significant digits and no exponent below a million."""
    if value >= 1e6:
        return f"{value:.3g}x"
    return f"{value:,.0f}x" if value >= 1000 else f"{value:.3g}x"

"""What a resource did over a long run: flat, bounded, or growing. Arithmetic only.

Over the second half of the samples a line is fitted by the median of the slopes of all pairs (Theil and Sen), which a
few outliers do not move. A resource is

    flat      if that line rises by at most FLAT of the median an hour, or by less than a grain (one descriptor, a
              megabyte), or if what it rises by within the half is less than the samples scatter around it
    bounded   if it rises more, but below a limit that somebody keeps (a heap, a file that is turned over), or if the
              last quarter is not higher than the two before it: what fills and is emptied again
    grows     otherwise
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import numpy as np

#: Part of the median by which a flat resource may rise in an hour.
FLAT = 0.05
#: What the last quarter may be above the two before without being a new height.
HEIGHT = 0.02
HOUR_S = 3600.0
#: Samples at either end that "start" and "end" are the median of.
ENDS = 5
#: Pairs are looked at if there are at most this many samples; of more, evenly spaced ones.
SAMPLES_MAX = 500


@dataclass(frozen=True)
class Judged:
    start: float
    end: float
    highest: float
    #: Of the second half.
    per_hour: float
    verdict: str
    why: str


def slope(times: list[float], values: list[float]) -> float:
    """The median of the slopes of all pairs, per unit of time."""
    if len(times) > SAMPLES_MAX:
        picked = np.linspace(0, len(times) - 1, SAMPLES_MAX).astype(int)
        times, values = [times[i] for i in picked], [values[i] for i in picked]
    at, of = np.array(times, float), np.array(values, float)
    first, second = np.triu_indices(len(at), 1)
    apart = at[second] - at[first]
    if not (apart > 0).any():
        return 0.0
    return float(np.median((of[second] - of[first])[apart > 0] / apart[apart > 0]))


def judge(times: list[float], values: list[float], *, grain: float = 0.0, limit: float | None = None) -> Judged:
    """What these samples did. `limit`: somebody keeps the resource below this."""
    half = len(values) // 2
    at, of = times[half:], values[half:]
    rise = slope(at, of)
    per_hour = rise * HOUR_S
    level = statistics.median(of)
    line = [level + rise * (t - statistics.median(at)) for t in at]
    scatter = statistics.median(abs(v - fitted) for v, fitted in zip(of, line, strict=True))
    allowed = max(FLAT * level, grain)
    quarter = len(values) - len(values) // 4
    before, last = max(values[len(values) // 4 : quarter], default=level), max(values[quarter:], default=level)
    if per_hour <= allowed:
        verdict, why = "flat", f"at most {100 * FLAT:.0f}% an hour"
    elif rise * (at[-1] - at[0]) <= scatter:
        verdict, why = "flat", "within the scatter of its samples"
    elif limit is not None and max(values) <= limit:
        verdict, why = "bounded", f"kept below {limit:,.4g}"
    elif last <= before * (1 + HEIGHT) + grain:
        verdict, why = "bounded", "no new height in the last quarter"
    else:
        verdict, why = "grows", ""
    return Judged(
        start=statistics.median(values[:ENDS]),
        end=statistics.median(values[-ENDS:]),
        highest=max(values),
        per_hour=per_hour,
        verdict=verdict,
        why=why,
    )

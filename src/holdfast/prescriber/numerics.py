"""Root finding and one-dimensional optimisation that can neither hang nor return NaN (paper §4, §7.1).

The paper searches U = 1/RR_F in (0, 1). Near RR_F = 1 and near RR_F = 1e12 that loses digits, so we search
z = ln a with a = U / (1 - U) = 1 / (RR_F - 1), which maps (0, 1) onto the whole line: U = a / (1 + a) and
RR_F = 1 + 1/a are exact at both ends. Every downtime function grows with a; every loop has a fixed bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

Z_MIN, Z_MAX = -80.0, 36.0  # RR_F from 1 + 2e-16 to 5e34
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(48)


def rr_of(a: float) -> float:
    """RR_F for a = U/(1-U)."""
    return 1.0 + 1.0 / a


def a_of(rr: float) -> float:
    """a = U/(1-U) for a given RR_F > 1."""
    return 1.0 / (rr - 1.0) if rr > 1.0 else math.exp(Z_MAX)


def largest_a(downtime: Callable[[float], float], budget: float) -> float | None:
    """The largest a (smallest RR_F) whose downtime stays within the budget; None when no RR_F is high enough.

    Illinois false position on ln(downtime) over ln(a), kept inside a bracket, with bisections if that takes long: some
    150 evaluations are the most, a dozen are usual, because ln f is nearly straight in ln a.
    """

    def gap(z: float) -> float:
        value = downtime(math.exp(z))
        return math.log(max(value, 1e-300) / budget)

    lo, hi = Z_MIN, Z_MAX
    gap_hi = gap(hi)
    if gap_hi <= 0.0:
        return math.exp(hi)
    gap_lo = gap(lo)
    if gap_lo > 0.0:
        return None
    # Far out ln f is flat (saturated or underflown) and false position crawls: halve until the bracket is short.
    while hi - lo > 4.0:
        mid = 0.5 * (lo + hi)
        value = gap(mid)
        lo, gap_lo, hi, gap_hi = (mid, value, hi, gap_hi) if value <= 0.0 else (lo, gap_lo, mid, value)
    side = 0
    for step in range(120):
        if hi - lo < 1e-12 or gap_lo == 0.0:
            break
        z = (lo * gap_hi - hi * gap_lo) / (gap_hi - gap_lo)
        if (step > 11 and step % 3 == 2) or not lo < z < hi:  # a cliff instead of a slope: bisection gets there
            z = 0.5 * (lo + hi)
        value = gap(z)
        if abs(value) < 1e-10:
            return math.exp(z)
        if value <= 0.0:
            lo, gap_lo = z, value
            gap_hi = gap_hi * 0.5 if side < 0 else gap_hi
            side = -1
        else:
            hi, gap_hi = z, value
            gap_lo = gap_lo * 0.5 if side > 0 else gap_lo
            side = 1
    return math.exp(lo)


def integrate(function: Callable[[np.ndarray], np.ndarray], lo: float, hi: float) -> float:
    """Gauss-Legendre with 48 nodes: exact to rounding for the smooth integrands here."""
    half = 0.5 * (hi - lo)
    return float(half * np.dot(_WEIGHTS, function(lo + half * (_NODES + 1.0))))


def all_fail_within(t: np.ndarray, others: int) -> np.ndarray:
    """G(t) of §4: probability that `others` nodes have all failed within t (in units of F_T)."""
    return (-np.expm1(-t)) ** others


def minimise(function: Callable[[float], float], lo: float, hi: float, steps: int = 40) -> float:
    """Golden-section search for the minimum of a function with one valley; returns where it is.

    To 1e-4, which for the logarithm of an interval leaves the cost right to 1e-8. Infinite values count as "uphill":
    they push the search away, they never poison it.
    """
    shrink = (math.sqrt(5.0) - 1.0) / 2.0
    x1, x2 = hi - shrink * (hi - lo), lo + shrink * (hi - lo)
    f1, f2 = function(x1), function(x2)
    for _ in range(steps):
        if f1 <= f2:
            hi, x2, f2 = x2, x1, f1
            x1 = hi - shrink * (hi - lo)
            f1 = function(x1)
        else:
            lo, x1, f1 = x1, x2, f2
            x2 = lo + shrink * (hi - lo)
            f2 = function(x2)
        if hi - lo < 1e-4:
            break
    return 0.5 * (lo + hi)


def boundary(holds: Callable[[float], bool], good: float, bad: float, steps: int = 30) -> float:
    """The point nearest to `bad` at which `holds` is still true, by bisection; `holds(good)` must be true."""
    for _ in range(steps):
        mid = 0.5 * (good + bad)
        if holds(mid):
            good = mid
        else:
            bad = mid
        if abs(good - bad) < 1e-6:
            break
    return good

"""128-bit numbers as two words, low first: what sums of integers and decimals are made of."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from holdfast.state.intrinsics import multiply_high

Words = NDArray[np.int64]


def to_double(words: Words) -> NDArray[np.float64]:
    low, high = np.ascontiguousarray(words[:, 0]), words[:, 1]
    wide = high.astype(np.float64) * 2.0**64 + low.view(np.uint64)
    # small negative numbers would drown in the difference of two huge ones
    return np.where(high == low >> 63, low.astype(np.float64), wide)


def exceeds(words: Words, limit: int) -> NDArray[np.bool_]:
    """Whether the magnitude of 128-bit numbers is at least `limit`."""
    out = np.zeros(len(words), np.bool_)
    _exceeds(np.ascontiguousarray(words[:, :2]), np.uint64(limit >> 64), np.uint64(limit & (2**64 - 1)), out)
    return out


@njit(cache=True)
def _negate(low, high):
    low = ~low + np.uint64(1)
    return low, ~high + (np.uint64(1) if low == np.uint64(0) else np.uint64(0))


@njit(cache=True)
def _magnitude(low, high):
    """(low, high) of the absolute value."""
    if high < 0:
        return _negate(np.uint64(low), np.uint64(high))
    return np.uint64(low), np.uint64(high)


@njit(cache=True, nogil=True)
def _exceeds(words, limit_high, limit_low, out):
    for i in range(len(words)):
        low, high = _magnitude(words[i, 0], words[i, 1])
        out[i] = high > limit_high or (high == limit_high and low >= limit_low)


@njit(cache=True)
def _divide(low, high, count):
    """Long division bit by bit: (quotient low, quotient high, rest)."""
    one = np.uint64(1)
    rest = np.uint64(0)
    q_low = np.uint64(0)
    q_high = np.uint64(0)
    for b in range(127, -1, -1):
        bit = (high >> np.uint64(b - 64)) & one if b >= 64 else (low >> np.uint64(b)) & one
        rest = (rest << one) | bit
        q_high = (q_high << one) | (q_low >> np.uint64(63))
        q_low = q_low << one
        if rest >= count:
            rest -= count
            q_low |= one
    return q_low, q_high, rest


#: Nothing of 38 digits comes from multiplying something at least this large by ten.
_NEAR_LIMIT_HIGH = np.uint64(10**37 >> 64)
_NEAR_LIMIT_LOW = np.uint64(10**37 & (2**64 - 1))


@njit(cache=True)
def _rounds_up(rest, count, digits):
    """Whether rest / count rounds up, by way of a number of `digits` digits that is itself rounded.

    Spark divides decimals to 39 digits after the point, half up, and then rounds half up to what the result has:
    0.4999…5 becomes 0.5 and then 1.
    """
    for d in range(digits):
        rest *= np.uint64(10)
        digit = rest // count
        rest = rest % count
        if d == 0 and digit >= np.uint64(5):
            return True
        if digit != (np.uint64(4) if d == 0 else np.uint64(9)):
            return False
    return rest * np.uint64(2) >= count


@njit(cache=True, nogil=True)
def divide_half_up(words, digits, scale, out, over):
    """sum * 10^digits / count, rounded as Spark does; rows are (low, high, count), the result has `scale` digits.

    `over` tells where it does not fit 38 digits.
    """
    one = np.uint64(1)
    ten = np.uint64(10)
    zero = np.uint64(0)
    for i in range(len(words)):
        if words[i, 2] == 0:
            continue
        count = np.uint64(words[i, 2])
        low, high = _magnitude(words[i, 0], words[i, 1])
        q_low, q_high, rest = _divide(low, high, count)
        for _ in range(digits):  # the rest is below the count, so ten times it fits in a word
            if q_high > _NEAR_LIMIT_HIGH or (q_high == _NEAR_LIMIT_HIGH and q_low >= _NEAR_LIMIT_LOW):
                over[i] = True
                break
            rest *= ten
            q_high = q_high * ten + multiply_high(q_low, ten)
            q_low = q_low * ten
            digit = rest // count
            rest = rest % count
            q_low += digit
            q_high += one if q_low < digit else zero
        if _rounds_up(rest, count, 39 - scale):
            q_low += one
            q_high += one if q_low == zero else zero
        if words[i, 1] < 0:
            q_low, q_high = _negate(q_low, q_high)
        out[i, 0] = np.int64(q_low)
        out[i, 1] = np.int64(q_high)

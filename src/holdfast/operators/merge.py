"""The one thing that is ever done to an aggregate's state: merge another state into it.

A raw row is lifted to the state of a one-row group, a partial aggregate from Spark already is one, and closing a
sliding window merges the states of its panes. So there is one kernel per kind of state, and raw rows, partial
aggregates, panes and count windows all go through it.

Signature: (pool, heap, to, source, column, flag column, bit). `to[i]` is the address of the first value
word of row i's state; `source[i, column:]` are the words to merge in; a state's flag bit says that it holds a value.
`heap` is where the states keep long values; the source's are at addresses, as in a batch.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from holdfast.state.heap import compare_values, heap_free, is_long, long_length, own_value
from holdfast.state.intrinsics import load, load_float, store, store_float

#: Bits of an aggregate in the flag word: it holds a value; something is special about it (an overflow, a null value).
HAS, SPECIAL = 1, 2


@njit(cache=True)
def _has(flags, bit):
    return (flags >> bit) & HAS


@njit(cache=True)
def _raise_flags(at, flag_column, bit, flags):
    store(at, flag_column, load(at, flag_column) | (flags << bit))


@njit(cache=True)
def _flags(source, i, flag_column, bit):
    return (source[i, flag_column] >> bit) & 3


@njit(cache=True, nogil=True)
def merge_count(pool, heap, to, source, column, flag_column, bit):
    for i in range(len(to)):
        store(to[i], column, load(to[i], column) + source[i, column])


@njit(cache=True)
def _add_wide(at, column, low, high):
    """128-bit addition; whether it left the range."""
    a = np.uint64(load(at, column))
    total = a + np.uint64(low)
    carry = np.uint64(1) if total < a else np.uint64(0)
    h = load(at, column + 1)
    high_total = np.int64(np.uint64(h) + np.uint64(high) + carry)
    store(at, column, np.int64(total))
    store(at, column + 1, high_total)
    return (h >= 0) == (high >= 0) and (high_total >= 0) != (h >= 0)


@njit(cache=True, nogil=True)
def merge_sum_wide(pool, heap, to, source, column, flag_column, bit):
    """Sum of integers or decimals in 128 bits: exact, so the order of rows does not matter."""
    for i in range(len(to)):
        flags = _flags(source, i, flag_column, bit)
        if flags:
            if _add_wide(to[i], column, source[i, column], source[i, column + 1]):
                flags |= SPECIAL
            _raise_flags(to[i], flag_column, bit, flags)


@njit(cache=True, nogil=True)
def merge_average_wide(pool, heap, to, source, column, flag_column, bit):
    """A wide sum, then its count."""
    merge_sum_wide(pool, heap, to, source, column, flag_column, bit)
    merge_count(pool, heap, to, source, column + 2, flag_column, bit)


@njit(cache=True, nogil=True)
def merge_sum_float(pool, heap, to, source, column, flag_column, bit):
    values = source.view(np.float64)
    for i in range(len(to)):
        if _flags(source, i, flag_column, bit):
            store_float(to[i], column, load_float(to[i], column) + values[i, column])
            _raise_flags(to[i], flag_column, bit, HAS)


@njit(cache=True, nogil=True)
def merge_average_float(pool, heap, to, source, column, flag_column, bit):
    merge_sum_float(pool, heap, to, source, column, flag_column, bit)
    merge_count(pool, heap, to, source, column + 1, flag_column, bit)


@njit(cache=True, nogil=True)
def merge_moments(pool, heap, to, source, column, flag_column, bit):
    """(count, mean, sum of squared distances), by the formula of Chan, Golub and LeVeque, as Spark does."""
    values = source.view(np.float64)
    for i in range(len(to)):
        m = values[i, column]
        if m == 0.0:
            continue
        n = load_float(to[i], column)
        if n == 0.0:
            store_float(to[i], column, m)
            store_float(to[i], column + 1, values[i, column + 1])
            store_float(to[i], column + 2, values[i, column + 2])
            continue
        total = n + m
        mean = load_float(to[i], column + 1)
        delta = values[i, column + 1] - mean
        store_float(to[i], column, total)
        store_float(to[i], column + 1, mean + delta * (m / total))
        squares = load_float(to[i], column + 2) + values[i, column + 2]
        store_float(to[i], column + 2, squares + delta * delta * n * m / total)


@njit(cache=True)
def _float_order(word):
    """Bits of a double as a number in Spark's order: NaN above everything."""
    if (word & 0x7FFFFFFFFFFFFFFF) > 0x7FF0000000000000:
        return np.int64(0x7FFFFFFFFFFFFFFF)
    if word == np.int64(-0x8000000000000000):
        return np.int64(0)  # -0.0 is 0.0
    return word if word >= 0 else word ^ np.int64(0x7FFFFFFFFFFFFFFF)


@njit(cache=True, nogil=True)
def merge_extreme_plain(to, source, column, flag_column, bit, sign, is_float):
    """Least (sign 1) or greatest (sign -1) of one-word values."""
    for i in range(len(to)):
        if not _flags(source, i, flag_column, bit):
            continue
        at = to[i]
        new = source[i, column]
        if _has(load(at, flag_column), bit):
            old = load(at, column)
            a = _float_order(new) if is_float else new
            b = _float_order(old) if is_float else old
            if (a >= b) if sign > 0 else (a <= b):
                continue
        store(at, column, new)
        _raise_flags(at, flag_column, bit, HAS)


@njit(cache=True, nogil=True)
def merge_extreme_decimal(to, source, column, flag_column, bit, sign):
    for i in range(len(to)):
        if not _flags(source, i, flag_column, bit):
            continue
        at = to[i]
        low = source[i, column]
        high = source[i, column + 1]
        if _has(load(at, flag_column), bit):
            old_low = load(at, column)
            old_high = load(at, column + 1)
            less = high < old_high or (high == old_high and np.uint64(low) < np.uint64(old_low))
            same = high == old_high and low == old_low
            if same or less != (sign > 0):
                continue
        store(at, column, low)
        store(at, column + 1, high)
        _raise_flags(at, flag_column, bit, HAS)


@njit(cache=True)
def _replace_value(pool, heap, at, column, held, word0, word1):
    """Put a variable-length value where another one may be. Memory was reserved before, so this cannot fail."""
    if held and is_long(load(at, column)):
        heap_free(pool, heap, load(at, column + 1), long_length(load(at, column)))
    store(at, column, word0)
    store(at, column + 1, own_value(pool, heap, word0, word1))


@njit(cache=True, nogil=True)
def merge_extreme_var(pool, heap, to, source, column, flag_column, bit, sign):
    for i in range(len(to)):
        if not _flags(source, i, flag_column, bit):
            continue
        at = to[i]
        w0 = source[i, column]
        w1 = source[i, column + 1]
        held = _has(load(at, flag_column), bit)
        if held:
            order = compare_values(pool, heap, load(at, column), load(at, column + 1), 0, w0, w1)
            if (order <= 0) if sign > 0 else (order >= 0):
                continue
        _replace_value(pool, heap, at, column, held, w0, w1)
        _raise_flags(at, flag_column, bit, HAS)


@njit(cache=True, nogil=True)
def merge_pick(pool, heap, to, source, column, flag_column, bit, sign, words, is_var):
    """First (sign 1) or last (sign -1) value by the number of its row, which is the word before it."""
    for i in range(len(to)):
        flags = _flags(source, i, flag_column, bit)
        if not flags:
            continue
        at = to[i]
        held = _has(load(at, flag_column), bit)
        if held:
            new = source[i, column]
            old = load(at, column)
            if (new >= old) if sign > 0 else (new <= old):
                continue
        store(at, column, source[i, column])
        if is_var:
            _replace_value(pool, heap, at, column + 1, held, source[i, column + 1], source[i, column + 2])
        else:
            for w in range(words):
                store(at, column + 1 + w, source[i, column + 1 + w])
        store(at, flag_column, (load(at, flag_column) & ~(3 << bit)) | (flags << bit))

"""Aggregate functions: how a row becomes a state, which kernel merges states, and how a state becomes a result.

    function                 state, in words                                  result (as in Spark)
    count(*), count(x)       count                                            bigint
    sum(x)                   128-bit sum (integers, decimals) or double       bigint, decimal(p + 10, s), double
    avg(x)                   sum, count                                       double, decimal(p + 4, s + 4)
    stddev, stddev_pop       count, mean, squared distances (doubles)         double
    min(x), max(x)           the value                                        the column's type
    first(x), last(x)        number of the row, the value                     the column's type

Sums of integers are exact and so do not depend on the order of rows. A result that does not fit its type is an
error, as with Spark's ANSI mode. If the operator is told so (`overflow="wrap"`, as Spark with ANSI off), an integer
wraps around like a Java long and a decimal is null. `first` and `last` go by the order of arrival, which for Holdfast
is one fixed order.

One's own aggregates: `register(MergeableAggregate(...))`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.operators import merge
from holdfast.operators.columns import Column, decode, encode, quoted, valid_of
from holdfast.operators.wide import divide_half_up, exceeds, to_double

Words = NDArray[np.int64]
#: Set by `finish` for states whose result does not fit: (states, what Spark calls the result type).
Overflow = tuple[NDArray[np.bool_], str]
Partial = tuple[tuple[str, str, pa.DataType], ...]


@dataclass(frozen=True)
class Agg:
    """An aggregate as a user writes it: `Agg("sum", "bytes")`."""

    function: str
    column: str | None = None
    ignore_nulls: bool = False  # first and last only, as in Spark


class Function(Protocol):
    """One aggregate bound to its column."""

    @property
    def words(self) -> int: ...

    @property
    def result(self) -> pa.DataType: ...

    @property
    def var_at(self) -> int | None:
        """Where among its words a two-word value is, if any."""
        ...

    @property
    def partial(self) -> Partial:
        """Columns of Spark's partial aggregate: (suffix, SQL, type); empty if it needs the rows themselves."""
        ...

    def lift(self, array: pa.Array | None, n: int, seq: Words, out: Words) -> Words:
        """Write the states of single rows; returns their flags."""
        ...

    def lift_partial(self, arrays: list[pa.Array], out: Words) -> Words:
        """Write the states that Spark computed; returns their flags."""
        ...

    def merge(self, place: WordsAt, to: Words, source: Words) -> None: ...

    def finish(self, words: Words, flags: Words, pool: int, heap: int) -> tuple[pa.Array, Overflow | None]: ...


@dataclass(frozen=True)
class WordsAt:
    """Where an aggregate's words are in a state, and the heap of its long values."""

    column: int
    flag_column: int
    bit: int
    pool: int
    heap: int


def no_flags(n: int) -> Words:
    return np.zeros(n, np.int64)


def _has(array: pa.Array) -> Words:
    return valid_of(array).astype(np.int64)


class Count:
    words = 1
    result = pa.int64()
    var_at: int | None = None

    def __init__(self, column: Column | None) -> None:
        self.partial: Partial = (("count", f"count({quoted(column.name)})" if column else "count(1)", pa.int64()),)

    def lift(self, array: pa.Array | None, n: int, seq: Words, out: Words) -> Words:
        out[:, 0] = 1 if array is None else valid_of(array)
        return no_flags(n)

    def lift_partial(self, arrays: list[pa.Array], out: Words) -> Words:
        out[:, 0] = arrays[0].to_numpy(zero_copy_only=False)
        return no_flags(len(out))

    def merge(self, place: WordsAt, to: Words, source: Words) -> None:
        merge.merge_count(place.pool, place.heap, to, source, place.column, place.flag_column, place.bit)

    def finish(self, words: Words, flags: Words, pool: int, heap: int) -> tuple[pa.Array, Overflow | None]:
        return pa.array(words[:, 0]), None


def _lift_wide(array: pa.Array, column: Column, out: Words) -> None:
    words = encode(array, column)
    out[:, 0] = words[:, 0]
    out[:, 1] = words[:, 1] if column.is_decimal else words[:, 0] >> 63


def _decimals_or_null(
    words: Words, null: NDArray[np.bool_], over: NDArray[np.bool_], result: pa.DataType
) -> tuple[pa.Array, Overflow]:
    """Decimals, null where they do not fit; where that is."""
    words = np.where(over[:, None], 0, words)
    return decode(words, null | over, Column("", result)), (over, str(result))


class SumWide:
    """Sum of integers or decimals."""

    words = 2
    var_at: int | None = None

    def __init__(self, column: Column) -> None:
        self.column = column
        self.result = pa.int64()
        if column.is_decimal:
            self.result = pa.decimal128(min(38, column.type.precision + 10), column.type.scale)
        self.partial: Partial = self._partial_sum()

    def _partial_sum(self) -> Partial:
        """Sums of bigints come in two halves, neither of which can overflow: the whole window may fit where a pane does
        not, and without ANSI Spark would wrap around and not tell. Sums of decimals that may not fit into 38 digits are
        null then, as if there had been no value: of those the rows are needed."""
        x = quoted(self.column.name)
        if self.column.is_decimal and self.column.type.precision + 10 > 38:
            return ()
        if not pa.types.is_int64(self.column.type):
            return (("sum", f"sum({x})", self.result),)
        return (
            ("high", f"sum(shiftright({x}, 32))", pa.int64()),
            ("low", f"sum({x} & 4294967295L)", pa.int64()),
        )

    def _lift_partial_sum(self, arrays: list[pa.Array], out: Words) -> Words:
        """Write the first two words; returns their flags."""
        _, _, type_ = self.partial[0]
        high = encode(arrays[0], Column("", type_))
        if not pa.types.is_int64(self.column.type):
            out[:, 0] = high[:, 0]
            out[:, 1] = high[:, 1] if self.column.is_decimal else high[:, 0] >> 63
            return _has(arrays[0])
        shifted = (high[:, 0] << 32).view(np.uint64)
        total = shifted + encode(arrays[1], Column("", type_))[:, 0].view(np.uint64)
        out[:, 0] = total.view(np.int64)
        out[:, 1] = (high[:, 0] >> 32) + (total < shifted)
        return _has(arrays[0])

    def lift(self, array: pa.Array | None, n: int, seq: Words, out: Words) -> Words:
        assert array is not None
        _lift_wide(array, self.column, out)
        return _has(array)

    def lift_partial(self, arrays: list[pa.Array], out: Words) -> Words:
        return self._lift_partial_sum(arrays, out)

    def merge(self, place: WordsAt, to: Words, source: Words) -> None:
        merge.merge_sum_wide(place.pool, place.heap, to, source, place.column, place.flag_column, place.bit)

    def finish(self, words: Words, flags: Words, pool: int, heap: int) -> tuple[pa.Array, Overflow | None]:
        null = (flags & merge.HAS) == 0
        if self.column.is_decimal:
            over = (flags & merge.SPECIAL != 0) | exceeds(words, 10**self.result.precision)
            return _decimals_or_null(words, null, over, self.result)
        over = (flags & merge.SPECIAL != 0) | (words[:, 1] != words[:, 0] >> 63)
        return decode(words[:, :1], null, Column("", self.result)), (over, "bigint")


class AverageWide(SumWide):
    """Average of integers (a double) or decimals."""

    words = 3
    var_at: int | None = None

    def __init__(self, column: Column) -> None:
        super().__init__(column)
        if self.partial:
            self.partial = (*self.partial, ("count", f"count({quoted(column.name)})", pa.int64()))
        self.result = pa.float64()
        if column.is_decimal:
            self.result = pa.decimal128(min(38, column.type.precision + 4), min(38, column.type.scale + 4))

    def lift(self, array: pa.Array | None, n: int, seq: Words, out: Words) -> Words:
        flags = super().lift(array, n, seq, out)
        out[:, 2] = flags
        return flags

    def lift_partial(self, arrays: list[pa.Array], out: Words) -> Words:
        out[:, 2] = arrays[-1].to_numpy(zero_copy_only=False)
        return self._lift_partial_sum(arrays, out)

    def merge(self, place: WordsAt, to: Words, source: Words) -> None:
        merge.merge_average_wide(place.pool, place.heap, to, source, place.column, place.flag_column, place.bit)

    def finish(self, words: Words, flags: Words, pool: int, heap: int) -> tuple[pa.Array, Overflow | None]:
        null = (flags & merge.HAS) == 0
        if not self.column.is_decimal:
            counts = np.where(null, 1, words[:, 2])
            return pa.array(to_double(words) / counts, mask=null), None
        out = np.zeros((len(words), 2), np.int64)
        over = flags & merge.SPECIAL != 0
        divide_half_up(words, self.result.scale - self.column.type.scale, self.result.scale, out, over)
        return _decimals_or_null(out, null, over | exceeds(out, 10**self.result.precision), self.result)


class SumFloat:
    words = 1
    result = pa.float64()
    var_at: int | None = None

    def __init__(self, column: Column) -> None:
        self.column = column
        self.partial: Partial = (("sum", f"sum({quoted(column.name)})", pa.float64()),)

    def lift(self, array: pa.Array | None, n: int, seq: Words, out: Words) -> Words:
        assert array is not None
        out[:, 0] = encode(array, self.column)[:, 0]
        return _has(array)

    def lift_partial(self, arrays: list[pa.Array], out: Words) -> Words:
        out[:, 0] = encode(arrays[0], Column("", pa.float64()))[:, 0]
        return _has(arrays[0])

    def merge(self, place: WordsAt, to: Words, source: Words) -> None:
        merge.merge_sum_float(place.pool, place.heap, to, source, place.column, place.flag_column, place.bit)

    def finish(self, words: Words, flags: Words, pool: int, heap: int) -> tuple[pa.Array, Overflow | None]:
        return decode(words[:, :1], (flags & merge.HAS) == 0, Column("", self.result)), None


class AverageFloat(SumFloat):
    words = 2
    result = pa.float64()
    var_at: int | None = None

    def __init__(self, column: Column) -> None:
        super().__init__(column)
        self.partial = (*self.partial, ("count", f"count({quoted(column.name)})", pa.int64()))

    def lift(self, array: pa.Array | None, n: int, seq: Words, out: Words) -> Words:
        flags = super().lift(array, n, seq, out)
        out[:, 1] = flags
        return flags

    def lift_partial(self, arrays: list[pa.Array], out: Words) -> Words:
        out[:, 1] = arrays[1].to_numpy(zero_copy_only=False)
        return super().lift_partial(arrays, out)

    def merge(self, place: WordsAt, to: Words, source: Words) -> None:
        merge.merge_average_float(place.pool, place.heap, to, source, place.column, place.flag_column, place.bit)

    def finish(self, words: Words, flags: Words, pool: int, heap: int) -> tuple[pa.Array, Overflow | None]:
        null = (flags & merge.HAS) == 0
        sums = np.ascontiguousarray(words[:, 0]).view(np.float64)
        return pa.array(sums / np.where(null, 1, words[:, 1]), mask=null), None


def as_doubles(array: pa.Array, column: Column) -> NDArray[np.float64]:
    """Numbers of any type as doubles; null is 0."""
    words = encode(array, column)
    if column.is_decimal:
        return to_double(words) / 10.0**column.type.scale
    return words.view(np.float64)[:, 0] if column.is_float else words[:, 0].astype(np.float64)


class Deviation:
    words = 3
    result = pa.float64()
    var_at: int | None = None

    def __init__(self, column: Column, *, sample: bool) -> None:
        self.column = column
        self.sample = sample
        count = f"count({quoted(column.name)})"
        x = f"cast({quoted(column.name)} as double)"
        self.partial: Partial = (
            ("count", count, pa.int64()),
            ("mean", f"avg({x})", pa.float64()),
            ("m2", f"var_pop({x}) * {count}", pa.float64()),
        )

    def lift(self, array: pa.Array | None, n: int, seq: Words, out: Words) -> Words:
        assert array is not None
        states = out.view(np.float64)
        values = as_doubles(array, self.column)
        states[:, 0] = valid_of(array)
        states[:, 1] = values
        # as Spark's first update: 0 for a number, NaN for a NaN or an infinity
        with np.errstate(invalid="ignore"):
            states[:, 2] = values * 0.0
        return no_flags(n)

    def lift_partial(self, arrays: list[pa.Array], out: Words) -> Words:
        states = out.view(np.float64)
        for i, array in enumerate(arrays):
            states[:, i] = array.fill_null(0).to_numpy(zero_copy_only=False)
        return no_flags(len(out))

    def merge(self, place: WordsAt, to: Words, source: Words) -> None:
        merge.merge_moments(place.pool, place.heap, to, source, place.column, place.flag_column, place.bit)

    def finish(self, words: Words, flags: Words, pool: int, heap: int) -> tuple[pa.Array, Overflow | None]:
        states = np.ascontiguousarray(words[:, :3]).view(np.float64)
        degrees = states[:, 0] - (1 if self.sample else 0)
        null = degrees <= 0
        return pa.array(np.sqrt(states[:, 2] / np.where(null, 1, degrees)), mask=null), None


class Extreme:
    """min (sign 1) and max (sign -1)."""

    def __init__(self, column: Column, name: str, sign: int) -> None:
        self.column = column
        self.sign = sign
        self.words = column.words
        self.result = column.type
        self.var_at = 0 if column.is_var else None
        self.partial: Partial = ((name, f"{name}({quoted(column.name)})", column.type),)

    def lift(self, array: pa.Array | None, n: int, seq: Words, out: Words) -> Words:
        assert array is not None
        out[:] = encode(array, self.column)
        return _has(array)

    def lift_partial(self, arrays: list[pa.Array], out: Words) -> Words:
        return self.lift(arrays[0], len(out), no_flags(0), out)

    def merge(self, place: WordsAt, to: Words, source: Words) -> None:
        at = (place.column, place.flag_column, place.bit)
        if self.column.is_var:
            merge.merge_extreme_var(place.pool, place.heap, to, source, *at, self.sign)
        elif self.column.is_decimal:
            merge.merge_extreme_decimal(to, source, *at, self.sign)
        else:
            merge.merge_extreme_plain(to, source, *at, self.sign, self.column.is_float)

    def finish(self, words: Words, flags: Words, pool: int, heap: int) -> tuple[pa.Array, Overflow | None]:
        return decode(words[:, : self.words], (flags & merge.HAS) == 0, self.column, pool, heap), None


class Pick:
    """first (sign 1) and last (sign -1)."""

    partial: Partial = ()

    def __init__(self, column: Column, sign: int, ignore_nulls: bool) -> None:
        self.column = column
        self.sign = sign
        self.ignore_nulls = ignore_nulls
        self.words = 1 + column.words
        self.result = column.type
        self.var_at = 1 if column.is_var else None

    def lift(self, array: pa.Array | None, n: int, seq: Words, out: Words) -> Words:
        assert array is not None
        out[:, 0] = seq
        out[:, 1:] = encode(array, self.column)
        valid = valid_of(array)
        if self.ignore_nulls:
            return valid.astype(np.int64)
        return np.where(valid, merge.HAS, merge.HAS | merge.SPECIAL)

    def lift_partial(self, arrays: list[pa.Array], out: Words) -> Words:
        raise AssertionError("first and last need the rows")  # the operator has refused this before

    def merge(self, place: WordsAt, to: Words, source: Words) -> None:
        merge.merge_pick(
            place.pool, place.heap, to, source, place.column, place.flag_column, place.bit,
            self.sign, self.column.words, self.column.is_var,
        )  # fmt: skip

    def finish(self, words: Words, flags: Words, pool: int, heap: int) -> tuple[pa.Array, Overflow | None]:
        null = (flags & merge.HAS == 0) | (flags & merge.SPECIAL != 0)
        return decode(words[:, 1 : self.words], null, self.column, pool, heap), None

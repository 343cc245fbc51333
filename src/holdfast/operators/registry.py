"""Aggregates by name: the built-in ones, and those that a program registers.

`bind` gives the function that an `Agg` of a pipeline means for the columns it gets, or says why there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numba import njit
from numpy.typing import NDArray

from holdfast.errors import ConfigError
from holdfast.operators.aggregates import (
    Agg,
    AverageFloat,
    AverageWide,
    Count,
    Deviation,
    Extreme,
    Function,
    Overflow,
    Partial,
    Pick,
    SumFloat,
    SumWide,
    Words,
    WordsAt,
    as_doubles,
    no_flags,
)
from holdfast.operators.columns import Column, column_of, valid_of
from holdfast.state.intrinsics import load_float, store_float


@dataclass(frozen=True)
class MergeableAggregate:
    """An aggregate of the user's own, over numbers.

    `lift(values, valid)` makes the states of single rows, (rows, width) doubles; null rows must give the identity.
    `merge(a, b)` adds state b into a, both arrays of `width` doubles; it must compile under Numba (nopython), be
    associative and commutative, and have `identity` as its neutral element.
    `finish(states)` gives the results, NaN for null.
    """

    name: str
    width: int
    identity: tuple[float, ...]
    lift: Callable[[NDArray[np.float64], NDArray[np.bool_]], NDArray[np.float64]]
    merge: Callable[[NDArray[np.float64], NDArray[np.float64]], None]
    finish: Callable[[NDArray[np.float64]], NDArray[np.float64]]


class UserDefined:
    result = pa.float64()
    var_at: int | None = None
    partial: Partial = ()

    def __init__(self, column: Column, definition: MergeableAggregate, kernel: Callable) -> None:
        self.column = column
        self.definition = definition
        self.words = definition.width
        self.kernel = kernel
        self.identity = np.array(definition.identity, np.float64).view(np.int64)

    def lift(self, array: pa.Array | None, n: int, seq: Words, out: Words) -> Words:
        assert array is not None
        out.view(np.float64)[:] = self.definition.lift(as_doubles(array, self.column), valid_of(array))
        return no_flags(n)

    def lift_partial(self, arrays: list[pa.Array], out: Words) -> Words:
        raise AssertionError("a user-defined aggregate needs the rows")  # the operator has refused this before

    def merge(self, place: WordsAt, to: Words, source: Words) -> None:
        self.kernel(to, source, place.column, self.words)

    def finish(self, words: Words, flags: Words, pool: int, heap: int) -> tuple[pa.Array, Overflow | None]:
        results = self.definition.finish(np.ascontiguousarray(words[:, : self.words]).view(np.float64))
        return pa.array(results, mask=np.isnan(results)), None


_registry: dict[str, tuple[MergeableAggregate, Callable]] = {}


def register(definition: MergeableAggregate) -> None:
    """Make an aggregate of the user's own known by its name. Compiles its merge now, not during a fail-over."""
    if definition.name in _BUILT_IN:
        raise ConfigError(f"aggregate {definition.name!r} exists already", hint="Choose another name.")
    if len(definition.identity) != definition.width:
        raise ConfigError(
            f"aggregate {definition.name!r}: the identity has the wrong width",
            detail=f"{len(definition.identity)} values for a state of {definition.width}.",
        )
    combine = njit(definition.merge)

    @njit(nogil=True)
    def kernel(to, source, column, width):
        values = source.view(np.float64)
        state = np.empty(width, np.float64)
        for i in range(len(to)):
            for w in range(width):
                state[w] = load_float(to[i], column + w)
            combine(state, values[i, column : column + width])
            for w in range(width):
                store_float(to[i], column + w, state[w])

    scratch = np.zeros((1, definition.width), np.int64)
    kernel(np.array([scratch.ctypes.data]), np.zeros((1, definition.width), np.int64), 0, definition.width)
    _registry[definition.name] = (definition, kernel)


_BUILT_IN = ("count", "sum", "avg", "stddev", "stddev_pop", "min", "max", "first", "last")


def bind(agg: Agg, schema: pa.Schema, operator: str) -> Function:
    """The function of an aggregate over a column of this schema."""
    if agg.function == "count":
        return Count(column_of(schema, agg.column, operator) if agg.column else None)
    if agg.function not in _BUILT_IN and agg.function not in _registry:
        known = ", ".join([*_BUILT_IN, *sorted(_registry)])
        raise ConfigError(f"{operator}: no aggregate named {agg.function!r}", detail=f"There are {known}.")
    if agg.column is None:
        raise ConfigError(f"{operator}: {agg.function} needs a column", hint=f'Write Agg("{agg.function}", "x").')
    column = column_of(schema, agg.column, operator)
    if agg.function in ("min", "max"):
        return Extreme(column, agg.function, 1 if agg.function == "min" else -1)
    if agg.function in ("first", "last"):
        return Pick(column, 1 if agg.function == "first" else -1, agg.ignore_nulls)
    if not (column.is_float or column.is_integral or column.is_decimal):
        raise ConfigError(
            f"{operator}: {agg.function} of column {agg.column!r} makes no sense",
            detail=f"It is {column.type}, not a number.",
        )
    if agg.function == "sum":
        return SumFloat(column) if column.is_float else SumWide(column)
    if agg.function == "avg":
        return AverageFloat(column) if column.is_float else AverageWide(column)
    if agg.function in ("stddev", "stddev_pop"):
        return Deviation(column, sample=agg.function == "stddev")
    definition, kernel = _registry[agg.function]
    return UserDefined(column, definition, kernel)

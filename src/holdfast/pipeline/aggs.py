"""The aggregates a user can write in `agg(...)`. What they mean, and their types, is Spark's (docs/operators.md)."""

from __future__ import annotations

from typing import Any

from holdfast.errors import ConfigError
from holdfast.pipeline.arguments import caller
from holdfast.pipeline.graph import AggCall


def _of(function: str, column: Any, ignore_nulls: bool = False) -> AggCall:
    if not isinstance(column, str):
        raise ConfigError(
            f"{function}: {column!r} is not a column name",
            detail=f"At {caller()}.",
            hint="Compute it in a map before, and name the new column here.",
        )
    return AggCall(function, column, ignore_nulls)


def count(column: str | None = None) -> AggCall:
    """Rows, or rows in which the column is not null."""
    return _of("count", column) if column is not None else AggCall("count", None)


def sum(column: str) -> AggCall:
    """Sum; of integers and decimals exact."""
    return _of("sum", column)


def min(column: str) -> AggCall:
    return _of("min", column)


def max(column: str) -> AggCall:
    return _of("max", column)


def avg(column: str) -> AggCall:
    return _of("avg", column)


def stddev(column: str) -> AggCall:
    """Standard deviation of a sample."""
    return _of("stddev", column)


def stddev_pop(column: str) -> AggCall:
    """Standard deviation of the whole population."""
    return _of("stddev_pop", column)


def first(column: str, ignore_nulls: bool = False) -> AggCall:
    """The value of the row that came first, by arrival."""
    return _of("first", column, ignore_nulls)


def last(column: str, ignore_nulls: bool = False) -> AggCall:
    """The value of the row that came last, by arrival."""
    return _of("last", column, ignore_nulls)

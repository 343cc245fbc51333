"""The aggregates a user can write in `agg(...)`. What they mean, and their types, is Spark's (docs/operators.md)."""

from __future__ import annotations

from holdfast.pipeline.graph import AggCall


def count(column: str | None = None) -> AggCall:
    """Rows, or rows in which the column is not null."""
    return AggCall("count", column)


def sum(column: str) -> AggCall:
    """Sum; of integers and decimals exact."""
    return AggCall("sum", column)


def min(column: str) -> AggCall:
    return AggCall("min", column)


def max(column: str) -> AggCall:
    return AggCall("max", column)


def avg(column: str) -> AggCall:
    return AggCall("avg", column)


def stddev(column: str) -> AggCall:
    """Standard deviation of a sample."""
    return AggCall("stddev", column)


def stddev_pop(column: str) -> AggCall:
    """Standard deviation of the whole population."""
    return AggCall("stddev_pop", column)


def first(column: str, ignore_nulls: bool = False) -> AggCall:
    """The value of the row that came first, by arrival."""
    return AggCall("first", column, ignore_nulls)


def last(column: str, ignore_nulls: bool = False) -> AggCall:
    """The value of the row that came last, by arrival."""
    return AggCall("last", column, ignore_nulls)

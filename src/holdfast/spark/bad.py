"""Bad rows of a batch: those that an operator would refuse, or that lie too far ahead of the clock (`future_max`).

A batch without any, which is nearly every one, costs what it did before: least and highest event time are needed for
the watermark anyway, and no value can be too long where all values of a column together are not. How far ahead of the
clock is too far is decided once, when the batch is split: what is recorded of the batch that counts is the truth, as
with late rows. Values are looked at after event times, and a row is set aside for the first reason that is found.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from holdfast.model.plan import Plan, StagePlan
from holdfast.operators.columns import quoted
from holdfast.operators.limits import VALUE_BYTES_MAX, long_columns, time_limits
from holdfast.pipeline import durations

#: Columns that a bad row gets when it is set aside.
REASON, OPERATOR = "holdfast_reason", "holdfast_operator"
_EXAMPLE_CHARACTERS = 60

Flags = NDArray[np.bool_]


def clock_us() -> int:
    return time.time_ns() // 1_000


class RowLimits:
    """What the operators of a stage, or of one of its outlets, can hold of a row."""

    def __init__(self, plan: Plan, stage: StagePlan, outlet: str = "") -> None:
        outlets = stage.outlets or ("",) * len(stage.feeds)
        fed = [feed for feed, its in zip(stage.feeds, outlets, strict=True) if its == outlet]
        feeds = [(plan.operator(name), number) for name, number in fed]
        spans = [time_limits(operator) for operator, _ in feeds]
        self.operators = ", ".join(operator.name for operator, _ in feeds)
        #: First and last event time that all of them take.
        self.low, self.high = max(low for low, _ in spans), min(high for _, high in spans)
        self.future_us = stage.future_us
        #: Columns that may hold too much, and for which operator.
        self.long: dict[str, str] = {}
        for operator, number in feeds:
            for column in long_columns(operator, number):
                self.long.setdefault(column, operator.name)

    def latest(self, now_us: int) -> int:
        """The last event time that is taken at this moment."""
        return self.high if self.future_us is None else min(self.high, now_us + self.future_us)

    def hold(self, table: pa.Table, least_us: int, most_us: int, now_us: int) -> bool:
        """No row of these is bad, as far as their columns say: all have times between these two."""
        if least_us < self.low or most_us > self.latest(now_us):
            return False
        there = [table.column(name) for name in self.long if name in table.column_names]
        return not any(_is_too_long(column).any() for column in there if _may_be(column))

    def flags(self, table: pa.Table, times: NDArray[np.int64], now_us: int) -> list[tuple[Flags, str, str]]:
        """(rows, operator, reason) of everything that can be wrong with rows."""
        found = [
            ((times < self.low) | (times > self.high), self.operators, "the event time is not in the years 1 to 9999")
        ]
        if self.future_us is not None:
            why = f"the event time is more than {durations.text(self.future_us)} ahead of the clock"
            found.append((times > self.latest(now_us), self.operators, why))
        for name, operator in self.long.items():
            if _may_be(table.column(name)):
                why = f"column {name!r} has more than {VALUE_BYTES_MAX:,} bytes"
                found.append((_is_too_long(table.column(name)), operator, why))
        return found

    def apart(
        self, table: pa.Table, times: NDArray[np.int64], now_us: int, recorded: pa.Table | None = None
    ) -> tuple[pa.Table | None, Flags]:
        """Bad rows, each with operator and reason (None: there are none), and which rows are good. `recorded`: the same
        rows in the form in which they are to be set aside."""
        flags = self.flags(table, times, now_us)
        which = np.full(len(times), -1, np.int16)
        for number in reversed(range(len(flags))):
            which[flags[number][0]] = number
        good = which < 0
        if good.all():
            return None, good
        bad = (table if recorded is None else recorded).filter(pa.array(~good))
        number = pa.array(which[~good])
        for at, name in ((2, REASON), (1, OPERATOR)):
            texts = pa.array([flag[at] for flag in flags])
            bad = bad.append_column(name, texts.take(number))
        return bad, good

    def sql(self, moment: str, now_us: int) -> str:
        """The same as a condition in Spark SQL; `moment` is the event time in microseconds."""
        terms = [f"{moment} < {self.low}L", f"{moment} > {self.latest(now_us)}L"]
        terms += [f"octet_length({quoted(name)}) > {VALUE_BYTES_MAX}" for name in self.long]
        return f"coalesce({moment} is not null and ({' or '.join(terms)}), false)"


def _may_be(column: pa.ChunkedArray) -> bool:
    """Could a value be too long? Not if all of them together are not, which costs nothing to know."""
    return any(chunk.nbytes > VALUE_BYTES_MAX for chunk in column.chunks)


def _is_too_long(column: pa.ChunkedArray) -> Flags:
    lengths: Any = pc.binary_length(column)  # pyright: ignore[reportAttributeAccessIssue]
    return lengths.fill_null(0).to_numpy() > VALUE_BYTES_MAX


def told_of(bad: pa.Table) -> dict[str, Any]:
    """For an event: how many, and what is wrong with the first of them."""
    first = {"operator": str(bad.column(OPERATOR)[0]), "reason": str(bad.column(REASON)[0])}
    return {"rows": bad.num_rows, "example": example(bad), **first}


def example(rows: pa.Table) -> str:
    """The first of some rows, short enough to be read."""
    return ", ".join(
        f"{name}={_text(rows.column(name)[0])}" for name in rows.column_names if name not in (REASON, OPERATOR)
    )


def _text(value: Any) -> str:
    try:
        text = str(value)
    except (ValueError, OverflowError):  # a time that Python has no words for
        text = f"{value.cast(pa.int64())} us"
    return text if len(text) <= _EXAMPLE_CHARACTERS else f"{text[:_EXAMPLE_CHARACTERS]}… ({len(text):,} characters)"

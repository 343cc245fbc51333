"""The rows of one branch of a stage: which columns of them its operators need, and what those can hold.

A stage with several outlets collects the rows of all of them at once, each in a column of its own (`source_rows` in
pipeline/frames.py). What is set aside keeps that form, so that all that a stage records has one schema; what crosses to
operators has the columns of its own outlet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.errors import InputError
from holdfast.model.plan import InputPlan
from holdfast.operators.columns import quoted
from holdfast.spark.bad import RowLimits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Taker(Protocol):
    """What takes rows of a branch: one input of one operator."""

    input: InputPlan
    schema: pa.Schema


class StageBranch:
    def __init__(self, outlet: str, takers: Sequence[Taker], limits: RowLimits) -> None:
        #: The column that holds its rows; "": it is the stage's only branch.
        self.outlet = outlet
        self.limits = limits
        self.event_time = takers[0].input.event_time
        names = [name for taker in takers for name in (taker.input.event_time, *taker.schema.names)]
        self.columns = list(dict.fromkeys(names))
        self.schema = {field.name: field.type for taker in takers for field in taker.schema}

    def needed(self) -> list[str]:
        """What is to be collected, in SQL."""
        if not self.outlet:
            return list(map(quoted, self.columns))
        column = quoted(self.outlet)
        parts = ", ".join(f"{column}.{quoted(name)}" for name in self.columns)
        return [f"if({column} is null, null, struct({parts})) as {column}"]

    def check(self, table: pa.Table, stage: str) -> None:
        """The rows are what was planned: operators would refuse them, but cannot name the stage."""
        fields = table.schema.field(self.outlet).type if self.outlet else table.schema
        for name, type_ in self.schema.items():
            found = fields.field(name).type
            if found != type_:
                raise InputError(
                    f"stage {stage}: the schema of its rows has changed",
                    detail=f"Column {name!r} was planned as {type_}, and is {found} now.",
                    hint="Nothing of this batch was handed over. Deploy the pipeline again with the new schema.",
                )

    def timed(self, table: pa.Table) -> TimedRows:
        """Its rows of a batch that have an event time: the others are in no window."""
        rows, where = table, None
        if self.outlet:
            column = table.column(self.outlet).combine_chunks()
            mine = column.is_valid()
            where = np.flatnonzero(mine.to_numpy(zero_copy_only=False))
            rows = pa.Table.from_arrays(column.filter(mine).flatten(), names=[f.name for f in column.type])
        times = rows.column(self.event_time).combine_chunks()
        if times.null_count:
            valid = times.is_valid()
            rows, times = rows.filter(valid), times.filter(valid)
            where = where[valid.to_numpy(zero_copy_only=False)] if where is not None else None
        return TimedRows(self, table, rows, times.view(pa.int64()).to_numpy(zero_copy_only=False), where)


@dataclass
class TimedRows:
    """Rows of a branch that all have an event time."""

    branch: StageBranch
    #: The batch they are of.
    batch: pa.Table
    rows: pa.Table
    times: NDArray[np.int64]
    #: Their numbers in the batch; None: they are all that it has with a time.
    where: NDArray[np.int64] | None

    def hold(self, watermark_us: int, now_us: int) -> bool:
        """None of them is late or bad."""
        if not len(self.times):
            return True
        least, most = int(self.times.min()), int(self.times.max())
        return least >= watermark_us and self.branch.limits.hold(self.rows, least, most, now_us)

    def without_bad(self, now_us: int) -> tuple[pa.Table | None, TimedRows]:
        """Bad rows, as they are recorded, and the rest."""
        if not len(self.times):
            return None, self
        bad, good = self.branch.limits.apart(self.rows, self.times, now_us, self._recorded())
        return bad, self if bad is None else self._only(good)

    def without_late(self, watermark_us: int) -> tuple[pa.Table | None, TimedRows]:
        late = self.times < watermark_us
        if not late.any():
            return None, self
        return self._recorded().filter(pa.array(late)), self._only(~late)

    def _recorded(self) -> pa.Table:
        """The same rows as the stage has collected them."""
        return self.rows if self.where is None else self.batch.take(pa.array(self.where))

    def _only(self, which: NDArray[np.bool_]) -> TimedRows:
        where = self.where[which] if self.where is not None else None
        return TimedRows(self.branch, self.batch, self.rows.filter(pa.array(which)), self.times[which], where)


def together(tables: Sequence[pa.Table | None]) -> pa.Table | None:
    """All that was set aside, in one table."""
    found = [table for table in tables if table is not None]
    return pa.concat_tables(found) if found else None


def narrowed(frame: DataFrame, branches: Sequence[StageBranch]) -> DataFrame:
    return frame.selectExpr(*(text for branch in branches for text in branch.needed()))

"""Rows that a stage has set aside, in the form that a changed pipeline gives them.

The rows of a stage with several outlets have a column for each of them (`source_rows` in pipeline/frames.py), those of
a stage with one are as they are. A run that goes on from a savepoint may feed another number of chains with the same
source. `verify` reads what was set aside in all of the history as one table, so earlier files are made anew in the form
of the new run. An outlet is found again by the operators that it feeds; rows of one that is dropped go with it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.model.plan import StagePlan
from holdfast.pipeline.recorded import recorded
from holdfast.spark.aside import BAD, LATE
from holdfast.spark.bad import OPERATOR, REASON

_BESIDE = (REASON, OPERATOR)


def reshape_aside(directory: Path, old: StagePlan, new: StagePlan) -> None:
    """What this stage has set aside so far, in a directory that no run uses yet."""
    if old.outlets == new.outlets:
        return
    for kind in (LATE, BAD):
        for one in recorded(directory / kind / old.id):
            table = reshaped(pq.read_table(one.path), old, new)
            if table is None:
                one.path.unlink()
                continue
            part = one.path.with_name(f".{one.path.name}.{os.getpid()}")
            pq.write_table(table, part)
            part.replace(one.path)


def reshaped(table: pa.Table, old: StagePlan, new: StagePlan) -> pa.Table | None:
    """None: all rows were of outlets that are not there any more."""
    parts = [
        _moved(table, outlet, to)
        for outlet in dict.fromkeys(old.outlets or ("",))
        if (to := _same_outlet(outlet, old, new)) is not None
    ]
    return pa.concat_tables(parts, promote_options="default") if parts else None


def _fed(stage: StagePlan) -> list[tuple[str, str]]:
    """Each operator that it feeds, and the outlet that it is fed from; "": there is only one."""
    outlets = stage.outlets or ("",) * len(stage.feeds)
    return [(name, outlet) for (name, _), outlet in zip(stage.feeds, outlets, strict=True)]


def _same_outlet(outlet: str, old: StagePlan, new: StagePlan) -> str | None:
    """The outlet of the new stage that feeds what this one fed."""
    fed = {name for name, its in _fed(old) if its == outlet}
    return next((its for name, its in _fed(new) if name in fed), None)


def _moved(table: pa.Table, outlet: str, to: str) -> pa.Table:
    """The rows of one outlet, under its new name."""
    beside = [name for name in table.column_names if name in _BESIDE]
    if outlet:
        table = table.filter(table[outlet].is_valid())
        whole = table[outlet].combine_chunks()
        fields = {field.name: whole.field(i) for i, field in enumerate(whole.type)}
    else:
        fields = {name: table[name].combine_chunks() for name in table.column_names if name not in _BESIDE}
    columns = {to: pa.StructArray.from_arrays(list(fields.values()), list(fields))} if to else fields
    return pa.table({**{name: table[name] for name in beside}, **columns})

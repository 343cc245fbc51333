"""Results that do not fit their type, set aside: told by state and input alone, so that every copy sets the same aside.

While an operator makes results each has a reason, which is null where the result fits; `split` parts them.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.operators.aggregates import Overflow

#: Column with the reason, behind the columns of a result.
REASON = "__reason"
#: What an operator does with a result that does not fit.
ERROR, WRAP, ASIDE = "error", "wrap", "aside"


def with_reasons(batch: pa.RecordBatch, overflows: list[tuple[str, Overflow]]) -> pa.RecordBatch:
    """Results, each with the reason why it does not fit, or null."""
    if not overflows:
        return batch.append_column(pa.field(REASON, pa.string()), pa.nulls(batch.num_rows, pa.string()))
    texts = np.full(batch.num_rows, None, object)
    for name, (where, type_) in reversed(overflows):  # the first that does not fit names the reason
        texts[where] = f"{name} does not fit {type_}; the value here has wrapped around or is null"
    return batch.append_column(pa.field(REASON, pa.string()), pa.array(texts, pa.string()))


def split(made: pa.Table) -> tuple[pa.Table, pa.Table | None]:
    """(what fits, what does not, with its reasons; None: everything fits)."""
    reasons = made.column(REASON)
    if reasons.null_count == made.num_rows:
        return made.drop_columns([REASON]), None
    bad = pc.field(REASON).is_valid()
    return made.filter(~bad).drop_columns([REASON]), made.filter(bad)


def schema_with_reasons(schema: pa.Schema) -> pa.Schema:
    return schema.append(pa.field(REASON, pa.string()))

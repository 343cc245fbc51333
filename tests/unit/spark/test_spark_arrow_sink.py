"""What an Arrow sink says when the user's function fails."""

from __future__ import annotations

import pyarrow as pa
import pytest

from holdfast.errors import HoldfastError, one_line
from holdfast.pipeline import SinkBatch
from holdfast.spark.arrow_sink import SAID_MAX, FunctionWriter

BATCH = SinkBatch(run="r-1", sink="out", number=7, positions={})


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("no room\nfor this batch"), "Batch 7, 2 rows: ValueError: no room for this batch"),
        (SystemExit("bye"), "Batch 7, 2 rows: SystemExit: bye"),
        (KeyError("x" * 10_000), "KeyError: 'xxx"),
    ],
)
def test_what_a_function_raises_is_one_line_that_names_batch_and_error(error: BaseException, said: str):
    def failing(table: pa.Table, batch: SinkBatch) -> None:
        raise error

    with pytest.raises(HoldfastError, match="stage out: its function failed") as raised:
        FunctionWriter(failing).write(pa.table({"a": [1, 2]}), BATCH)
    assert said in raised.value.detail
    assert len(one_line(raised.value).splitlines()) == 1
    assert len(raised.value.detail) < SAID_MAX + 100
    assert raised.value.__cause__ is error


def test_what_a_function_gives_back_does_not_matter():
    given: list[object] = []
    FunctionWriter(lambda table, batch: given.append((table.num_rows, batch.key))).write(pa.table({"a": [1]}), BATCH)
    assert given == [(1, "r-1/out/7")]

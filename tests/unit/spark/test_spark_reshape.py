"""What a stage has set aside, in the form of a pipeline that feeds another number of chains."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.model.plan import StagePlan
from holdfast.spark.bad import OPERATOR, REASON
from holdfast.spark.reshape import reshape_aside, reshaped

ONE = StagePlan(id="packets", kind="source", feeds=(("talkers", 0),))
TWO = StagePlan(id="packets", kind="source", feeds=(("talkers", 0), ("large", 0)), outlets=("talkers", "large"))
OTHER = StagePlan(
    id="packets", kind="source", feeds=(("small", 0), ("large", 0), ("talkers", 0)), outlets=("small", "large", "small")
)
ROWS = [{"src": "a", "bytes": 1}, {"src": None, "bytes": 2}]
#: What a stage of two outlets records: all of it has one schema.
WHOLE = pa.schema(
    [
        ("talkers", pa.struct([("src", pa.string()), ("bytes", pa.int64())])),
        ("large", pa.struct([("bytes", pa.int64())])),
    ]
)


def test_rows_of_the_only_outlet_get_a_column_of_their_own():
    found = reshaped(pa.Table.from_pylist(ROWS), ONE, TWO)
    assert found is not None
    assert found.to_pylist() == [{"talkers": row} for row in ROWS]


def test_rows_of_an_outlet_that_is_left_alone_are_as_they_are_and_those_of_the_other_one_go():
    table = pa.Table.from_pylist([{"talkers": ROWS[0]}, {"large": {"bytes": 7}}, {"talkers": ROWS[1]}], WHOLE)
    found = reshaped(table, TWO, ONE)
    assert found is not None
    assert found.to_pylist() == ROWS


def test_an_outlet_is_found_again_by_what_it_feeds():
    table = pa.Table.from_pylist([{"talkers": ROWS[0]}, {"large": {"bytes": 7}}], WHOLE)
    found = reshaped(table, TWO, OTHER)
    assert found is not None
    assert found.to_pylist() == [{"small": ROWS[0], "large": None}, {"small": None, "large": {"bytes": 7}}]


@pytest.mark.parametrize("kind", ["late", "bad"])
def test_files_are_made_anew_and_what_is_beside_the_rows_stays(tmp_path: Path, kind: str):
    folder = tmp_path / kind / "packets"
    folder.mkdir(parents=True)
    rows = [{REASON: "too long", OPERATOR: "talkers", **row} for row in ROWS] if kind == "bad" else ROWS
    for name in ("batch=3.parquet", "batch=5.parquet"):
        pq.write_table(pa.Table.from_pylist(rows), folder / name)
    reshape_aside(tmp_path, ONE, TWO)
    assert sorted(path.name for path in folder.iterdir()) == ["batch=3.parquet", "batch=5.parquet"]
    (first, _) = pq.read_table(folder / "batch=3.parquet").to_pylist()
    assert first["talkers"] == ROWS[0]
    assert first.get(REASON) == ("too long" if kind == "bad" else None)
    gone = StagePlan(id="packets", kind="source", feeds=(("x", 0), ("y", 0)), outlets=("x", "y"))
    for path in folder.iterdir():
        pq.write_table(pa.Table.from_pylist([{"talkers": row} for row in ROWS], WHOLE), path)
    reshape_aside(tmp_path, TWO, gone)
    assert list(folder.iterdir()) == []

"""Rows as records of a topic: any table gives JSON that says the same."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.pipeline.kafka import KafkaTarget
from holdfast.spark.kafka_rows import as_json, as_text, records_of

TIME = datetime(1970, 1, 1, tzinfo=UTC)
KINDS = {
    "s": (pa.string(), st.text()),
    "i": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "f": (pa.float64(), st.floats()),
    "b": (pa.bool_(), st.booleans()),
    "d": (pa.date32(), st.dates()),
    "t": (pa.timestamp("us", "UTC"), st.integers(-(10**16), 10**17).map(lambda us: TIME + timedelta(microseconds=us))),
    "c": (pa.decimal128(20, 4), st.integers(-(10**15), 10**15).map(lambda n: Decimal(n).scaleb(-4))),
}
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in KINDS.items()])
ROWS = st.lists(st.fixed_dictionaries({name: st.none() | values for name, (_, values) in KINDS.items()}), max_size=20)


def target(**said) -> KafkaTarget:
    return KafkaTarget(topic="out", bootstrap="kafka:9092", **{"key": None, "value": None, **said})


def meant(text: bytes) -> dict:
    """What Spark's `from_json` makes of it, with the schema of the results."""
    row = json.loads(text, parse_float=str, parse_int=str)
    read = {
        "i": int,
        "f": float,
        "d": date.fromisoformat,
        "t": lambda text: datetime.fromisoformat(text.replace("Z", "+00:00")),
        "c": Decimal,
    }
    return {name: value if value is None or name not in read else read[name](value) for name, value in row.items()}


def same(mine, right) -> bool:
    return mine == right or (isinstance(right, float) and math.isnan(right) and math.isnan(mine))


@given(ROWS)
def test_json_of_any_rows_says_what_they_say(rows):
    table = pa.Table.from_pylist(rows, SCHEMA)
    _, values = records_of(target(), table)
    found = [meant(value) for value in values if value is not None]
    assert len(found) == len(rows)
    for mine, right in zip(found, table.to_pylist(), strict=True):
        assert list(mine) == SCHEMA.names
        assert all(same(mine[name], right[name]) for name in SCHEMA.names), (mine, right)


def test_a_key_is_a_column_as_it_is_or_several_as_json():
    table = pa.table({"k": ["a", None], "n": pa.array([1, 2], pa.int64()), "raw": pa.array([b"\xff", b"\x00"])})
    assert records_of(target(key="k", value="n"), table) == ([b"a", None], [b"1", b"2"])
    assert records_of(target(value="raw"), table) == ([None, None], [b"\xff", b"\x00"])
    keys, values = records_of(target(key=("n", "k"), value=("k",)), table)
    assert keys == [b'{"n":1,"k":"a"}', b'{"n":2,"k":null}']
    assert values == [b'{"k":"a"}', b'{"k":null}']


def test_a_table_in_pieces_and_one_without_rows_are_written_too():
    pieces = pa.chunked_array([["a"], [], ["b", "c"]], pa.string())
    assert as_json(pa.table({"k": pieces}), ("k",)).to_pylist() == ['{"k":"a"}', '{"k":"b"}', '{"k":"c"}']
    assert as_json(pa.table({"k": pa.array([], pa.string())}), ("k",)).to_pylist() == []


@pytest.mark.parametrize(
    ("number", "text"), [(float("nan"), "NaN"), (float("inf"), "Infinity"), (-math.inf, "-Infinity")]
)
def test_what_is_no_number_has_the_names_that_spark_knows(number, text):
    column = pa.chunked_array([[number, 0.5, None]], pa.float64())
    assert as_text(column).to_pylist() == [text, "0.5", None]
    assert as_json(pa.table({"f": column}), ("f",))[0].as_py() == f'{{"f":"{text}"}}'

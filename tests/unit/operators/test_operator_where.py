"""A join's extra condition: SQL's meaning, on Arrow, without Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest

from holdfast.errors import ConfigError
from holdfast.operators.where import predicate

SCHEMA = pa.schema(
    [("a", pa.int64()), ("b", pa.int64()), ("s", pa.string()), ("f", pa.bool_()), ("odd name", pa.int64())]
)
ROWS = [
    {"a": 1, "b": 2, "s": "x", "f": True, "odd name": 5},
    {"a": 2, "b": 2, "s": "it's", "f": False, "odd name": 5},
    {"a": None, "b": 2, "s": None, "f": None, "odd name": None},
]


def holds(condition):
    batch = pa.RecordBatch.from_pylist(ROWS, schema=SCHEMA)
    return predicate(condition, SCHEMA, "pairs")(batch).to_pylist()


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("a < b", [True, False, None]),
        ("a = b", [False, True, None]),
        ("a == b", [False, True, None]),
        ("a <> b", [True, False, None]),
        ("a != b", [True, False, None]),
        ("not a >= b", [True, False, None]),
        ("a + 1 <= b", [True, False, None]),
        ("a * 2 - 1 = b - 1", [True, False, None]),
        ("-a < 0", [True, True, None]),
        ("s = 'it''s'", [False, True, None]),
        ("s is null", [False, False, True]),
        ("s is not null AND a = 1", [True, False, False]),
        ("f", [True, False, None]),
        ("f or a is null", [True, False, True]),
        ("a = 1 or a = 2 and b = 3", [True, False, None]),
        ("(a = 1 or a = 2) and b = 2", [True, True, None]),
        ("`odd name` > 4.5", [True, True, None]),
        ("true", [True, True, True]),
        ("a = null", [None, None, None]),
    ],
)
def test_a_condition_means_what_it_means_in_sql(condition, expected):
    assert holds(condition) == expected


@pytest.mark.parametrize(
    ("condition", "what"),
    [
        ("a < c", "names no column 'c'"),
        ("a <", "cannot be understood"),
        ("a < b)", "cannot be understood"),
        ("(a < b", "cannot be understood"),
        ("a ; b", "cannot be understood"),
        ("abs(a) < b", "names no column 'abs'"),
        ("a + b", "is not a condition"),
        ("a < s", "cannot be computed"),
        ("s is", "cannot be understood"),
    ],
)
def test_what_cannot_be_understood_is_refused_before_anything_starts(condition, what):
    with pytest.raises(ConfigError, match=f"pairs: .*{what}"):
        predicate(condition, SCHEMA, "pairs")

"""What an operator refuses, and what it says: what happened, the detail, and a hint that helps."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from support.batches import SECOND, TIME, batch, finish

from holdfast.errors import ConfigError, HoldfastError, InputError
from holdfast.operators import (
    LEFT,
    RIGHT,
    Agg,
    CountWindow,
    CountWindowAggregate,
    Join,
    MergeableAggregate,
    SameWindow,
    Union,
    Watermarks,
    Window,
    WindowAggregate,
    Within,
    register,
)

SCHEMA = pa.schema([("ts", TIME), ("k", pa.string()), ("v", pa.int64()), ("f", pa.float64()), ("s", pa.string())])
TUMBLING = Window(10 * SECOND, 10 * SECOND)


def aggregate(schema=SCHEMA, event_time="ts", window=TUMBLING, by=("k",), **aggs) -> WindowAggregate:
    aggs = aggs or {"n": Agg("count")}
    return WindowAggregate("talkers", schema, event_time=event_time, window=window, by=list(by), aggs=aggs)


def said(error: pytest.ExceptionInfo[HoldfastError]) -> tuple[str, str, str]:
    return error.value.what, error.value.detail, error.value.hint


# -- set-up -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "make"),
    [
        ("K", lambda: aggregate(by=("K",))),
        ("nope", lambda: aggregate(total=Agg("sum", "nope"))),
        ("time", lambda: aggregate(event_time="time")),
    ],
)
def test_a_column_that_is_not_there_is_named_beside_those_that_are(column, make):
    with pytest.raises(ConfigError) as caught:
        make()
    assert said(caught) == (
        f"talkers: no column named {column!r}",
        "The input has ts, k, v, f, s.",
        "Names are case-sensitive.",
    )


def test_event_time_must_be_a_timestamp():
    with pytest.raises(ConfigError) as caught:
        aggregate(event_time="v")
    assert said(caught) == (
        "talkers: event time 'v' is not a timestamp",
        "It is int64.",
        "Cast it to timestamp in the stage.",
    )


@pytest.mark.parametrize(
    "type_",
    [
        pa.timestamp("ms"),
        pa.timestamp("ns", tz="UTC"),
        pa.list_(pa.int64()),
        pa.struct([("a", pa.int64())]),
        pa.uint64(),
        pa.float16(),
        pa.decimal256(50, 2),
        pa.dictionary(pa.int32(), pa.string()),
        pa.date64(),
        pa.duration("us"),
    ],
    ids=str,
)
@pytest.mark.parametrize("use", ["key", "value"])
def test_a_type_that_state_cannot_hold_is_refused_when_the_operator_is_made(type_, use):
    schema = pa.schema([("ts", TIME), ("x", type_)])
    with pytest.raises(ConfigError) as caught:
        aggregate(schema, by=("x",)) if use == "key" else aggregate(schema, by=(), most=Agg("max", "x"))
    assert caught.value.what == "talkers: column 'x' has a type that state cannot hold"
    assert caught.value.detail == f"It is {type_}."
    assert caught.value.hint.startswith("Cast it to boolean, an integer, float, double, decimal, date, timestamp (us)")


@pytest.mark.parametrize(("size", "step"), [(0, 1), (-1, 1), (10, 0), (10, -1), (10, 11)])
def test_a_window_that_makes_no_sense_is_refused(size, step):
    for kind, shard in ((Window, " us"), (CountWindow, "")):
        with pytest.raises(ConfigError) as caught:
            kind(size, step)
        assert f"step is {step}{shard}." in caught.value.detail
        assert caught.value.hint == "Both must be positive, and the step no longer than the window."


@pytest.mark.parametrize("name", ["k", "window_start", "window_end"])
def test_two_output_columns_of_one_name_are_refused(name):
    with pytest.raises(ConfigError) as caught:
        aggregate(**{name: Agg("count")})
    assert said(caught) == (f"talkers: two output columns are named {name!r}", "", "Rename one of them.")


@pytest.mark.parametrize("function", ["sum", "avg", "stddev", "stddev_pop"])
def test_arithmetic_on_what_is_no_number_is_refused(function):
    with pytest.raises(ConfigError) as caught:
        aggregate(x=Agg(function, "s"))
    assert said(caught) == (f"talkers: {function} of column 's' makes no sense", "It is string, not a number.", "")


def test_an_aggregate_that_does_not_exist_is_named_beside_those_that_do():
    with pytest.raises(ConfigError) as caught:
        aggregate(x=Agg("median", "v"))
    assert caught.value.what == "talkers: no aggregate named 'median'"
    assert caught.value.detail.startswith("There are count, sum, avg, stddev, stddev_pop, min, max, first, last")


def test_an_aggregate_without_its_column_says_how_to_write_it():
    with pytest.raises(ConfigError) as caught:
        aggregate(x=Agg("sum"))
    assert said(caught) == ("talkers: sum needs a column", "", 'Write Agg("sum", "x").')


def test_an_operator_without_aggregates_is_refused():
    with pytest.raises(ConfigError) as caught:
        WindowAggregate("talkers", SCHEMA, event_time="ts", window=TUMBLING, by=["k"], aggs={})
    assert said(caught) == ("talkers: no aggregate is given", "", 'For example total=Agg("count").')


def test_32_key_columns_are_too_many():
    schema = pa.schema([("ts", TIME), *((f"k{i}", pa.int8()) for i in range(32))])
    with pytest.raises(ConfigError) as caught:
        aggregate(schema, by=tuple(f"k{i}" for i in range(32)))
    assert said(caught) == ("talkers: too many key columns", "32; the limit is 31.", "")


def test_31_key_columns_all_null_or_not_are_told_apart():
    names = [f"k{i}" for i in range(31)]
    schema = pa.schema([("ts", TIME), *((n, pa.int8()) for n in names)])
    op = aggregate(schema, by=tuple(names))
    rows = [[None if i == j else 0 for j in range(31)] for i in range(32)]
    op.process(batch(schema, [0] * 32, *zip(*rows, strict=True)))
    assert len(finish(op)) == 32


def test_more_aggregates_than_one_word_has_flags_for_keep_apart():
    """Two bits each: 32 to a word. Every fourth column is null."""
    schema = pa.schema([("ts", TIME), *((f"v{i}", pa.int64()) for i in range(70))])
    aggs = {f"m{i}": Agg(("min", "first", "sum")[i % 3], f"v{i}") for i in range(70)}
    op = aggregate(schema, by=(), window=Window(10 * SECOND, SECOND), **aggs)
    op.process(batch(schema, [0, 0], *([None if i % 4 == 0 else i] * 2 for i in range(70))))
    (row,) = {r[2:] for r in finish(op)}
    assert list(row) == [None if i % 4 == 0 else i * (2 if i % 3 == 2 else 1) for i in range(70)]


# -- rows -------------------------------------------------------------------------------------------------------------


def test_a_schema_that_changes_in_mid_stream_is_refused_whole():
    op = aggregate(total=Agg("sum", "v"))
    good = batch(SCHEMA, [0], ["a"], [1], [0.0], ["x"])
    op.process(good)
    changed = good.set_column(2, "v", pa.array([1], pa.int32()))
    with pytest.raises(InputError) as caught:
        op.process(changed)
    assert said(caught) == (
        "talkers: the input's schema has changed",
        "Column 'v' should be int64, is int32.",
        "The batch was refused whole. Deploy a pipeline with the new schema.",
    )
    with pytest.raises(InputError, match="Column 'k' should be string, is missing"):
        op.process(good.drop_columns(["k"]))
    with pytest.raises(InputError, match=r"Column 'ts' should be timestamp\[us, tz=UTC\], is timestamp\[us\]"):
        op.process(good.set_column(0, "ts", good.column("ts").cast(pa.timestamp("us"))))
    assert finish(op) == [(0, 10 * SECOND, "a", 1)]


def test_columns_that_nobody_asked_for_may_come_and_go():
    op = aggregate(total=Agg("sum", "v"))
    op.process(batch(SCHEMA, [0], ["a"], [1], [0.0], ["x"]).select(["v", "ts", "k"]))
    assert finish(op) == [(0, 10 * SECOND, "a", 1)]


def test_late_rows_are_refused_with_the_first_of_them():
    op = aggregate(n=Agg("count"))
    op.on_watermark(100)
    with pytest.raises(InputError) as caught:
        op.process(batch(SCHEMA, [100, 99, 98], ["a"] * 3, [1] * 3, [0.0] * 3, ["x"] * 3))
    assert said(caught) == (
        "talkers: 2 rows are older than the watermark",
        "Row 1 is at 99 us, the watermark at 100.",
        "Lateness is decided in the stage; this batch was refused whole.",
    )
    assert finish(op) == []


def test_first_and_last_cannot_come_as_partial_aggregates():
    op = aggregate(a=Agg("first", "v"), b=Agg("last", "s"), c=Agg("count"))
    schema = pa.schema([("pane_start", TIME), ("k", pa.string()), ("c__count", pa.int64())])
    with pytest.raises(ConfigError) as caught:
        op.process_partial(batch(schema, [0], ["a"], [1]))
    assert said(caught) == (
        "talkers: a, b cannot be computed in part",
        "",
        "Send the rows themselves to this operator.",
    )


def test_a_partial_aggregate_must_start_at_a_pane_and_be_complete():
    op = aggregate(n=Agg("count"), total=Agg("sum", "f"))
    schema = pa.schema([("pane_start", TIME), ("k", pa.string()), ("n__count", pa.int64())])
    with pytest.raises(InputError) as caught:
        op.process_partial(batch(schema, [5], ["a"], [1]))
    assert said(caught)[:2] == (
        "talkers: a partial aggregate does not start at a pane",
        "Panes start at multiples of 10000000 us.",
    )
    with pytest.raises(InputError) as caught:
        op.process_partial(batch(schema, [0], ["a"], [1]))
    assert said(caught) == (
        "talkers: a partial aggregate lacks column 'total__sum'",
        "The batch has pane_start, k, n__count.",
        "Compute it with the expressions of partial_sql().",
    )


def test_a_late_partial_aggregate_is_one_whose_pane_has_passed_altogether():
    op = aggregate(n=Agg("count"), window=Window(10, 5))
    schema = pa.schema([("pane_start", TIME), ("k", pa.string()), ("n__count", pa.int64())])
    op.on_watermark(9)
    op.process_partial(batch(schema, [5], ["a"], [1]))  # the stage has dropped its late rows
    op.on_watermark(10)
    with pytest.raises(InputError, match="1 rows are older than the watermark"):
        op.process_partial(batch(schema, [5], ["a"], [1]))


def test_a_value_too_long_for_state_is_refused_with_its_row():
    op = aggregate()
    with pytest.raises(InputError) as caught:
        op.process(batch(SCHEMA, [0, 0], ["a", "b" * (1 << 24)], [1, 1], [0.0, 0.0], ["x", "x"]))
    assert said(caught) == (
        "column 'k' has a value that is too long for state",
        "Row 1 of the batch has 16777216 bytes; the limit is 16777215.",
        "Shorten it in the stage, for example with substring() or sha2().",
    )
    assert finish(op) == []


def test_empty_batches_and_columns_of_nulls_are_nothing_special():
    aggs = {f"{f}_{c}": Agg(f, c) for f in ("min", "max", "first", "last") for c in ("v", "f", "s")}
    for window in (TUMBLING, Window(10 * SECOND, 3 * SECOND)):
        op = aggregate(window=window, **aggs, total=Agg("sum", "v"), mean=Agg("avg", "f"), sd=Agg("stddev", "v"))
        op.process(batch(SCHEMA, [], [], [], [], []))
        op.process(batch(SCHEMA, [None, None], ["a", "b"], [1, 2], [0.0, 1.0], ["x", "y"]))
        assert op.rows_without_time == 2
        op.process(batch(SCHEMA, [0, 0], [None, None], [None, None], [None, None], [None, None]))
        out = finish(op)
        assert {r[2:] for r in out} == {(None,) * (1 + len(aggs) + 3)}


def test_slices_of_every_type_are_read_from_where_they_start():
    columns = {
        "i8": (pa.int8(), [9, 1, None, 3, 9]),
        "b": (pa.bool_(), [True, False, None, True, False]),
        "f": (pa.float32(), [9.0, 1.5, None, -0.0, 9.0]),
        "d": (pa.decimal128(38, 2), [Decimal(9), Decimal("-1.25"), None, Decimal(3), Decimal(9)]),
        "s": (pa.string(), ["pad", "one", None, "three" * 9, "pad"]),
        "l": (pa.large_string(), ["pad", "one", None, "three" * 9, "pad"]),
        "y": (pa.binary(), [b"pad", b"\x00", None, b"three" * 9, b"pad"]),
        "t": (TIME, [9, -1, None, 3, 9]),
        "n": (pa.timestamp("us"), [9, -1, None, 3, 9]),
        "c": (pa.date32(), [9, -1, None, 3, 9]),
    }
    schema = pa.schema([("ts", TIME), *((n, t) for n, (t, _) in columns.items())])
    names = list(columns)
    whole = batch(schema, [0] * 5, *(v for _, v in columns.values()))
    picks = {f"v_{n}": Agg("max", n) for n in names}
    cut, rebuilt = (aggregate(schema, by=tuple(names), **picks) for _ in range(2))
    cut.process(whole.slice(1, 3))
    copied = [pa.array(whole.column(i).slice(1, 3).to_pylist(), f.type) for i, f in enumerate(schema)]
    rebuilt.process(pa.RecordBatch.from_arrays(copied, schema=schema))
    assert finish(cut) == finish(rebuilt)
    again = aggregate(schema, by=tuple(names), **picks)
    again.process(whole.slice(1, 3))
    assert len(finish(again)) == 3


# -- joins and unions -------------------------------------------------------------------------------------------------

LEFT_ROWS = pa.schema([("a", TIME), ("x", pa.int64())])
RIGHT_ROWS = pa.schema([("b", TIME), ("y", pa.int64())])


def pairing(left=LEFT_ROWS, right=RIGHT_ROWS, times=("a", "b"), on=(("x", "y"),), how="inner") -> Join:
    return Join("pairs", left, right, times=times, on=list(on), window=Within(0, 10), how=how)


def test_join_keys_of_different_types_are_refused():
    right = pa.schema([("b", TIME), ("y", pa.int32())])
    with pytest.raises(ConfigError) as caught:
        pairing(right=right)
    assert said(caught) == (
        "pairs: keys 'x' and 'y' have different types",
        "int64 and int32.",
        "Cast one of them in the stage.",
    )


def test_a_join_checks_how_keys_names_and_times():
    with pytest.raises(ConfigError) as caught:
        pairing(how="full")
    assert said(caught)[:2] == ("pairs: how must be 'inner' or 'left_outer'", "It is 'full'.")
    with pytest.raises(ConfigError) as caught:
        pairing(on=())
    assert said(caught) == ("pairs: no key is given", "", 'For example on=[("src", "client")].')
    with pytest.raises(ConfigError) as caught:
        pairing(right=pa.schema([("a", TIME), ("y", pa.int64())]), times=("a", "a"))
    assert said(caught) == ("pairs: both sides have a column named 'a'", "", "Rename it in a stage before the join.")
    with pytest.raises(ConfigError, match="event time 'x' is not a timestamp"):
        pairing(times=("x", "b"))
    with pytest.raises(ConfigError, match="no column named 'z'"):
        pairing(on=(("z", "y"),))


def test_join_intervals_and_windows_must_hold_something():
    with pytest.raises(ConfigError) as caught:
        Within(5, 4)
    assert said(caught)[:2] == ("join interval is empty", "It goes from 5 us to 4 us.")
    with pytest.raises(ConfigError) as caught:
        SameWindow(0)
    assert said(caught)[:2] == ("join window must be positive", "It is 0 us.")


@pytest.mark.parametrize("which", [LEFT, RIGHT])
def test_a_join_refuses_late_rows_of_either_side(which):
    op = pairing()
    op.on_watermark(LEFT, 50)
    assert op.watermark == -(2**63), "the other side has said nothing yet"
    op.on_watermark(RIGHT, 60)
    with pytest.raises(InputError) as caught:
        op.process(which, batch(op.sides[which].schema, [50, 49], [1, 1]))
    assert said(caught)[:2] == (
        "pairs: 1 rows are older than the watermark",
        "Row 1 is at 49 us, the watermark at 50.",
    )
    assert len(op) == 0


def test_a_union_of_different_schemas_is_refused():
    union = Union("all", SCHEMA, 2)
    other = pa.schema([("ts", TIME), ("k", pa.string())])
    with pytest.raises(InputError) as caught:
        union.process(1, batch(other, [0], ["a"]))
    assert caught.value.what == "all: input 1 has another schema"
    assert "got {'ts': 'timestamp[us, tz=UTC]', 'k': 'string'}" in caught.value.detail
    assert caught.value.hint == "Select and cast the columns in the stage before the union."


def test_a_watermark_of_many_inputs_is_the_lowest_and_never_goes_back():
    watermarks = Watermarks(3)
    assert watermarks.combined == -(2**63)
    assert watermarks.on_watermark(0, 10) == -(2**63)
    watermarks.on_watermark(1, 7)
    assert watermarks.on_watermark(2, 5) == 5
    assert watermarks.on_watermark(2, 3) == 5
    assert watermarks.on_watermark(2, 30) == 7
    with pytest.raises(ConfigError, match="a union needs at least one input"):
        Watermarks(0)


# -- aggregates of one's own ------------------------------------------------------------------------------------------


def _add(a, b):
    a[0] += b[0]
    a[1] += b[1]


GEOMETRIC = MergeableAggregate(
    name="geometric_mean",
    width=2,
    identity=(0.0, 0.0),
    lift=lambda values, valid: np.column_stack(
        [np.where(valid, np.log(np.where(valid, values, 1.0)), 0.0), valid.astype(np.float64)]
    ),
    merge=_add,
    finish=lambda states: np.where(
        states[:, 1] > 0, np.exp(states[:, 0] / np.where(states[:, 1] > 0, states[:, 1], 1)), np.nan
    ),
)


@pytest.mark.parametrize("window", [TUMBLING, Window(10 * SECOND, 4 * SECOND)], ids=str)
def test_an_aggregate_of_ones_own_merges_over_batches_and_panes(window):
    register(GEOMETRIC)
    op = aggregate(window=window, mean=Agg("geometric_mean", "v"), n=Agg("count"))
    values = [1, 2, 4, 8, None, 32]
    for i, v in enumerate(values):
        op.process(batch(SCHEMA, [i * SECOND], ["a"], [v], [0.0], ["x"]))
    for start, end, _, mean, n in finish(op):
        inside = [v for i, v in enumerate(values) if start <= i * SECOND < end]
        numbers = [v for v in inside if v is not None]
        assert n == len(inside)
        assert mean == (pytest.approx(np.prod(numbers, dtype=float) ** (1 / len(numbers))) if numbers else None)


def test_an_aggregate_of_ones_own_works_in_count_windows_and_over_captures():
    register(GEOMETRIC)

    def make() -> CountWindowAggregate:
        aggs = {"mean": Agg("geometric_mean", "f"), "least": Agg("min", "v")}
        return CountWindowAggregate("c", SCHEMA, window=CountWindow(4, 2), by=["k"], aggs=aggs)

    op, image = make(), make()
    op.process(batch(SCHEMA, [0] * 3, ["a"] * 3, [1, 2, 3], [1.0, 2.0, 4.0], ["x"] * 3))
    image.paste(op.capture())
    for each in (op, image):
        out = each.process(batch(SCHEMA, [0] * 3, ["a"] * 3, [4, 5, 6], [8.0, 16.0, 32.0], ["x"] * 3))
        assert out.column("mean").to_pylist() == pytest.approx([64 ** (1 / 4), (4 * 8 * 16 * 32) ** (1 / 4)])
        assert out.column("least").to_pylist() == [1, 3]


def test_an_aggregate_of_ones_own_may_not_take_a_name_or_have_a_crooked_identity():
    with pytest.raises(ConfigError) as caught:
        register(MergeableAggregate("sum", 1, (0.0,), GEOMETRIC.lift, _add, GEOMETRIC.finish))
    assert said(caught) == ("aggregate 'sum' exists already", "", "Choose another name.")
    with pytest.raises(ConfigError) as caught:
        register(MergeableAggregate("crooked", 2, (0.0,), GEOMETRIC.lift, _add, GEOMETRIC.finish))
    assert said(caught)[:2] == (
        "aggregate 'crooked': the identity has the wrong width",
        "1 values for a state of 2.",
    )


def test_an_aggregate_of_ones_own_cannot_come_as_a_partial_one():
    register(GEOMETRIC)
    op = aggregate(mean=Agg("geometric_mean", "v"))
    schema = pa.schema([("pane_start", TIME), ("k", pa.string())])
    with pytest.raises(ConfigError, match="mean cannot be computed in part"):
        op.process_partial(batch(schema, [0], ["a"]))

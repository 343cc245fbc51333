"""Inputs that a hostile user would send. Each of these once gave a wrong answer, an obscure error or a crash."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from support.batches import SECOND, TIME, batch, brought_up, copy_into, finish, rows
from support.small_operators import NUMBERS, SLIDING, SMALL, TUMBLING, WORDS, aggregate, join

from holdfast.errors import ConfigError, InputError, MemoryLimitError, OverflowInWindowError
from holdfast.model.footprint import FootprintKind
from holdfast.operators import (
    FOREVER,
    LEFT,
    NEVER,
    RIGHT,
    Agg,
    CountWindow,
    CountWindowAggregate,
    MergeableAggregate,
    StateCapture,
    StateConfig,
    Window,
    register,
)

# -- lazy restore -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [TUMBLING, SLIDING])
def test_an_aggregate_restored_lazily_can_close_windows_before_it_is_given_a_row(window):
    op = aggregate(window=window, config=SMALL)
    op.process(batch(NUMBERS, range(2000), [i % 700 for i in range(2000)], range(2000)))
    lazy = copy_into(op, aggregate(window=window, config=SMALL), lazy=True)
    assert finish(lazy) == finish(op) != []


@pytest.mark.parametrize("how", ["inner", "left_outer"])
def test_a_join_restored_lazily_finds_expires_and_reports_the_rows_it_had(how):
    op = join(how=how, config=SMALL)
    left = op.sides[LEFT].schema
    op.process(LEFT, batch(left, range(900), [i % 500 for i in range(900)], range(900)))
    right = batch(op.sides[RIGHT].schema, [5, 6, 7], [1, 2, 3], [0, 0, 0])
    lazy = copy_into(op, join(how=how, config=SMALL), lazy=True)
    assert rows(lazy.process(RIGHT, right)) == rows(op.process(RIGHT, right)) != []
    again = copy_into(op, join(how=how, config=SMALL), lazy=True)
    assert finish(again) == finish(op)


# -- closing windows ----------------------------------------------------------------------------------------------


def test_a_close_that_failed_leaves_nothing_behind_for_the_next_one():
    op = aggregate(window=SLIDING, total=Agg("sum", "v"))
    start = aggregate(window=SLIDING, total=Agg("sum", "v"))
    op.process(batch(NUMBERS, [0, 0], [1, 1], [2**63 - 1, 1]))
    with pytest.raises(OverflowInWindowError):
        op.on_watermark(FOREVER)
    start.process(batch(NUMBERS, [0], [1], [7]))
    brought_up(start, op)
    assert {r[3] for r in finish(op)} == {7}


def test_an_overflow_at_a_close_changes_nothing_and_is_reported_again():
    op = aggregate(total=Agg("sum", "v"))
    op.process(batch(NUMBERS, [0, 0], [1, 1], [2**63 - 1, 1]))
    for _ in range(2):
        with pytest.raises(OverflowInWindowError) as caught:
            op.on_watermark(FOREVER)
        assert caught.value.what == "w: total does not fit bigint"
        assert caught.value.detail == "Window starting at 0, k=1; 1 such results."
        assert "overflow='wrap'" in caught.value.hint
    assert op.watermark == NEVER
    assert len(op.state) == 1


def test_closing_sliding_windows_of_long_strings_takes_a_full_state_as_it_is():
    """The windows are put together outside the state; a state at its limit must still be able to close them."""
    config = StateConfig(page_bytes=8192, limit_bytes=40 * 8192)
    op = aggregate(WORDS, window=SLIDING, config=config, most=Agg("max", "s"), least=Agg("min", "s"))
    taken = 0
    with suppress(MemoryLimitError):
        while True:
            # every pane replaces the value of the one before, in min or in max
            letters = [chr(ord("a") + (taken * 7 + j) % 26) * 300 for j in range(10)]
            op.process(batch(WORDS, [j * SECOND for j in range(10)], [f"key {taken}"] * 10, letters))
            taken += 1
    assert taken > 20
    closed = op.on_watermark(FOREVER)
    assert closed.num_rows == 19 * taken
    for value in closed.column("most").to_pylist() + closed.column("least").to_pylist():
        assert len(value) == 300
        assert len(set(value)) == 1


def test_count_windows_of_long_strings_complete_in_a_full_state():
    config = StateConfig(page_bytes=8192, limit_bytes=40 * 8192)
    op = CountWindowAggregate(
        "c", WORDS, window=CountWindow(40, 1), by=["k"], aggs={"most": Agg("max", "s")}, config=config
    )
    for i in range(40):
        letters = [chr(ord("a") + (i + j) % 26) * 600 for j in range(20)]
        out = op.process(batch(WORDS, [0] * 20, ["k"] * 20, letters))
        assert all(v == v[0] * 600 for v in out.column("most").to_pylist())


def test_closing_a_day_of_windows_at_once_takes_memory_for_some_of_them_at_a_time():
    op = aggregate(window=Window(86_400 * SECOND, SECOND))
    n = 60
    op.process(batch(NUMBERS, [i * SECOND for i in range(n)], [0] * n, [0] * n))
    op.on_watermark(SECOND)  # compiles
    tracemalloc.start()
    closed = op.on_watermark(FOREVER)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert closed.column("n").to_numpy().sum() == n * 86_400 - 1  # the first watermark has closed one, of one row
    assert peak < 150 << 20


@pytest.mark.parametrize("window", [TUMBLING, SLIDING])
def test_a_watermark_just_above_never_is_a_watermark_like_any_other(window):
    op = aggregate(window=window)
    for watermark in (NEVER + 1, NEVER + 2, NEVER + 12 * SECOND):
        assert op.on_watermark(watermark).num_rows == 0
    op.process(batch(NUMBERS, [0], [1], [1]))
    assert len(finish(op)) == window.size_us // window.step_us


def test_a_watermark_that_goes_back_is_ignored():
    op = aggregate()
    op.process(batch(NUMBERS, [0], [1], [1]))
    assert op.on_watermark(5).num_rows == 0
    assert op.on_watermark(3).num_rows == 0
    assert op.watermark == 5
    op.process(batch(NUMBERS, [5], [1], [1]))  # exactly at the watermark: not late
    assert rows(op.on_watermark(10 * SECOND)) == [(0, 10 * SECOND, 1, 2)]


def test_a_row_exactly_at_a_windows_end_belongs_to_the_next_window():
    op = aggregate()
    op.process(batch(NUMBERS, [10 * SECOND - 1, 10 * SECOND], [1, 1], [1, 1]))
    assert rows(op.on_watermark(10 * SECOND)) == [(0, 10 * SECOND, 1, 1)]
    assert finish(op) == [(10 * SECOND, 20 * SECOND, 1, 1)]


# -- numbers ------------------------------------------------------------------------------------------------------


def decimals(precision: int, scale: int) -> pa.Schema:
    return pa.schema([("ts", TIME), ("d", pa.decimal128(precision, scale))])


def test_an_average_of_decimals_that_does_not_fit_is_an_error_and_never_another_number():
    schema = decimals(38, 0)
    for value in (10**34, 17 * 10**33, 9 * 10**37, -(9 * 10**37), 34028236692093846346337460743176821):
        op = aggregate(schema, by=(), mean=Agg("avg", "d"))
        op.process(batch(schema, [0], [Decimal(value)]))
        with pytest.raises(OverflowInWindowError, match="mean does not fit decimal128"):
            op.on_watermark(FOREVER)


def test_decimals_that_overflow_are_null_when_told_to_wrap_as_in_spark_without_ansi():
    schema = decimals(38, 0)
    op = aggregate(schema, by=(), overflow="wrap", total=Agg("sum", "d"), mean=Agg("avg", "d"))
    op.process(batch(schema, [0, 0], [Decimal(9 * 10**37)] * 2))
    assert finish(op) == [(0, 10 * SECOND, None, None)]


def test_integers_wrap_around_like_a_java_long_when_told_so():
    op = aggregate(overflow="wrap", total=Agg("sum", "v"))
    op.process(batch(NUMBERS, [0, 0, 0], [1, 1, 1], [2**63 - 1, 1, 5]))
    assert finish(op) == [(0, 10 * SECOND, 1, -(2**63) + 5)]


def test_a_sum_that_leaves_the_range_on_the_way_but_comes_back_is_exact():
    op = aggregate(total=Agg("sum", "v"), mean=Agg("avg", "v"))
    op.process(batch(NUMBERS, [0] * 4, [1] * 4, [2**63 - 1, 2**63 - 1, -(2**63), -(2**63) + 3]))
    assert finish(op) == [(0, 10 * SECOND, 1, 1, 0.25)]


def test_an_aggregate_of_ones_own_sees_decimals_as_numbers():
    register(
        MergeableAggregate(
            name="range_of",
            width=2,
            identity=(np.inf, -np.inf),
            lift=lambda values, valid: np.where(
                valid[:, None], np.column_stack([values, values]), np.array([[np.inf, -np.inf]])
            ),
            merge=_merge_range,
            finish=lambda states: np.where(states[:, 1] >= states[:, 0], states[:, 1] - states[:, 0], np.nan),
        )
    )
    schema = decimals(38, 2)
    op = aggregate(schema, by=(), spread=Agg("range_of", "d"))
    op.process(batch(schema, [0, 0, 0], [Decimal("-1.50"), None, Decimal("2.25")]))
    assert finish(op) == [(0, 10 * SECOND, 3.75)]


def _merge_range(a, b):
    a[0] = min(a[0], b[0])
    a[1] = max(a[1], b[1])


# -- partial aggregates -------------------------------------------------------------------------------------------


def test_a_partial_aggregate_of_rows_without_event_time_is_dropped_as_those_rows_are():
    op = aggregate()
    schema = pa.schema([("pane_start", TIME), ("k", pa.int64()), ("n__count", pa.int64())])
    op.process_partial(batch(schema, [0, None], [1, 1], [3, 4]))
    assert finish(op) == [(0, 10 * SECOND, 1, 3)]


def test_a_partial_aggregate_of_another_type_is_refused_and_not_cut_to_fit():
    op = aggregate(total=Agg("sum", "d"), schema=decimals(10, 2), by=())
    column = next(c for c in op.partial_sql() if c.startswith("total__"))
    schema = pa.schema([("pane_start", TIME), (column, pa.decimal128(20, 4))])
    with pytest.raises(InputError) as caught:
        op.process_partial(batch(schema, [0], [Decimal("1.2345")]))
    assert caught.value.what == f"w: partial aggregate {column!r} has another type"
    assert caught.value.detail == "It should be decimal128(20, 2), is decimal128(20, 4)."
    assert "partial_sql()" in caught.value.hint


def test_a_column_name_with_a_backtick_does_not_break_the_sql_of_a_stage():
    schema = pa.schema([("ts", TIME), ("a`b", pa.int64())])
    op = aggregate(schema, by=("a`b",), total=Agg("max", "a`b"))
    sql = op.partial_sql()
    assert sql["a`b"] == "`a``b`"
    assert sql["total__max"] == "max(`a``b`)"


# -- captures -----------------------------------------------------------------------------------------------------


def loaded(config=None):
    op = aggregate(WORDS, config=config, most=Agg("max", "s"))
    op.process(batch(WORDS, range(50), [f"{i}" * 20 for i in range(50)], ["v" * (i + 1) for i in range(50)]))
    return op


def test_a_flipped_bit_anywhere_in_a_capture_is_an_input_error():
    raw = loaded().capture().to_bytes()
    for at in range(0, len(raw), 7):
        garbled = bytearray(raw)
        garbled[at] ^= 1 << (at % 8)
        with pytest.raises(InputError, match="a capture cannot be read"):
            StateCapture.from_bytes(bytes(garbled))


def test_a_capture_that_was_cut_short_is_an_input_error():
    raw = loaded().capture().to_bytes()
    for length in (0, 1, 7, 8, 9, 100, len(raw) - 1):
        with pytest.raises(InputError, match="a capture cannot be read") as caught:
            StateCapture.from_bytes(raw[:length])
        assert caught.value.hint == "The primary will bring up the image anew."


def test_a_capture_of_an_operator_with_other_columns_is_refused_even_if_its_records_have_the_same_size():
    """A string and a decimal take two words each: taken for the other, one would be read as an address."""
    words = pa.schema([("ts", TIME), ("k", pa.string())])
    numbers = pa.schema([("ts", TIME), ("k", pa.decimal128(38, 0))])
    op, image = aggregate(numbers), aggregate(words)
    op.process(batch(numbers, [0], [Decimal(-1)]))
    image.process(batch(words, [0], ["kept"]))
    with pytest.raises(InputError) as caught:
        image.paste(op.capture())
    assert caught.value.what == "w: a capture of another pipeline"
    assert "same pipeline" in caught.value.hint
    assert finish(image) == [(0, 10 * SECOND, "kept", 1)]


def test_a_capture_from_a_pool_with_other_pages_is_refused():
    """Records keep their numbers, and a number is a page and a slot."""
    op, image = loaded(StateConfig(page_bytes=65536)), loaded(StateConfig(page_bytes=8192))
    before = finish(copy_into(image, aggregate(WORDS, config=image.config, most=Agg("max", "s"))))
    with pytest.raises(InputError, match="a capture of another pipeline"):
        image.paste(op.capture())
    assert finish(image) == before


def test_an_image_with_less_memory_than_its_primary_says_so():
    big = StateConfig(page_bytes=8192, limit_bytes=400 * 8192)
    op, image = aggregate(config=big), aggregate(config=StateConfig(page_bytes=8192, limit_bytes=20 * 8192))
    op.process(batch(NUMBERS, [0] * 50_000, range(50_000), [0] * 50_000))
    with pytest.raises(MemoryLimitError):
        image.paste(op.capture())
    assert len(image.state) == 0
    assert image.captured == -1


def test_a_lost_capture_is_noticed_and_chunks_mend_it():
    op, image = aggregate(), aggregate()
    op.process(batch(NUMBERS, [0], [1], [1]))
    image.paste(op.capture())
    op.process(batch(NUMBERS, [0], [2], [1]))
    lost = op.capture().number
    op.process(batch(NUMBERS, [0], [3], [1]))
    before = rows(copy_into(image, aggregate()).on_watermark(FOREVER))
    with pytest.raises(InputError, match="does not start where the image stands") as caught:
        image.paste(op.capture())
    assert caught.value.detail == f"It continues capture {lost}; the image has {image.captured} (-1: nothing)."
    assert rows(copy_into(image, aggregate()).on_watermark(FOREVER)) == before
    brought_up(op, image)
    assert finish(image) == finish(op)


def test_footprints_follow_the_state_over_a_restore():
    op = aggregate()
    op.keep_footprints()
    op.process(batch(NUMBERS, [0], [1], [1]))
    other = aggregate()
    other.process(batch(NUMBERS, [0, 0, 0], [1, 2, 3], [1, 1, 1]))
    copy_into(other, op)
    assert op.footprints is not None
    left = op.leave(1, 0, 0)
    assert ([(one.kind, len(one)) for one in left.footprints], left.windows) == ([(FootprintKind.OPEN, 3)], 3)
    op.process(batch(NUMBERS, [0], [4], [1]))
    left = op.leave(2, 0, 0)
    assert ([(one.kind, len(one)) for one in left.footprints], left.windows) == ([(FootprintKind.OPEN, 1)], 4)


def test_footprints_follow_the_state_when_a_stand_in_stands_down():
    op = aggregate()
    op.process(batch(NUMBERS, [0], [1], [1]))
    op.keep_footprints()
    op.leave(1, 0, 0)
    op.fork()
    op.process(batch(NUMBERS, [0, 0], [2, 3], [1, 1]))
    op.leave(2, 0, 0)
    op.settle(keep=False)
    left = op.leave(3, 0, 0)
    assert ([(one.kind, len(one)) for one in left.footprints], left.windows) == ([(FootprintKind.OPEN, 1)], 1)


# -- what comes in ------------------------------------------------------------------------------------------------


def test_a_batch_that_is_refused_does_not_count_its_rows_without_time():
    op = aggregate()
    op.on_watermark(10)
    with pytest.raises(InputError):
        op.process(batch(NUMBERS, [None, 0], [1, 1], [1, 1]))
    assert op.rows_without_time == 0


@pytest.mark.parametrize("make", ["table", "dictionary"])
def test_chunked_and_dictionary_encoded_input_is_refused_by_name(make):
    op = aggregate(WORDS)
    given = batch(WORDS, [0], ["a"], ["b"])
    if make == "table":
        with pytest.raises(InputError) as caught:
            op.process(pa.Table.from_batches([given]))
        assert caught.value.what == "w: the input is not a record batch"
        assert "to_batches()" in caught.value.hint
    else:
        encoded = given.set_column(1, "k", given.column("k").dictionary_encode())
        with pytest.raises(InputError, match="schema has changed"):
            op.process(encoded)
    assert finish(op) == []


@pytest.mark.parametrize("column", ["window_start", "window_end"])
def test_a_key_named_like_an_output_column_is_refused(column):
    schema = pa.schema([("ts", TIME), (column, pa.int64())])
    with pytest.raises(ConfigError, match=f"two output columns are named '{column}'"):
        aggregate(schema, by=(column,))
    with pytest.raises(ConfigError, match=f"two output columns are named '{column}'"):
        CountWindowAggregate("w", schema, window=CountWindow(2, 1), by=[column], aggs={"n": Agg("count")})


def test_a_key_that_is_named_twice_is_refused():
    with pytest.raises(ConfigError, match="two output columns are named 'k'"):
        aggregate(by=("k", "k"))


def test_count_windows_check_their_names_and_settings_too():
    with pytest.raises(ConfigError, match="two output columns are named 'k'"):
        CountWindowAggregate("c", NUMBERS, window=CountWindow(2, 1), by=["k"], aggs={"k": Agg("count")})
    with pytest.raises(ConfigError, match="overflow must be 'error' or 'wrap'"):
        CountWindowAggregate(
            "c", NUMBERS, window=CountWindow(2, 1), by=["k"], aggs={"n": Agg("count")}, overflow="ignore"
        )

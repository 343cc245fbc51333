"""Behind a gap: windows that rows before it could have a part in are not emitted; everything else is."""

from __future__ import annotations

import pyarrow as pa
import pytest

from holdfast.operators import LEFT, RIGHT, Agg, Join, SameWindow, Window, WindowAggregate, Within

TIME = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("ts", TIME), ("k", pa.int64()), ("v", pa.int64())])
RIGHT_SCHEMA = pa.schema([("rts", TIME), ("rk", pa.int64()), ("rv", pa.int64())])


def batch(*rows: tuple[int, int]) -> pa.RecordBatch:
    times, keys = [time for time, _ in rows], [key for _, key in rows]
    return pa.record_batch([pa.array(times, TIME), pa.array(keys), pa.array([1] * len(rows))], SCHEMA)


@pytest.mark.parametrize("step", [100, 50])
def test_an_aggregate_emits_no_window_that_begins_before_a_gap_ends(step):
    def run(hidden: int | None) -> list:
        op = WindowAggregate("a", SCHEMA, event_time="ts", window=Window(100, step), by=["k"], aggs={"n": Agg("count")})
        op.process(batch(*((time, 1) for time in range(0, 600, 25))))
        if hidden is not None:
            op.hidden = hidden
        return op.on_watermark(300).to_pylist() + op.on_watermark(700).to_pylist()

    micros = pa.scalar(120, TIME).as_py()
    everything, rest = run(None), run(120)
    assert rest == [row for row in everything if row["window_start"] >= micros]
    assert len(everything) > len(rest) > 0


@pytest.mark.parametrize("window", [Within(-50, 50), SameWindow(100)])
def test_a_join_leaves_out_rows_before_a_gap_and_nulls_that_it_cannot_be_sure_of(window):
    def run(hidden: int | None) -> list:
        times = ("ts", "rts")
        op = Join("j", SCHEMA, RIGHT_SCHEMA, times=times, on=[("k", "rk")], window=window, how="left_outer")
        if hidden is not None:
            op.hidden = hidden
        out = op.process(LEFT, batch((110, 1), (130, 2), (190, 3), (260, 4))).to_pylist()
        out += op.process(RIGHT, batch((115, 1), (135, 2), (195, 9)).rename_columns(RIGHT_SCHEMA.names)).to_pylist()
        return out + op.on_watermark(LEFT, 1000).to_pylist() + op.on_watermark(RIGHT, 1000).to_pylist()

    everything, rest = run(None), run(120)
    assert [(row["k"], row["rk"]) for row in everything] == [(1, 1), (2, 2), (3, None), (4, None)]
    # a partner of row 3 (at 190) could have come at 140 or later, or in its window from 100 on
    right = [(2, 2), (3, None), (4, None)] if isinstance(window, Within) else [(2, 2), (4, None)]
    assert [(row["k"], row["rk"]) for row in rest] == right

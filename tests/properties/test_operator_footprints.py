"""Footprints of windows in a log, and a replay of rows, are the operator (cec §II)."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from support.batches import TIME, batch

from holdfast.operators import NEVER, Agg, StateConfig, Window, WindowAggregate

CONFIG = StateConfig(page_bytes=4096, limit_bytes=1024 * 4096)
NUMBERS = pa.schema([("ts", TIME), ("k", pa.int64()), ("v", pa.int64())])
STEPS = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(0, 30), st.integers(0, 4), st.integers(-9, 9)), max_size=8),
        st.sampled_from([0, 0, 5, 20]),
        st.integers(0, 3),
        st.booleans(),
    ),
    min_size=1,
    max_size=20,
)


@settings(max_examples=60, deadline=None)
@given(steps=STEPS, tail=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 4), st.integers(-9, 9)), max_size=8))
def test_the_log_of_footprints_and_a_replay_of_rows_are_the_operator(steps, tail):
    """cec §II.B: load the newest footprint of every open window, replay from the oldest; each ignores what it knows.

    `open_windows` of the newest footprint is how many different windows a walk back through the log has to find.
    """
    op = WindowAggregate(
        "w",
        NUMBERS,
        event_time="ts",
        window=Window(10, 5),
        by=["k"],
        aggs={"n": Agg("count"), "total": Agg("sum", "v")},
        config=CONFIG,
    )
    footprints = op.keep_footprints()
    log, seen = [], []
    for given_rows, rise, checks, write in [*steps, (tail, 0, 0, False)]:
        placed = [(max(op.watermark, 0) + t, k, v) for t, k, v in given_rows]
        op.process(batch(NUMBERS, *(zip(*placed, strict=True) if placed else ([], [], []))))
        seen += placed
        if rise:
            op.on_watermark(max(op.watermark, 0) + rise)
        if write:
            log += footprints.take(op.rows, checks)
    assert _recovered(log, seen, op) == _live(op)


def _live(op: WindowAggregate) -> dict[tuple[int, int], tuple[int, int]]:
    slots = op.state.map.slots
    return {(int(r[1]), int(r[2])): (int(r[4]), int(r[5])) for r in slots.gather(slots.rids(), 0, slots.record_words)}


def _recovered(log: list, seen: list[tuple[int, int, int]], op: WindowAggregate) -> dict:
    pane_us, record_words = op.window.pane_us, op.state.map.slots.record_words
    found: dict[tuple[int, int], tuple[int, int, int]] = {}
    closed_below = NEVER
    for footprint in reversed(log):
        if footprint.kind == "close":
            closed_below = max(closed_below, footprint.closed_below)
            continue
        for record in footprint.rows(record_words):
            window = (int(record[1]), int(record[2]))
            if window not in found and window[0] >= closed_below:
                found[window] = (int(record[4]), int(record[5]), footprint.position)
    if log:
        assert len(found) == log[-1].open_windows
    written = log[-1].position if log else 0
    oldest = min([p for _, _, p in found.values()] + [written])
    states = {w: (n, total) for w, (n, total, _) in found.items()}
    for position in range(oldest, len(seen)):
        ts, k, v = seen[position]
        window = (ts // pane_us, k)
        if window[0] < closed_below or (window in found and position < found[window][2]):
            continue  # it is closed, or it knows this row
        if window not in found and position < written:
            continue  # opened and closed before the log's end
        n, total = states.get(window, (0, 0))
        states[window] = (n + 1, total + v)
    # panes that were dropped after the newest footprint was written
    return {w: s for w, s in states.items() if w[0] >= op._dropped_below}

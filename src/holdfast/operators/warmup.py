"""Compile every kernel before rows flow: at deploy time, never during a fail-over.

Kernels are compiled when they are first called, for the types they are called with. So this runs tiny operators over
all kinds of columns through everything an operator can do. The first time on a machine it takes about a minute; from
then on kernels come from the disk (`kernelcache.py`) and it takes a second or two.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.errors import check
from holdfast.operators.aggregate import Window, WindowAggregate
from holdfast.operators.aggregates import Agg
from holdfast.operators.capture import StateCapture
from holdfast.operators.chunk import START, Chunk
from holdfast.operators.count_window import CountWindow, CountWindowAggregate
from holdfast.operators.join import LEFT, RIGHT, Join, Within
from holdfast.operators.operator import FOREVER, StateConfig, StatefulOperator
from holdfast.state.checkpoint import Checkpoint, write
from holdfast.state.transfer import copy_out, find_damage, pages_view, prepare

_TIME = pa.timestamp("us", tz="UTC")
_COLUMNS: dict[str, tuple[pa.DataType, list[object]]] = {
    "flag": (pa.bool_(), [True, None, False]),
    "small": (pa.int32(), [1, None, -1]),
    "number": (pa.int64(), [1, None, 3]),
    "real": (pa.float64(), [1.5, None, -0.0]),
    "money": (pa.decimal128(10, 2), [Decimal("1.25"), None, Decimal("-3.50")]),
    "day": (pa.date32(), [date(2026, 1, 1), None, date(1969, 1, 1)]),
    "text": (pa.string(), ["short", None, "longer than fifteen bytes"]),
    "raw": (pa.binary(), [b"", None, b"longer than fifteen bytes"]),
}
_CONFIG = StateConfig(page_bytes=4096, limit_bytes=1 << 22)


def _batch(time_name: str, prefix: str = "") -> pa.RecordBatch:
    times = [datetime(2026, 1, 1, 0, 0, s, tzinfo=UTC) for s in (0, 1, 2)]
    arrays = [pa.array(times, _TIME), *(pa.array(v, t) for t, v in _COLUMNS.values())]
    return pa.RecordBatch.from_arrays(arrays, names=[time_name, *(prefix + name for name in _COLUMNS)])


def _aggs() -> dict[str, Agg]:
    numbers = {f"{f}_{c}": Agg(f, c) for f in ("sum", "avg", "stddev") for c in ("number", "real", "money")}
    kinds = ("number", "real", "money", "text")
    values = {f"{f}_{c}": Agg(f, c) for f in ("min", "max", "first", "last") for c in kinds}
    return {"rows": Agg("count"), **numbers, **values}


def _use(make: Callable[[], StatefulOperator], feed: Callable[[Any], object]) -> None:
    """Captures, images, checkpoints of an operator that has some rows."""
    primary, image = make(), make()
    feed(primary)
    image.paste(StateCapture.from_bytes(primary.capture().to_bytes()))
    snapshot, meta = primary.snapshot()
    feed(primary)
    primary.skip()
    image.paste_chunk(Chunk.from_bytes(primary.chunk(START, 1 << 20)[0].to_bytes()))
    feed(primary)
    image.paste(primary.capture())
    out = io.BytesIO()
    write(snapshot, out, meta)
    for lazy in (False, True):
        out.seek(0)
        make().restore([Checkpoint(io.BytesIO(out.getvalue()))], lazy=lazy)
    _through_files(primary, make())


def _through_files(primary: StatefulOperator, back: StatefulOperator) -> None:
    """The way of pages to a store and back (`state/transfer.py`)."""
    snapshot, meta = primary.snapshot()
    words, digests = np.empty(len(snapshot) * primary.pool.page_words, np.int64), np.empty(len(snapshot), np.int64)
    copy_out(snapshot, 0, len(snapshot), words, digests)
    pool = back.new_pool()
    phys = prepare(pool, list(zip(snapshot.set_ids, snapshot.kinds, snapshot.lps, strict=True)))
    pages_view(pool, int(phys[0]), len(phys))[:] = words.data.cast("B")
    check(find_damage(words, pool.page_words, digests, 0) < 0, "a page has changed on its way")
    which = np.repeat(np.arange(len(snapshot.set_ids)), [len(lps) for lps in snapshot.lps])
    pool.adopt(snapshot.set_ids, which, np.concatenate(snapshot.lps), phys)
    for page_set in pool.sets.values():
        page_set.count_pages()
    snapshot.close()
    back.become(pool, meta)


def warm_up() -> None:
    """Compile (or load from disk) what aggregates, count windows and joins will call."""
    batch = _batch("ts")
    for window in (Window(2_000_000, 2_000_000), Window(2_000_000, 1_000_000)):

        def aggregate(window: Window = window) -> WindowAggregate:
            return WindowAggregate(
                "warm-up",
                batch.schema,
                event_time="ts",
                window=window,
                by=list(_COLUMNS),
                aggs=_aggs(),
                config=_CONFIG,
            )

        _use(aggregate, lambda op: op.process(batch))
        closing = aggregate()
        closing.keep_footprints()
        closing.process(batch)
        closing.leave(1, 0, 0, decide=lambda _: 1)
        closing.on_watermark(FOREVER)
    _use(
        lambda: CountWindowAggregate(
            "warm-up", batch.schema, window=CountWindow(2, 1), by=["text"], aggs=_aggs(), config=_CONFIG
        ),
        lambda op: op.process(batch),
    )
    left, right = _batch("left_ts", "left_"), _batch("right_ts", "right_")

    def join() -> Join:
        return Join(
            "warm-up",
            left.schema,
            right.schema,
            times=("left_ts", "right_ts"),
            on=[("left_text", "right_text")],
            window=Within(0, 1_000_000),
            how="left_outer",
            config=_CONFIG,
        )

    _use(join, lambda op: (op.process(LEFT, left), op.process(RIGHT, right)))
    closing_join = join()
    closing_join.process(LEFT, left)
    closing_join.process(RIGHT, right)
    closing_join.on_watermark(LEFT, FOREVER)
    closing_join.on_watermark(RIGHT, FOREVER)

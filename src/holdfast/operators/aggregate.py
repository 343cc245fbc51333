"""Aggregates over tumbling and sliding windows of event time, grouped by any columns.

A row goes into the one pane that holds its time; panes are as long as the greatest common divisor of window and step.
When the watermark passes the end of a window, its panes are merged and the result comes out, windows in the order of
(end, key). A pane is forgotten with the last window that needs it. Rows older than the watermark are refused: lateness
is decided once, before rows get here.

Output columns: window_start, window_end, the keys, the aggregates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from holdfast.errors import ConfigError, InputError, MemoryLimitError, OverflowInWindowError
from holdfast.model.footprint import Control, Footprint, Records
from holdfast.model.plan import WINDOWS_MAX
from holdfast.operators.aggregates import Agg, Overflow
from holdfast.operators.aside import ASIDE, ERROR, schema_with_reasons, split, with_reasons
from holdfast.operators.capture import Incoming, Part
from holdfast.operators.columns import (
    KEY_COLUMNS_MAX,
    Column,
    check_schema,
    column_of,
    decode,
    order_of,
    pack_keys,
    quoted,
)
from holdfast.operators.operator import (
    FOREVER,
    NEVER,
    StateConfig,
    check_outputs,
    check_overflow,
    numbers,
    reserve,
)
from holdfast.operators.panes import PaneMap
from holdfast.operators.program import Program
from holdfast.operators.traced import TracedOperator, records
from holdfast.state.hashmap import HashMap, MapLayout
from holdfast.state.heap import extract_long, point_to
from holdfast.state.keys import make_keys
from holdfast.state.pages import PagePool
from holdfast.state.slots import SlotStore

TIME = pa.timestamp("us", tz="UTC")
#: Rows of one batch of results: a close takes memory for all its results, and beside them for the work on one batch.
CLOSE_ROWS = 1 << 16
#: Rows that a close merges at a time: bounds the memory of closing many sliding windows at once.
MERGE_ROWS_MAX = 1 << 20
#: The same when memory is short and a single window has to be closed.
FEW_ROWS = 256
#: One window is at most as large as the whole state; these are for what two maps of the same content may differ by.
SCRATCH_PAGES = 16
_LOW4 = 0xFFFFFFFF


@dataclass(frozen=True)
class Window:
    """Windows of `size_us`, one every `step_us`, aligned to the epoch as Spark's window() is."""

    size_us: int
    step_us: int

    def __post_init__(self) -> None:
        if self.size_us <= 0 or not 0 < self.step_us <= self.size_us:
            raise ConfigError(
                "window cannot be used",
                detail=f"size is {self.size_us} us, step is {self.step_us} us.",
                hint="Both must be positive, and the step no longer than the window.",
            )
        if self.size_us // self.pane_us > WINDOWS_MAX:
            raise ConfigError(
                f"a window has more than {WINDOWS_MAX:,} steps",
                detail=f"size is {self.size_us} us, step is {self.step_us} us.",
                hint="Every row is in that many windows, and each of them comes out. Give a longer step.",
            )

    @property
    def pane_us(self) -> int:
        return math.gcd(self.size_us, self.step_us)

    @property
    def tumbling(self) -> bool:
        return self.size_us == self.step_us


class WindowAggregate(TracedOperator):
    """Windowed aggregates by key. See the module."""

    def __init__(
        self,
        name: str,
        schema: pa.Schema,
        *,
        event_time: str,
        window: Window,
        by: list[str],
        aggs: dict[str, Agg],
        overflow: str = ERROR,
        config: StateConfig | None = None,
    ) -> None:
        self.window = window
        self.time = column_of(schema, event_time, name)
        if not pa.types.is_timestamp(self.time.type):
            raise ConfigError(
                f"{name}: event time {event_time!r} is not a timestamp",
                detail=f"It is {self.time.type}.",
                hint="Cast it to timestamp in the stage.",
            )
        if len(by) > KEY_COLUMNS_MAX:
            raise ConfigError(f"{name}: too many key columns", detail=f"{len(by)}; the limit is {KEY_COLUMNS_MAX}.")
        check_overflow(name, overflow)
        self.keys = [column_of(schema, k, name) for k in by]
        self.program = Program(aggs, schema, name)
        self.overflow = overflow
        check_outputs(name, ("window_start", "window_end"), by, self.program.names)
        layout = f"{window}|{self.keys}|{self.program.aggs}|{[str(f.result) for f in self.program.functions]}"
        super().__init__(name, config or StateConfig(), layout, ("new", "updated"))
        self._key_kinds = tuple(k for column in self.keys for k in column.kinds)
        self._inputs = [self.time, *self.keys, *(column_of(schema, c, name) for c in self.program.inputs)]
        #: All panes below this have been dropped.
        self._dropped_below = NEVER
        self._scratch: HashMap | None = None
        self.rows_without_time = 0
        self._open_maps()

    def _open_maps(self) -> None:
        self.state = PaneMap(self.pool, 0, self._key_kinds, self.program.words, self.program.vars)

    # -- rows ---------------------------------------------------------------------------------------------------

    def process(self, batch: pa.RecordBatch) -> None:
        """Take rows in: all of the batch, or on an error none."""
        check_schema(batch, self._inputs, self.name)
        batch, instants, without_time = _with_time(batch, self.time.name)
        self._refuse_late(instants, instants)
        panes = np.floor_divide(instants, self.window.pane_us)
        self._merge(batch, panes, self.program.lift(batch, numbers(self.rows, batch.num_rows)))
        self.rows_without_time += without_time

    def process_partial(self, batch: pa.RecordBatch) -> None:
        """Take partial aggregates in that Spark computed by (pane, key): see `partial_sql`."""
        lacking = self.program.needs_rows()
        if lacking:
            raise ConfigError(
                f"{self.name}: {', '.join(lacking)} cannot be computed in part",
                hint="Send the rows themselves to this operator.",
            )
        check_schema(batch, [Column("pane_start", self.time.type), *self.keys], self.name)
        batch, starts, _ = _with_time(batch, "pane_start")
        if (starts % self.window.pane_us).any():
            raise InputError(
                f"{self.name}: a partial aggregate does not start at a pane",
                detail=f"Panes start at multiples of {self.window.pane_us} us.",
            )
        self._refuse_late(starts, starts + (self.window.pane_us - 1))
        self._merge(batch, starts // self.window.pane_us, self.program.lift_partial(batch))

    def partial_sql(self) -> dict[str, str]:
        """Spark SQL for a stage: column -> expression, to group by; the rest are aggregates over those groups."""
        pane = self.window.pane_us
        micros = f"unix_micros({quoted(self.time.name)})"
        start = f"timestamp_micros({micros} - pmod({micros}, {pane}L))"  # in integers: a double would lose digits
        return {"pane_start": start, **{k.name: quoted(k.name) for k in self.keys}, **self.program.partial_sql()}

    def _refuse_late(self, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        """Rows whose time is past the watermark, or whose windows would end beyond what a timestamp can say."""
        if not len(starts):
            return
        late = ends < self.watermark
        if late.any():
            raise InputError(
                f"{self.name}: {int(late.sum())} rows are older than the watermark",
                detail=f"Row {int(late.argmax())} is at {starts[late.argmax()]} us, the watermark at {self.watermark}.",
                hint="Lateness is decided in the stage; this batch was refused whole.",
            )
        far = (starts > FOREVER - 2 * self.window.size_us) | (starts < NEVER + 2 * self.window.size_us)
        if far.any():
            raise InputError(
                f"{self.name}: an event time is out of range",
                detail=f"Row {int(far.argmax())}: {starts[far.argmax()]} us; its window would end outside 64 bits.",
                hint="Filter impossible timestamps in the stage; this batch was refused whole.",
            )

    def _merge(self, batch: pa.RecordBatch, panes: NDArray[np.int64], source: NDArray[np.int64]) -> None:
        self.pool.reclaim()
        keys, _ = pack_keys(batch, self.keys, panes, self.state.kinds)
        to, fresh = self.state.upsert(keys, self.program.identity)
        try:
            self.reserve(self.program.long_bytes(source))
        except MemoryLimitError:
            self.state.undo(fresh)
            raise
        to += 8 * (1 + len(self.state.kinds))
        self.program.merge(to, source, self.pool.at, self.state.map.slots.heap.at)
        self.rows += batch.num_rows
        if self.footprints is not None:
            self.footprints.changed(fresh)

    # -- windows ------------------------------------------------------------------------------------------------

    @property
    def output_schema(self) -> pa.Schema:
        fields = [pa.field("window_start", TIME), pa.field("window_end", TIME)]
        fields += [pa.field(c.name, c.type) for c in (*self.keys, *self.program.results())]
        return pa.schema(fields)

    def on_watermark(self, watermark: int) -> pa.Table:
        """Close every window that ends by the watermark; their results in the order of (end, key)."""
        self.aside = None
        if watermark <= self.watermark:
            return self.output_schema.empty_table()
        self.pool.reclaim()
        closed = self._close_tumbling(watermark) if self.window.tumbling else self._close_sliding(watermark)
        self._drop(watermark)
        behind = self.watermark - self.window.size_us >= self.hidden
        self.watermark = watermark
        aside = self.overflow == ASIDE
        schema = schema_with_reasons(self.output_schema) if aside else self.output_schema
        made = pa.Table.from_batches(closed, schema)
        made = made if behind else made.filter(pc.field("window_start") >= pa.scalar(self.hidden, TIME))
        if aside:
            made, self.aside = split(made)
        return made

    def _close_tumbling(self, watermark: int) -> list[pa.RecordBatch]:
        rids = self.state.rids_of(NEVER, watermark // self.window.pane_us)
        if not len(rids):
            return []
        return self._results(self.state.map.slots, rids, self.window.size_us)

    def _close_sliding(self, watermark: int) -> list[pa.RecordBatch]:
        """Merge panes into windows, as many windows at a time as memory should allow."""
        panes, counts = self.state.pane_numbers(watermark // self.window.pane_us)
        if not len(panes):
            return []
        first, last = self._windows_of(panes, watermark)
        closed: list[pa.RecordBatch] = []
        for low, high in _groups(first, last, counts):
            closed += self._merge_or_split(low, high, watermark)
        return closed

    def _merge_or_split(self, low: int, high: int, watermark: int) -> list[pa.RecordBatch]:
        """Results of the windows low..high: all at once, or fewer at a time if that takes too much memory."""
        try:
            return self._merge_windows(low, high, watermark)
        except MemoryLimitError:
            if low == high:
                return self._merge_windows(low, high, watermark, FEW_ROWS)
        middle = (low + high) // 2
        return [*self._merge_or_split(low, middle, watermark), *self._merge_or_split(middle + 1, high, watermark)]

    def _windows_of(self, panes: NDArray[np.int64], watermark: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """First and last window of each pane that this watermark closes; none if the first is above the last."""
        size, step = self.window.size_us, self.window.step_us
        starts = panes * self.window.pane_us
        first = np.maximum(np.floor_divide(starts - size, step) + 1, _first_open(self.watermark, size, step))
        last = np.minimum(np.floor_divide(starts, step), max(NEVER, (watermark - size) // step))
        return first, last

    def _merge_windows(
        self, low: int, high: int, watermark: int, rows_max: int = MERGE_ROWS_MAX
    ) -> list[pa.RecordBatch]:
        """Results of the windows low..high from the panes that they are made of, `rows_max` records at a time."""
        scratch = self._scratch_map()
        try:
            self._fill_scratch(scratch, low, high, watermark, rows_max)
            return self._results(scratch.slots, scratch.slots.rids(), self.window.step_us)
        finally:
            scratch.clear()

    def _fill_scratch(self, scratch: HashMap, low: int, high: int, watermark: int, rows_max: int) -> None:
        size, step, pane_us = self.window.size_us, self.window.step_us, self.window.pane_us
        kw = len(self.state.kinds)
        slots = self.state.map.slots
        rids = self.state.rids_of(low * step // pane_us, (high * step + size) // pane_us)
        for at in range(0, len(rids), rows_max):
            words = slots.gather(rids[at : at + rows_max], 0, slots.record_words)
            blob = extract_long(self.pool.at, slots.heap.at, words, slots.var_at)
            point_to(words, slots.var_at, blob)
            first, last = self._windows_of(words[:, 1], watermark)
            row, window = _spread(np.maximum(first, low), np.minimum(last, high))
            words = words[row]
            words[:, 1] = window
            keys = make_keys(words[:, 1 : 1 + kw], words[:, 0] & _LOW4, self.state.kinds, blob)
            to, _ = scratch.upsert(keys, self.program.identity)
            source = np.ascontiguousarray(words[:, 1 + kw :])
            reserve(scratch.pool, self.program.long_bytes(source))
            self.program.merge(to + 8 * (1 + kw), source, scratch.pool.at, scratch.slots.heap.at)

    def _scratch_map(self) -> HashMap:
        """Where sliding windows are put together. Not part of the state, and empty between watermarks."""
        if self._scratch is None:
            layout = MapLayout(self.state.kinds, self.program.words, self.program.vars)
            limit = self.config.limit_bytes + SCRATCH_PAGES * self.config.page_bytes
            self._scratch = HashMap(PagePool(page_bytes=self.config.page_bytes, limit_bytes=limit), 0, layout)
        return self._scratch

    def _results(self, slots: SlotStore, rids: NDArray[np.int64], step_us: int) -> list[pa.RecordBatch]:
        """Finished rows of records, in order. Some at a time: nothing but the results is as large as the results."""
        kw = len(self.state.kinds)
        words = slots.gather(rids, 0, 1 + kw)
        starts = words[:, 1] * step_us
        keys, at = [], 2
        for i, column in enumerate(self.keys):
            null = (words[:, 0] >> i) & 1 != 0
            keys.append(decode(words[:, at : at + column.words], null, column, slots.pool.at, slots.heap.at))
            at += column.words
        order = order_of([starts], self.keys, keys)
        rids, starts, keys = rids[order], starts[order], [key.take(pa.array(order)) for key in keys]
        some = [slice(at, at + CLOSE_ROWS) for at in range(0, len(rids), CLOSE_ROWS)]
        return [self._finish(slots, rids[s], starts[s], [key[s] for key in keys]) for s in some]

    def _finish(
        self, slots: SlotStore, rids: NDArray[np.int64], starts: NDArray[np.int64], keys: list[pa.Array]
    ) -> pa.RecordBatch:
        """The rows of these records, as they come; `keys` are theirs."""
        first = 1 + len(self.state.kinds)
        words = slots.gather(rids, first, slots.record_words - first)
        results, overflows = self.program.finish(words, slots.pool.at, slots.heap.at)
        if overflows and self.overflow == ERROR:
            raise overflow_error(self.name, overflows[0], starts, self.keys, keys)
        times = [pa.array(at, pa.int64()).view(TIME) for at in (starts, starts + self.window.size_us)]
        made = pa.RecordBatch.from_arrays([*times, *keys, *results], schema=self.output_schema)
        return with_reasons(made, overflows) if self.overflow == ASIDE else made

    def _drop(self, watermark: int) -> None:
        """Forget panes whose last window has closed."""
        size, step, pane_us = self.window.size_us, self.window.step_us, self.window.pane_us
        # the last window of pane p starts at floor(p * pane / step) * step
        open_start = _first_open(watermark, size, step) * step
        bound = open_start // pane_us
        if bound > self._dropped_below:
            self.state.drop_below(bound)
            self._dropped_below = bound

    # -- footprints: a window is a record, a (pane, key) ----------------------------------------------------------

    def window_count(self) -> int:
        return len(self.state)

    def windows(self) -> NDArray[np.int64]:
        return self.state.map.slots.rids()

    def are_there(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        return self.state.map.slots.is_live(ids)

    def have_closed(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.zeros(len(ids), np.bool_)

    def records_of(self, ids: NDArray[np.int64]) -> tuple[Records, ...]:
        return (records(self.state.map.slots, ids),)

    def open_at(self, footprint: Footprint, end: Control) -> NDArray[np.bool_]:
        """Panes below the bound were dropped; no row that is not late can open one again."""
        words = np.frombuffer(footprint.records[0].words, np.int64).reshape(len(footprint), -1)
        return words[:, 1] >= end.below

    def replay(self, batch: pa.RecordBatch, step: int) -> None:
        batch, instants, _ = _with_time(batch, self.time.name)
        panes = np.floor_divide(instants, self.window.pane_us)
        rows = batch.num_rows
        keys, _ = pack_keys(batch, self.keys, panes, self.state.kinds)
        news = self._unknown(self.state.map.find(keys), step)
        numbered = numbers(self.rows, rows)
        source = self.program.lift(batch, numbered)
        self._merge(batch.filter(pa.array(news)), panes[news], source[news])
        self.rows = int(numbered[-1]) + 1 if rows else self.rows

    # -- high availability --------------------------------------------------------------------------------------

    def changes(self) -> tuple[int, int]:
        return self.state.map.slots.count_changed()

    def _stores(self) -> list[SlotStore]:
        return [self.state.map.slots]

    def _drops(self) -> list[int]:
        return [self._dropped_below]

    def _put_part(self, index: int, part: Part, below: int) -> None:
        if part.drop_below > self._dropped_below:
            self.state.drop_below(part.drop_below)
            self._dropped_below = part.drop_below
        incoming = Incoming(part, self.state.map.slots, self.name, below)
        self.state.place(incoming.new, incoming.keys(self.state.map), self.program.identity)
        incoming.write_values()

    def _forget(self) -> None:
        self._dropped_below = NEVER

    def _flush(self) -> None:
        self.state.flush()

    def _set_ids(self) -> list[int]:
        return list(range(PaneMap.SETS))

    def _extra(self) -> dict[str, int]:
        return {"dropped_below": self._dropped_below}

    def _set_extra(self, extra: dict[str, int]) -> None:
        self._dropped_below = extra["dropped_below"]


def overflow_error(
    operator: str,
    overflow: tuple[str, Overflow],
    starts: NDArray[np.int64],
    keys: list[Column],
    arrays: list[pa.Array],
) -> OverflowInWindowError:
    """Says which aggregate, which window and which key."""
    name, (where, type_) = overflow
    row = int(where.argmax())
    key = ", ".join(f"{c.name}={a[row].as_py()!r}" for c, a in zip(keys, arrays, strict=True))
    return OverflowInWindowError(
        f"{operator}: {name} does not fit {type_}",
        detail=f"Window starting at {int(starts[row])}, {key or 'no key'}; {int(where.sum())} such results.",
        hint="Cast the column to decimal(38) in the stage, or set overflow='wrap' to wrap around.",
    )


def _first_open(watermark: int, size: int, step: int) -> int:
    """Number of the first window that ends after the watermark."""
    if watermark == NEVER:
        return NEVER // step
    return max(NEVER, (watermark - size) // step + 1)


def _with_time(batch: pa.RecordBatch, column: str) -> tuple[pa.RecordBatch, NDArray[np.int64], int]:
    """Rows that have a time (as in Spark, the others are in no window), their times, and how many have none."""
    times = batch.column(column)
    without = times.null_count
    if without:
        batch = batch.filter(times.is_valid())
        times = batch.column(column)
    return batch, times.view(pa.int64()).to_numpy(zero_copy_only=False), without


def _spread(first: NDArray[np.int64], last: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Each row once for every number in its first..last: (rows, numbers)."""
    lengths = np.maximum(last - first + 1, 0)
    row = np.repeat(np.arange(len(first)), lengths)
    offset = np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return row, first[row] + offset


def _groups(first: NDArray[np.int64], last: NDArray[np.int64], counts: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Runs of windows (first, last) whose records together stay near the limit; at least one window each.

    Pane i, with `counts[i]` records, is in the windows first[i]..last[i]. Windows are only ever counted in runs of
    equal load: there may be a hundred thousand of them for every pane.
    """
    some = last >= first
    edges, place = np.unique(np.concatenate([first[some], last[some] + 1]), return_inverse=True)
    load = np.zeros(len(edges), np.int64)
    np.add.at(load, place, np.concatenate([counts[some], -counts[some]]))
    load = np.cumsum(load)
    groups: list[tuple[int, int]] = []
    begin, end, total = 0, 0, 0
    for i in np.flatnonzero(load):
        window, beyond, rows = int(edges[i]), int(edges[i + 1]), int(load[i])
        while window < beyond:
            fit = (MERGE_ROWS_MAX - total) // rows
            if total and not fit:
                groups.append((begin, end))
                total = 0
                continue
            if not total:
                begin = window
            take = min(beyond - window, max(1, fit))
            window += take
            end = window - 1
            total += take * rows
    if total:
        groups.append((begin, end))
    return groups

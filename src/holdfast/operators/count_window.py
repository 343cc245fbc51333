"""Aggregates over windows of a number of rows, per key: every `step` rows, the last `size` rows of that key.

The rows of a key are numbered as they come; panes are runs of `gcd(size, step)` of them, so that a row is touched once
however many windows overlap. A window closes with its last row, whatever the watermark says, and results come out in
the order of those rows. Only whole windows are reported; a key that stops in the middle of one keeps its panes.

State: one map counts the rows of each key, another holds the panes by (pane, key). Output columns: window_start and
window_end (numbers of the first row and one past the last, per key), the keys, the aggregates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numba import njit
from numpy.typing import NDArray

from holdfast.errors import ConfigError, MemoryLimitError
from holdfast.model.footprint import Records
from holdfast.operators.aggregate import overflow_error
from holdfast.operators.aggregates import Agg
from holdfast.operators.aside import ASIDE, ERROR, split, with_reasons
from holdfast.operators.capture import NULL_BITS, Incoming, Part
from holdfast.operators.columns import KEY_COLUMNS_MAX, check_schema, column_of, decode, pack_keys
from holdfast.operators.operator import (
    StateConfig,
    check_outputs,
    check_overflow,
    numbers,
    pages_for,
)
from holdfast.operators.program import Program
from holdfast.operators.traced import TracedOperator, records
from holdfast.state.hashmap import HashMap, MapLayout
from holdfast.state.heap import KIND_HEAP, Heap, extract_long, point_to
from holdfast.state.intrinsics import address, load, store
from holdfast.state.keys import PLAIN, Keys, make_keys
from holdfast.state.pages import PagePool
from holdfast.state.slots import SlotStore


@dataclass(frozen=True)
class CountWindow:
    """Windows of `size` rows of a key, one every `step` rows."""

    size: int
    step: int

    def __post_init__(self) -> None:
        if self.size <= 0 or not 0 < self.step <= self.size:
            raise ConfigError(
                "count window cannot be used",
                detail=f"size is {self.size} rows, step is {self.step}.",
                hint="Both must be positive, and the step no longer than the window.",
            )

    @property
    def pane(self) -> int:
        return math.gcd(self.size, self.step)


@njit(cache=True, nogil=True)
def _number_rows(to, offset, out):
    """Count each row at its key; its number there."""
    for i in range(len(to)):
        out[i] = load(to[i], offset)
        store(to[i], offset, out[i] + 1)


@njit(cache=True, nogil=True)
def _load_words(at, offset, out):
    for i in range(len(at)):
        out[i] = load(at[i], offset)


@njit(cache=True, nogil=True)
def _uncount(to, offset):
    for i in range(len(to)):
        store(to[i], offset, load(to[i], offset) - 1)


class CountWindowAggregate(TracedOperator):
    """Aggregates over the last rows of each key. See the module."""

    def __init__(
        self,
        name: str,
        schema: pa.Schema,
        *,
        window: CountWindow,
        by: list[str],
        aggs: dict[str, Agg],
        overflow: str = ERROR,
        config: StateConfig | None = None,
    ) -> None:
        if len(by) > KEY_COLUMNS_MAX:
            raise ConfigError(f"{name}: too many key columns", detail=f"{len(by)}; the limit is {KEY_COLUMNS_MAX}.")
        self.window = window
        self.keys = [column_of(schema, k, name) for k in by]
        self.program = Program(aggs, schema, name)
        check_overflow(name, overflow)
        check_outputs(name, ("window_start", "window_end"), by, self.program.names)
        self.overflow = overflow
        layout = f"{window}|{self.keys}|{self.program.aggs}|{[str(f.result) for f in self.program.functions]}"
        super().__init__(name, config or StateConfig(), layout, ("new", "updated"))
        self._key_kinds = tuple(k for column in self.keys for k in column.kinds)
        self._pane_kinds = (PLAIN, *self._key_kinds)
        self._inputs = [*self.keys, *(column_of(schema, c, name) for c in self.program.inputs)]
        #: Panes that have gone since the last capture, if that capture had them.
        self._removed: list[NDArray[np.int64]] = []
        self._open_maps()

    def _open_maps(self) -> None:
        self.counts = HashMap(self.pool, 0, MapLayout(self._key_kinds, 1))
        self.panes = HashMap(
            self.pool, HashMap.SETS, MapLayout(self._pane_kinds, self.program.words, self.program.vars)
        )

    @property
    def output_schema(self) -> pa.Schema:
        fields = [pa.field("window_start", pa.int64()), pa.field("window_end", pa.int64())]
        fields += [pa.field(c.name, c.type) for c in (*self.keys, *self.program.results())]
        return pa.schema(fields)

    def process(self, batch: pa.RecordBatch) -> pa.Table:
        """Take rows in; results of the windows that they complete, in the order of the rows. All or nothing.

        The exception is OverflowInWindowError: the rows are in by then, and the operator cannot go on.
        """
        self.aside = None
        check_schema(batch, self._inputs, self.name)
        self.pool.reclaim()
        return self._take(batch, self.program.lift(batch, numbers(self.rows, batch.num_rows)))

    def _take(self, batch: pa.RecordBatch, source: NDArray[np.int64]) -> pa.Table:
        keys, _ = pack_keys(batch, self.keys, None, self._key_kinds)
        counters, fresh_keys = self.counts.upsert(keys, np.zeros(1, np.int64))
        number = np.empty(batch.num_rows, np.int64)
        _number_rows(counters, 1 + len(self._key_kinds), number)
        pane = number // self.window.pane
        pane_keys = self._pane_keys(keys, pane)
        whole = self._completed(number)
        fresh = np.zeros(0, np.int64)
        try:
            to, fresh = self.panes.upsert(pane_keys, self.program.identity)
            clones = self.panes.index.shared() if len(whole) else 0
            self.pool.ensure_room(pages_for(self.config.page_bytes, self.program.long_bytes(source)) + clones)
        except MemoryLimitError:
            self.panes.remove(fresh)
            _uncount(counters, 1 + len(self._key_kinds))
            self.counts.remove(fresh_keys)
            raise
        self.program.merge(to + 8 * (1 + len(self._pane_kinds)), source, self.pool.at, self.panes.slots.heap.at)
        self.rows += batch.num_rows
        result = self._complete(keys, number, whole)
        if self.footprints is not None:
            opening = np.flatnonzero(number == pane * self.window.pane)
            self._note_changed(keys, number, np.concatenate([opening, whole]), counters)
        return result

    def _pane_keys(self, keys: Keys, panes: NDArray[np.int64]) -> Keys:
        words = np.empty((len(keys), len(self._pane_kinds)), np.int64)
        words[:, 0] = panes
        words[:, 1:] = keys.words
        return make_keys(words, keys.nulls, self._pane_kinds, keys.owner)

    def _complete(self, keys: Keys, number: NDArray[np.int64], rows: NDArray[np.int64]) -> pa.Table:
        """Results of windows whose last row has just come, and their oldest panes dropped."""
        size, step, pane = self.window.size, self.window.step, self.window.pane
        if not len(rows):
            return self.output_schema.empty_table()
        starts = number[rows] + 1 - size
        values = np.tile(self.program.identity, (len(rows), 1))
        heap = self._merge_panes(self._some(keys, rows), starts // pane, size // pane, values)
        result = self._results(self._some(keys, rows), starts, values, heap)
        for k in range(step // pane):  # panes that no later window needs
            self._let_go(self._pane_keys(self._some(keys, rows), starts // pane + k))
        return result

    def _completed(self, number: NDArray[np.int64]) -> NDArray[np.int64]:
        """Which rows, by their numbers at their keys, are the last of a window."""
        beyond = number + 1 - self.window.size
        return np.flatnonzero((beyond >= 0) & (beyond % self.window.step == 0))

    def _some(self, keys: Keys, rows: NDArray[np.int64]) -> Keys:
        return make_keys(keys.words[rows], keys.nulls[rows], self._key_kinds, keys.owner)

    def _merge_panes(self, keys: Keys, first: NDArray[np.int64], panes: int, values: NDArray[np.int64]) -> Heap:
        """Merge each window's panes into its row of `values`. Long values go to a heap of their own, the result."""
        heap = self._scratch_heap(keys, first, panes)
        to = address(values) + 8 * self.program.words * np.arange(len(values))
        value_vars = np.array(self.program.vars, np.int64)
        for k in range(panes):
            words = self._pane_values(keys, first + k)
            blob = extract_long(self.pool.at, self.panes.slots.heap.at, words, value_vars)
            point_to(words, value_vars, blob)
            self.program.merge(to, words, heap.pages.pool.at, heap.at)
        return heap

    def _pane_values(self, keys: Keys, panes: NDArray[np.int64]) -> NDArray[np.int64]:
        rids = self.panes.find(self._pane_keys(keys, panes))
        return self.panes.slots.gather(rids, 1 + len(self._pane_kinds), self.program.words)

    def _scratch_heap(self, keys: Keys, first: NDArray[np.int64], panes: int) -> Heap:
        """Room for all long values of the windows' panes: the rows are in already, so this may not fall short."""
        long_bytes = 0
        if self.program.vars:
            long_bytes = sum(self.program.long_bytes(self._pane_values(keys, first + k)) for k in range(panes))
        page_bytes = self.config.page_bytes
        pool = PagePool(page_bytes=page_bytes, limit_bytes=(4 + pages_for(page_bytes, long_bytes)) * page_bytes)
        return Heap(pool.create(0, KIND_HEAP))

    def _results(self, keys: Keys, starts: NDArray[np.int64], values: NDArray[np.int64], heap: Heap) -> pa.Table:
        key_arrays = []
        at = 0
        for i, column in enumerate(self.keys):
            null = (keys.nulls >> i) & 1 != 0
            key_arrays.append(decode(np.ascontiguousarray(keys.words[:, at : at + column.words]), null, column))
            at += column.words
        results, overflows = self.program.finish(values, heap.pages.pool.at, heap.at)
        if overflows and self.overflow == ERROR:
            raise overflow_error(self.name, overflows[0], starts, self.keys, key_arrays)
        ends = pa.array(starts + self.window.size)
        arrays = [pa.array(starts), ends, *key_arrays, *results]
        if self.overflow != ASIDE:
            return pa.Table.from_arrays(arrays, schema=self.output_schema)
        made = with_reasons(pa.RecordBatch.from_arrays(arrays, schema=self.output_schema), overflows)
        made, self.aside = split(pa.Table.from_batches([made]))
        return made

    def _let_go(self, keys: Keys) -> None:
        rids = self.panes.find(keys)
        seen = rids[~self.panes.slots.is_fresh(rids)]
        if len(seen):  # where nothing is ever captured none is
            self._removed.append(seen)
        self.panes.remove(rids)

    def on_watermark(self, watermark: int) -> pa.Table:
        """Count windows do not close by time."""
        self.aside = None
        self.watermark = max(self.watermark, watermark)
        return self.output_schema.empty_table()

    # -- footprints: a window is a key, with its counter and its panes ---------------------------------------------

    def window_count(self) -> int:
        return len(self.counts)

    def windows(self) -> NDArray[np.int64]:
        return self.counts.slots.rids()

    def are_there(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        return self.counts.slots.is_live(ids)

    def have_closed(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        first, end = self._panes_at(self._counted(ids))
        return first >= end

    def records_of(self, ids: NDArray[np.int64]) -> tuple[Records, ...]:
        counted = self._counted(ids)
        first, end = self._panes_at(counted)
        many = np.maximum(end - first, 0)
        owner = np.repeat(np.arange(len(ids)), many)
        words = self.counts.slots.gather(ids[owner], 0, 1 + len(self._key_kinds))
        blob = extract_long(self.pool.at, self.counts.slots.heap.at, words, self.counts.slots.var_at)
        point_to(words, self.counts.slots.var_at, blob)
        keys = make_keys(words[:, 1:], words[:, 0] & NULL_BITS, self._key_kinds, blob)
        pane = first[owner] + np.arange(len(owner)) - np.repeat(np.cumsum(many) - many, many)
        panes = self.panes.find(self._pane_keys(keys, pane))
        return records(self.counts.slots, ids), records(self.panes.slots, panes, many)

    def _counted(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many rows these keys have had."""
        return self.counts.slots.gather(ids, 1 + len(self._key_kinds), 1)[:, 0]

    def _panes_at(self, counted: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Panes [first, end) that a key has by the number of its rows: those of windows that are not whole."""
        size, step, pane = self.window.size, self.window.step, self.window.pane
        whole = np.where(counted >= size, (counted - size) // step + 1, 0)
        return whole * (step // pane), -(-counted // pane)

    def _note_changed(
        self, keys: Keys, number: NDArray[np.int64], rows: NDArray[np.int64], counters: NDArray[np.int64]
    ) -> None:
        """Keys that have got a pane in this batch, or lost one, by the `rows` that did it: one footprint each, however
        many windows closed. Of each key the last of these rows is looked up: the next would be beyond its count."""
        counted = np.empty(len(rows), np.int64)
        _load_words(counters[rows], 1 + len(self._key_kinds), counted)
        size, step, pane = self.window.size, self.window.step, self.window.pane
        n = number[rows]
        whole = np.where(n + 1 >= size, (n + 1 - size) // step + 1, 0)
        following = np.minimum((n // pane + 1) * pane, size - 1 + whole * step)
        if self.footprints is not None:
            self.footprints.changed(self.counts.find(self._some(keys, rows[following >= counted])))

    def replay(self, batch: pa.RecordBatch, step: int) -> None:
        rows = batch.num_rows
        keys, _ = pack_keys(batch, self.keys, None, self._key_kinds)
        news = self._unknown(self.counts.find(keys), step)
        numbered = numbers(self.rows, rows)
        self._take(batch.filter(pa.array(news)), self.program.lift(batch, numbered)[news])
        self.rows = int(numbered[-1]) + 1 if rows else self.rows

    # -- high availability --------------------------------------------------------------------------------------

    def changes(self) -> tuple[int, int]:
        a, b = self.counts.slots.count_changed(), self.panes.slots.count_changed()
        return a[0] + b[0], a[1] + b[1]

    def _stores(self) -> list[SlotStore]:
        return [self.counts.slots, self.panes.slots]

    def _take_removed(self) -> list[NDArray[np.int64]]:
        removed = np.concatenate(self._removed) if self._removed else np.zeros(0, np.int64)
        self._removed.clear()
        return [np.zeros(0, np.int64), removed]

    def _put_part(self, index: int, part: Part, below: int) -> None:
        map_ = (self.counts, self.panes)[index]
        incoming = Incoming(part, map_.slots, self.name, below)
        map_.remove(incoming.removed)
        identity = np.zeros(map_.layout.value_words, np.int64)
        map_.place(incoming.new, incoming.keys(map_), identity)
        incoming.write_values()

    def _forget(self) -> None:
        self._removed.clear()

    def _flush(self) -> None:
        self.counts.flush()
        self.panes.flush()

    def _set_ids(self) -> list[int]:
        return list(range(2 * HashMap.SETS))

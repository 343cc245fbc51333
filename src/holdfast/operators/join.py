"""Windowed equi-join of two streams, inner or left outer, with an extra predicate on both rows.

Rows of either side wait in the state for partners. Two rows match when their keys are equal (as in SQL, null matches
nothing), when their times fit — either the right row's time lies between `after_us` and `before_us` of the left one's
(`Within`), or both fall into the same tumbling window (`SameWindow`) — and when the predicate holds.

Time is cut into buckets as long as the join interval; a key map finds the rows of (bucket, key) as a list, so a row
looks into two buckets, and expiry drops whole buckets once no future row can match anything in them. A left row that
found no partner comes out, with nulls on the right, when its bucket expires.

Order of the output: by the row that completes the pair, then by the partner, newest first; unmatched rows by (time,
arrival). Output columns: those of the left side, then those of the right one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.errors import ConfigError, InputError, check
from holdfast.operators.capture import LINKS, Incoming, Part, StateCapture
from holdfast.operators.chunk import END
from holdfast.operators.columns import Column, check_schema, column_of, decode, encode, pack_keys, valid_of
from holdfast.operators.join_rows import (
    COLUMNS,
    LOW,
    MATCHED,
    MATCHED_BIT,
    NULLS,
    NUMBER,
    ROWS,
    TIME_WORD,
    enter_rows,
    find_pairs,
    make_writable,
    mark_matched,
    store_rows,
    unstore_rows,
    walk_rows,
)
from holdfast.operators.operator import FOREVER, NEVER, StateConfig, StatefulOperator, numbers
from holdfast.operators.panes import PaneMap
from holdfast.operators.union import Watermarks
from holdfast.state.keys import VAR0, Keys, make_keys
from holdfast.state.slots import SlotStore

LEFT, RIGHT = 0, 1
COLUMNS_MAX = 62

Predicate = Callable[[pa.RecordBatch], pa.BooleanArray]


@dataclass(frozen=True)
class Within:
    """left.time + after_us <= right.time <= left.time + before_us."""

    after_us: int
    before_us: int

    def __post_init__(self) -> None:
        if self.after_us > self.before_us:
            raise ConfigError(
                "join interval is empty",
                detail=f"It goes from {self.after_us} us to {self.before_us} us.",
                hint="Within(0, 10_000_000): the right row comes up to 10 s after the left one.",
            )

    @property
    def bucket_us(self) -> int:
        return max(1, self.before_us - self.after_us)

    @property
    def reach_us(self) -> int:
        """No partner is further away, and no bucket longer."""
        return abs(self.after_us) + abs(self.before_us) + 1


@dataclass(frozen=True)
class SameWindow:
    """Both times in the same tumbling window."""

    size_us: int

    def __post_init__(self) -> None:
        if self.size_us <= 0:
            raise ConfigError("join window must be positive", detail=f"It is {self.size_us} us.")

    @property
    def bucket_us(self) -> int:
        return self.size_us

    @property
    def reach_us(self) -> int:
        """No partner is further away, and no bucket longer."""
        return self.size_us


class _Side:
    """The waiting rows of one stream."""

    SETS = PaneMap.SETS + 2

    def __init__(self, schema: pa.Schema, event_time: str, on: list[str], operator: str) -> None:
        self.schema = schema
        self.columns = [column_of(schema, name, operator) for name in schema.names]
        if len(self.columns) > COLUMNS_MAX:
            raise ConfigError(
                f"{operator}: too many columns", detail=f"{len(self.columns)}; a join holds {COLUMNS_MAX} a side."
            )
        self.time = column_of(schema, event_time, operator)
        if not pa.types.is_timestamp(self.time.type):
            raise ConfigError(f"{operator}: event time {event_time!r} is not a timestamp", detail=f"{self.time.type}.")
        self.keys = [column_of(schema, name, operator) for name in on]
        self.key_kinds = tuple(k for c in self.keys for k in c.kinds)
        self.places: list[int] = []
        at = COLUMNS
        for column in self.columns:
            self.places.append(at)
            at += column.words
        self.words = at - 1
        self.var_at = [p for p, c in zip(self.places, self.columns, strict=True) if c.kinds[0] == VAR0]
        #: All buckets below this have been dropped.
        self.dropped_below = NEVER

    def open(self, op: Join, ids: int) -> None:
        self.map = PaneMap(op.pool, ids, self.key_kinds, 2)
        self.rows = SlotStore(op.pool, ids + PaneMap.SETS, key_words=0, value_words=self.words, var_at=self.var_at)

    def matrix(self, batch: pa.RecordBatch, first: int, matched: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Rows as words, without the list word."""
        out = np.zeros((batch.num_rows, self.words), np.int64)
        out[:, NULLS - 1] = matched.astype(np.int64) << MATCHED_BIT
        out[:, TIME_WORD - 1] = batch.column(self.time.name).view(pa.int64()).to_numpy(zero_copy_only=False)
        out[:, NUMBER - 1] = numbers(first, batch.num_rows)
        for i, (column, at) in enumerate(zip(self.columns, self.places, strict=True)):
            array = batch.column(column.name)
            out[:, at - 1 : at - 1 + column.words] = encode(array, column)
            if array.null_count:
                out[:, NULLS - 1] |= (~valid_of(array)).astype(np.int64) << i
        return out

    def decode(
        self, words: NDArray[np.int64], pool: int, heap: int, only: list[Column] | None = None
    ) -> list[pa.Array]:
        """Columns of gathered rows (with the list word)."""
        out = []
        for i, (column, at) in enumerate(zip(self.columns, self.places, strict=True)):
            if only is None or column in only:
                null = (words[:, NULLS] >> i) & 1 != 0
                out.append(decode(words[:, at : at + column.words], null, column, pool, heap))
        return out


class Join(StatefulOperator):
    """Windowed equi-join. See the module."""

    def __init__(
        self,
        name: str,
        left: pa.Schema,
        right: pa.Schema,
        *,
        times: tuple[str, str],
        on: list[tuple[str, str]],
        window: Within | SameWindow,
        how: str = "inner",
        predicate: Predicate | None = None,
        config: StateConfig | None = None,
    ) -> None:
        if how not in ("inner", "left_outer"):
            raise ConfigError(f"{name}: how must be 'inner' or 'left_outer'", detail=f"It is {how!r}.")
        if not on:
            raise ConfigError(f"{name}: no key is given", hint='For example on=[("src", "client")].')
        self.window = window
        self.outer = how == "left_outer"
        self.predicate = predicate
        self.sides = (
            _Side(left, times[LEFT], [a for a, _ in on], name),
            _Side(right, times[RIGHT], [b for _, b in on], name),
        )
        for a, b in zip(self.sides[LEFT].keys, self.sides[RIGHT].keys, strict=True):
            if a.type != b.type:
                raise ConfigError(
                    f"{name}: keys {a.name!r} and {b.name!r} have different types",
                    detail=f"{a.type} and {b.type}.",
                    hint="Cast one of them in the stage.",
                )
        clash = sorted(set(left.names) & set(right.names))
        if clash:
            raise ConfigError(
                f"{name}: both sides have a column named {clash[0]!r}", hint="Rename it in a stage before the join."
            )
        super().__init__(name, config or StateConfig(), f"{window}|{how}|{on}|{left}|{right}", ("left", "right"))
        self.watermarks = Watermarks(2)
        self._open_maps()

    _KEEP = LINKS

    def _open_maps(self) -> None:
        for i, side in enumerate(self.sides):
            side.open(self, i * _Side.SETS)

    @property
    def output_schema(self) -> pa.Schema:
        left, right = (s.schema for s in self.sides)
        nullable = [pa.field(f.name, f.type) for f in right]
        return pa.schema([*(pa.field(f.name, f.type) for f in left), *nullable])

    # -- rows ---------------------------------------------------------------------------------------------------

    def process(self, which: int, batch: pa.RecordBatch) -> pa.Table:
        """Take rows of one side in; the pairs that they complete. All of the batch, or on an error none."""
        side, other = self.sides[which], self.sides[1 - which]
        check_schema(batch, side.columns, self.name)
        self.pool.reclaim()
        outputs: list[pa.RecordBatch] = []
        self._refuse_times(batch.column(side.time.name))
        if self.hidden > NEVER:
            times = batch.column(side.time.name).view(pa.int64()).fill_null(self.hidden)
            batch = batch.filter(pa.array(times.to_numpy(zero_copy_only=False) >= self.hidden))
        batch, alone = self._split_unmatchable(which, batch)
        if self.outer and which == LEFT and alone.num_rows:
            outputs.append(self._with_nulls([alone.column(c.name) for c in side.columns]))
        times = batch.column(side.time.name).view(pa.int64()).to_numpy(zero_copy_only=False)
        buckets = np.floor_divide(times, self.window.bucket_us)
        keys, _ = pack_keys(batch, side.keys, buckets, side.map.kinds)
        rows, partners = self._find_pairs(which, other, keys, times, buckets)
        pairs, keep = self._joined(which, batch, rows, partners)
        rows, partners = rows[keep], partners[keep]
        matched = np.zeros(batch.num_rows, np.bool_)
        if self.outer and which == LEFT:
            matched[rows] = True
        if self.outer and which == RIGHT:
            self._prepare_marks(other, partners)
        self._insert(side, keys, side.matrix(batch, self.rows, matched))
        if self.outer and which == RIGHT:
            mark_matched(self.pool.at, other.rows.at, partners)
        self.rows += batch.num_rows
        outputs.append(pairs)
        return pa.Table.from_batches(outputs, self.output_schema)

    def _split_unmatchable(self, which: int, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Rows with a null key or no time can match nothing. In a join by window, rows without a time do not take
        part at all (as with Spark's window)."""
        side = self.sides[which]
        times = batch.column(side.time.name)
        if times.null_count and isinstance(self.window, SameWindow):
            batch = batch.filter(times.is_valid())
        valid = valid_of(batch.column(side.time.name))
        for key in side.keys:
            valid &= valid_of(batch.column(key.name))
        if valid.all():
            return batch, batch.slice(0, 0)
        return batch.filter(pa.array(valid)), batch.filter(pa.array(~valid))

    def _refuse_times(self, column: pa.Array) -> None:
        """Rows whose time is past the watermark, or whose partners could lie beyond what a timestamp can say."""
        valid = valid_of(column)
        times = column.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        reach = 2 * self.window.reach_us
        far = valid & ((times > FOREVER - reach) | (times < NEVER + reach))
        if far.any():
            raise InputError(
                f"{self.name}: an event time is out of range",
                detail=f"Row {int(far.argmax())}: {times[far.argmax()]} us; its partners would lie outside 64 bits.",
                hint="Filter impossible timestamps in the stage; this batch was refused whole.",
            )
        late = valid & (times < self.watermark)
        if late.any():
            raise InputError(
                f"{self.name}: {int(late.sum())} rows are older than the watermark",
                detail=f"Row {int(late.argmax())} is at {times[late.argmax()]} us, the watermark at {self.watermark}.",
                hint="Lateness is decided in the stage; this batch was refused whole.",
            )

    def _find_pairs(
        self, which: int, other: _Side, keys: Keys, times: NDArray[np.int64], buckets: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Candidates: equal keys, fitting times. (rows of the batch, rids of the other side)."""
        low, high = 0, 0
        firsts = [buckets]
        if isinstance(self.window, Within):
            # distance is (stored - given): for a given left row right - left, for a right one left - right
            low, high = self.window.after_us, self.window.before_us
            if which == RIGHT:
                low, high = -high, -low
            size = self.window.bucket_us
            first = np.floor_divide(times + low, size)
            span = int((np.floor_divide(times + high, size) - first).max(initial=-1)) + 1
            firsts = [first + d for d in range(span)]
        found = np.empty((len(firsts), len(times)), np.int64)
        for d, bucket in enumerate(firsts):
            words = keys.words.copy()
            words[:, 0] = bucket
            found[d] = other.map.map.find(make_keys(words, keys.nulls, other.map.kinds, keys.owner))
        other.rows.pages.load_all()
        check_time = isinstance(self.window, Within)
        slots = other.map.map.slots
        args = (self.pool.at, slots.at, other.rows.at, found, 1 + len(other.map.kinds), times, low, high, check_time)
        none = np.zeros(0, np.int64)
        count = find_pairs(*args, none, none)
        rows, partners = np.empty(count, np.int64), np.empty(count, np.int64)
        if count:
            find_pairs(*args, rows, partners)
        return rows, partners

    def _joined(
        self, which: int, batch: pa.RecordBatch, rows: NDArray[np.int64], partners: NDArray[np.int64]
    ) -> tuple[pa.RecordBatch, NDArray[np.bool_]]:
        """Output rows of candidate pairs for which the predicate holds, and which those are."""
        other = self.sides[1 - which]
        given = batch.take(pa.array(rows))
        words = other.rows.gather(partners, 0, other.rows.record_words)
        stored = other.decode(words, self.pool.at, other.rows.heap.at)
        mine = [given.column(c.name) for c in self.sides[which].columns]
        arrays = [*mine, *stored] if which == LEFT else [*stored, *mine]
        pairs = pa.RecordBatch.from_arrays(arrays, schema=self.output_schema)
        keep = np.ones(len(rows), np.bool_)
        if self.predicate is not None and len(rows):
            verdict = self.predicate(pairs)
            keep = np.asarray(verdict.fill_null(False).to_numpy(zero_copy_only=False), np.bool_)
            pairs = pairs.filter(pa.array(keep))
        return pairs, keep

    def _prepare_marks(self, side: _Side, rids: NDArray[np.int64]) -> None:
        if make_writable(self.pool.at, side.rows.at, rids) < 0:
            self.pool.make_room()
            if make_writable(self.pool.at, side.rows.at, rids) < 0:
                raise self.pool.limit_error()

    def _insert(self, side: _Side, keys: Keys, matrix: NDArray[np.int64]) -> None:
        to, fresh = side.map.upsert(keys, np.zeros(2, np.int64))
        to = to + 8 * (1 + len(side.map.kinds))
        var_columns = np.array([v - 1 for v in side.var_at], np.int64)
        done = store_rows(self.pool.at, side.rows.at, to, matrix, var_columns, 0)
        if done < len(matrix):
            self.pool.make_room()
            done = store_rows(self.pool.at, side.rows.at, to, matrix, var_columns, done)
            if done < len(matrix):
                unstore_rows(self.pool.at, side.rows.at, to, done)
                side.map.undo(fresh)
                raise self.pool.limit_error()

    # -- watermark ----------------------------------------------------------------------------------------------

    def on_watermark(self, which: int, watermark: int) -> pa.Table:
        """Note a side's watermark; drop what can match no more, and report left rows that never did."""
        combined = self.watermarks.on_watermark(which, watermark)
        out: list[pa.RecordBatch] = []
        if combined > self.watermark:
            self.pool.reclaim()
            # only when the bound rises: an image is told the bound and nothing else, and new rows may lie below it
            gone = [
                self._rows_below(s, b if b > s.dropped_below else NEVER)
                for s, b in zip(self.sides, self._bounds(combined), strict=True)
            ]
            # before anything goes: a left row that is reported must be dropped, and both sides at once
            self.pool.ensure_room(sum(s.map.clones_to_drop() for s, r in zip(self.sides, gone, strict=True) if len(r)))
            for side, bound, rids in zip(self.sides, self._bounds(combined), gone, strict=True):
                out += self._expire(side, bound, rids)
            self.watermark = combined
        return pa.Table.from_batches(out, self.output_schema)

    def _bounds(self, watermark: int) -> tuple[int, int]:
        """Buckets below these can match no row that is still to come: (left, right)."""
        size = self.window.bucket_us
        left = right = watermark // size
        if isinstance(self.window, Within):
            left, right = (watermark - self.window.before_us) // size, (watermark + self.window.after_us) // size
        return max(NEVER, min(left, FOREVER)), max(NEVER, min(right, FOREVER))

    def _expire(self, side: _Side, bound: int, rids: NDArray[np.int64]) -> list[pa.RecordBatch]:
        """Forget the rows below a bound, which are these; left ones that never matched."""
        side.dropped_below = max(side.dropped_below, bound)
        if not len(rids):
            return []
        out: list[pa.RecordBatch] = []
        if self.outer and side is self.sides[LEFT]:
            words = side.rows.gather(rids, 0, side.rows.record_words)
            words = words[words[:, NULLS] & MATCHED == 0]
            words = words[self._first_partner(words[:, TIME_WORD]) >= self.hidden]
            words = words[np.lexsort([words[:, NUMBER], words[:, TIME_WORD]])]
            out.append(self._with_nulls(side.decode(words, self.pool.at, side.rows.heap.at)))
        self._drop(side, rids, bound)
        return out

    def _first_partner(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """The earliest time at which a right row could match left rows of these times."""
        if isinstance(self.window, Within):
            return times + min(0, self.window.after_us)
        return np.floor_divide(times, self.window.bucket_us) * self.window.bucket_us

    def _rows_below(self, side: _Side, bound: int) -> NDArray[np.int64]:
        side.rows.pages.load_all()
        keys = side.map.rids_of(NEVER, bound)
        values = side.map.map.slots.gather(keys, 1 + len(side.map.kinds), 2)
        rids = np.empty(int((values[:, ROWS] & LOW).sum()), np.int64)
        found = walk_rows(self.pool.at, side.rows.at, values, self.scanned != END, rids)
        check(found == len(rids), "a list of rows is not as long as its key says", f"{found} of {len(rids)}")
        return rids

    def _drop(self, side: _Side, rids: NDArray[np.int64], bound: int) -> None:
        side.rows.free(rids)
        side.map.drop_below(bound)

    def _with_nulls(self, left: list[pa.Array]) -> pa.RecordBatch:
        n = len(left[0])
        nulls = [pa.nulls(n, c.type) for c in self.sides[RIGHT].columns]
        return pa.RecordBatch.from_arrays([*left, *nulls], schema=self.output_schema)

    def __len__(self) -> int:
        """Rows that wait."""
        return sum(len(s.rows) for s in self.sides)

    # -- high availability --------------------------------------------------------------------------------------

    def changes(self) -> tuple[int, int]:
        left, right = (sum(s.rows.count_changed()) for s in self.sides)
        return left, right

    def _amounts(self, capture: StateCapture) -> tuple[int, int]:
        left, right = capture.parts
        return left.n_new + left.n_updated, right.n_new + right.n_updated

    def _stores(self) -> list[SlotStore]:
        return [s.rows for s in self.sides]

    def _drops(self) -> list[int]:
        return [s.dropped_below for s in self.sides]

    def _put_part(self, index: int, part: Part, below: int) -> None:
        side = self.sides[index]
        if part.drop_below > side.dropped_below:
            self._drop(side, self._rows_below(side, part.drop_below), part.drop_below)
            side.dropped_below = part.drop_below
        incoming = Incoming(part, side.rows, self.name, below)
        following = (incoming.words[:, 0] >> 32) & LOW
        incoming.check_rids(following[following > 0] - 1)
        side.rows.place(incoming.new)
        incoming.write_values()
        self._enter_new(side, incoming)

    def _enter_new(self, side: _Side, incoming: Incoming) -> None:
        """Make rows known to their keys. Each row says itself which one follows it."""
        arrays = side.decode(incoming.words, 0, 0, only=side.keys)
        names = [c.name for c in side.columns if c in side.keys]
        batch = pa.RecordBatch.from_arrays(arrays, names=names)
        buckets = np.floor_divide(incoming.words[:, TIME_WORD], self.window.bucket_us)
        keys, _ = pack_keys(batch, side.keys, buckets, side.map.kinds)
        to, _ = side.map.upsert(keys, np.zeros(2, np.int64))
        links = np.ascontiguousarray(incoming.words[:, 0])
        enter_rows(self.pool.at, side.rows.at, to + 8 * (1 + len(side.map.kinds)), incoming.new, links)

    def _forget(self) -> None:
        for side in self.sides:
            side.dropped_below = NEVER
        self.watermarks = Watermarks(2)

    def _flush(self) -> None:
        for side in self.sides:
            side.map.flush()
            side.rows.flush()

    def _set_ids(self) -> list[int]:
        return list(range(2 * _Side.SETS))

    def _extra(self) -> dict[str, int]:
        a, b = self.sides
        x, y = self.watermarks.inputs
        return {
            "left_below": a.dropped_below,
            "right_below": b.dropped_below,
            "left_watermark": x,
            "right_watermark": y,
        }

    def _set_extra(self, extra: dict[str, int]) -> None:
        self.sides[LEFT].dropped_below = extra["left_below"]
        self.sides[RIGHT].dropped_below = extra["right_below"]
        self.watermarks.inputs = [extra["left_watermark"], extra["right_watermark"]]
